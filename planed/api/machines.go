package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/addrfree"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

func (a *API) view(r *machine.Row) wire.Machine {
	return r.View(a.Policy, a.Store.Epoch(), a.Now())
}

// machines is GET /v1/machines. Machines come in order of id.
func (a *API) machines(c *call) error {
	f, err := parseFilter(c.r.URL.Query())
	if err != nil {
		return bad("%s", err)
	}
	if f.Match != "" {
		found, err := a.resolve(c, f)
		if err != nil {
			return err
		}
		return c.answer(wire.Machines{Schema: wire.SchemaMachines, PlaneTime: wire.Time{Time: a.Now()}, GateRefused: a.gateRefused(), Machines: found})
	}
	// Streamed: a large fleet's list is never whole in memory. From the first
	// byte on the status is sent, so an error can only cut the answer short.
	h := c.w.Header()
	h["Content-Type"] = jsonType
	h["Cache-Control"] = noStore
	out := bufio.NewWriterSize(c.w, 32<<10)
	head, err := json.Marshal(wire.Machines{Schema: wire.SchemaMachines, PlaneTime: wire.Time{Time: a.Now()}, GateRefused: a.gateRefused(), Machines: []wire.Machine{}})
	if err != nil {
		return err
	}
	out.Write(head[:len(head)-len("]}")])
	sep := ""
	err = a.Store.EachMachine(c.ctx(), func(r *machine.Row) error {
		m := a.view(r)
		if !f.match(&m) {
			return nil
		}
		b, err := json.Marshal(m)
		if err != nil {
			return err
		}
		io.WriteString(out, sep)
		sep = ","
		_, err = out.Write(b)
		return err
	})
	if err != nil {
		a.Log.Warn("a list was cut short", "error", addrfree.Scrub(err.Error()))
		panic(http.ErrAbortHandler) // the client must not take it for a whole one
	}
	io.WriteString(out, "]}\n")
	out.Flush()
	return nil
}

// maxCandidates bounds the answer to an ambiguous prefix.
const maxCandidates = 100

// resolve finds what a MACHINE argument may mean: an exact id, else exact
// names, else everything that it is a prefix of.
func (a *API) resolve(c *call, f filter) ([]wire.Machine, error) {
	if wire.IsMachineID(f.Match) {
		r, err := a.Store.Machine(c.ctx(), f.Match)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return []wire.Machine{}, nil
		case err != nil:
			return nil, err
		}
		if m := a.view(r); f.match(&m) {
			return []wire.Machine{m}, nil
		}
		return []wire.Machine{}, nil
	}
	exact, prefix := []wire.Machine{}, []wire.Machine{}
	err := a.Store.EachMachine(c.ctx(), func(r *machine.Row) error {
		isName := r.Name == f.Match
		if !isName && !strings.HasPrefix(r.Name, f.Match) && !strings.HasPrefix(r.ID, f.Match) {
			return nil
		}
		m := a.view(r)
		switch {
		case !f.match(&m):
		case isName && len(exact) < maxCandidates:
			exact = append(exact, m)
		case len(prefix) < maxCandidates:
			prefix = append(prefix, m)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(exact) > 0 {
		return exact, nil
	}
	return prefix, nil
}

// id is the machine that the path names.
func (c *call) id() (string, error) {
	id := c.r.PathValue("id")
	if !wire.IsMachineID(id) {
		return "", bad("%.64q is no machine id", id)
	}
	return id, nil
}

func (a *API) machine(c *call) error {
	id, err := c.id()
	if err != nil {
		return err
	}
	r, err := a.Store.Machine(c.ctx(), id)
	if err != nil {
		return notFound(err, id)
	}
	return c.answer(a.view(r))
}

func notFound(err error, id string) error {
	if errors.Is(err, store.ErrNotFound) {
		return &refusal{http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: "there is no machine " + id}}
	}
	return err
}

// admit is POST /v1/machines. Only digests arrive: the plane never holds what
// it could leak.
func (a *API) admit(c *call) error {
	var req wire.AdmitRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	inst, err := secret.ParseDigest(req.InstallationDigest)
	if err != nil || inst.IsZero() {
		return bad("installation_digest: a digest is 64 hexadecimal digits")
	}
	cred, err := secret.ParseDigest(req.CredentialDigest)
	if err != nil || cred.IsZero() {
		return bad("credential_digest: a digest is 64 hexadecimal digits")
	}
	if cred == (secret.Text{}).Digest() || inst == (secret.Text{}).Digest() {
		return bad("a digest of nothing was sent") // R24: an empty secret fails closed
	}
	if req.Name != "" {
		if err := checkName(req.Name); err != nil {
			return err
		}
	}
	if err := checkLabels(req.Labels, nil); err != nil {
		return err
	}
	if req.Scope != "" && req.Scope != "user" && req.Scope != "system" {
		return bad("scope is user or system, not %.64q", req.Scope)
	}
	if req.ServiceManager != "" && wire.CheckName(req.ServiceManager) != nil {
		return bad("service_manager: %s", wire.ErrName)
	}
	if err := a.touched(c, req.Touch, wire.AdmitSubject(inst.Hex(), cred.Hex())); err != nil {
		return err
	}
	did, err := a.Store.Admit(c.ctx(), machine.Admission{
		By: c.by(), Installation: inst, Credential: cred, Name: req.Name, Labels: req.Labels,
		Scope: req.Scope, ServiceManager: req.ServiceManager,
	}, a.Now())
	if err != nil {
		return err
	}
	r := did.Row
	return c.answer(wire.AdmitAnswer{Gate: a.gateValue(),
		Machine: r.ID, Generation: r.Credential.Generation, Status: admission(did.Outcome), Name: r.Name, Owner: r.Owner,
	})
}

func admission(o identity.Admission) string {
	switch o {
	case identity.Made:
		return wire.AdmitNew
	case identity.Replaced:
		return wire.AdmitReplaced
	case identity.Same:
		return wire.AdmitSame
	default:
		return wire.AdmitLiving
	}
}

func checkName(name string) error {
	if err := wire.CheckName(name); err != nil {
		return bad("name: %s", err)
	}
	if addrfree.Shaped(name) {
		return bad("%q is shaped like a network address; the plane keeps none", name)
	}
	return nil
}

func checkLabels(set map[string]string, remove []string) error {
	if len(set) > machine.MaxLabels || len(remove) > machine.MaxLabels {
		return machine.ErrTooManyLabels
	}
	for k, v := range set {
		if wire.CheckName(k) != nil || wire.CheckLabelValue(v) != nil {
			return bad("label %.64q: %s", k, wire.ErrName)
		}
		if addrfree.Shaped(v) {
			return bad("label %s: %q is shaped like a network address; the plane keeps none", k, v)
		}
	}
	for _, k := range remove {
		if wire.CheckName(k) != nil {
			return bad("label %.64q: %s", k, wire.ErrName)
		}
		if _, ok := set[k]; ok {
			return bad("label %s is set and removed at once", k)
		}
	}
	return nil
}

// edit applies a change to the machine that the path names.
func (a *API) edit(c *call, ch store.Change) (*machine.Row, error) {
	id, err := c.id()
	if err != nil {
		return nil, err
	}
	ch.By, ch.At = c.by(), a.Now()
	r, err := a.Store.Edit(c.ctx(), id, ch)
	return r, notFound(err, id)
}

func (a *API) editAndShow(c *call, ch store.Change) error {
	r, err := a.edit(c, ch)
	if err != nil {
		return err
	}
	return c.answer(a.view(r))
}

func (a *API) remove(c *call) error {
	r, err := a.edit(c, store.Change{Delete: true})
	if err != nil {
		return err
	}
	return c.answer(wire.DeleteAnswer{Machine: r.ID, Name: r.Name, At: wire.Time{Time: r.Deleted.At}})
}

func (a *API) rename(c *call) error {
	var req wire.RenameRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	if err := checkName(req.Name); err != nil {
		return err
	}
	return a.editAndShow(c, store.Change{Rename: &req.Name})
}

// transfer is POST /v1/machines/{id}/transfer.
func (a *API) transfer(c *call) error {
	var req wire.TransferRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	if err := wire.CheckName(req.To); err != nil {
		return bad("to: %s", err)
	}
	return a.editAndShow(c, store.Change{Transfer: &req.To})
}

func (a *API) label(c *call) error {
	var req wire.LabelRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	if err := checkLabels(req.Set, req.Remove); err != nil {
		return err
	}
	return a.editAndShow(c, store.Change{Label: &store.LabelChange{Set: req.Set, Remove: req.Remove}})
}

// maxAge bounds older_than_s: nothing here is older.
const maxAge = 100 * 365 * 24 * time.Hour

// ask is POST /v1/machines/{id}/requests. A token needs the scope that the
// kind is named after.
func (a *API) ask(c *call) error {
	var req wire.AskRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	if req.Kind != wire.ScopeLogs && req.Kind != wire.ScopeRotate {
		return bad("kind is logs or rotate, not %.64q", req.Kind)
	}
	if c.who.Kind == "token" && !allowed(&Route{Who: Scoped, Scopes: []string{req.Kind}}, c.who) {
		return errForbidden
	}
	older := req.OlderThanS
	if !(older >= 0 && older <= maxAge.Seconds()) {
		return bad("older_than_s is from 0 to %g", maxAge.Seconds())
	}
	if older > 0 && req.Kind != wire.ScopeRotate {
		return bad("older_than_s goes with rotate")
	}
	rung, err := machine.ParseRung(req.CredentialKind)
	switch {
	case err != nil:
		return bad("credential_kind is %s or %s, not %.64q", wire.KindBearer, wire.KindMTLS, req.CredentialKind)
	case rung != identity.NoRung && req.Kind != wire.ScopeRotate:
		return bad("credential_kind goes with rotate")
	case rung == identity.MutualTLS && a.MTLSURL == "":
		return errNoMTLS
	}
	return a.editAndShow(c, store.Change{Ask: &machine.Wish{Kind: req.Kind, OlderThan: time.Duration(older * float64(time.Second)), Rung: rung}})
}
