package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/store"
)

// Drills are bounded: two values live for as long as one runs.
const (
	drillFor  = 10 * time.Minute
	drillMost = 24 * time.Hour
)

// Rotate gives the interface an engine to steer. It is called before Handler.
func (a *API) Rotate(e *rotation.Engine) {
	a.engines[e.Kind] = e
	a.metrics.rotates(e, a.Now)
}

func (a *API) engine(c *call) (*rotation.Engine, error) {
	kind := c.r.PathValue("kind")
	e := a.engines[kind]
	switch {
	case e != nil:
		return e, nil
	case kind == wire.MaterialGate:
		return nil, &refusal{http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict, Message: "this plane has no gate",
			Hint: "planed gate new FILE makes a token; planed serve --gate-token-file FILE puts it in front of the machine endpoints"}}
	}
	if kind == wire.MaterialTrust {
		return nil, conflict("this plane presents a certificate that another authority issued")
	}
	return nil, &refusal{http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: "there is no such material"}}
}

// rotation is GET /v1/rotations/{kind}.
func (a *API) rotation(c *call) error {
	e, err := a.engine(c)
	if err != nil {
		return err
	}
	if c.who.Role == wire.RoleOwner && a.Place != nil && e.Kind == wire.MaterialURL && a.Place.Heard(c.r.Host) {
		e.Kick()
	}
	s, err := a.Store.RotationState(c.ctx(), e.Kind)
	if err != nil {
		return err
	}
	doc, err := a.rotationView(c.ctx(), e, s)
	if err != nil {
		return err
	}
	return c.answer(doc)
}

// steer is POST /v1/rotations/{kind}: an owner, or an owner's token.
func (a *API) steer(c *call) error {
	if c.who.Role != wire.RoleOwner {
		return errForbidden
	}
	e, err := a.engine(c)
	if err != nil {
		return err
	}
	var req wire.RotationRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	wish, err := a.wish(c, e.Kind, req)
	if err != nil {
		return err
	}
	s, err := e.Steer(c.ctx(), c.with, wish)
	if err != nil {
		return err
	}
	doc, err := a.rotationView(c.ctx(), e, s)
	if err != nil {
		return err
	}
	return c.answer(doc)
}

type change = func(*rotation.State) ([]audit.Event, error)

// wish turns a request into a change of the state.
func (a *API) wish(c *call, kind string, req wire.RotationRequest) (change, error) {
	by, now := c.by().Actor, a.Now()
	signing, err := a.signing(c, kind, req)
	if err != nil {
		return nil, err
	}
	for _, who := range req.Leave {
		if err := a.leaves(c.ctx(), who); err != nil {
			return nil, err
		}
	}
	switch req.Action {
	case wire.RotationStart:
		b := rotation.Begin{By: by, Drill: req.Drill, Duration: drillFor, Signing: signing}
		if req.DrillS != 0 {
			b.Duration = time.Duration(req.DrillS * float64(time.Second))
		}
		if b.Duration <= 0 || b.Duration > drillMost || req.DrillS != 0 && !req.Drill {
			return nil, bad("drill_s is how long a drill lasts, at most %d seconds", int(drillMost.Seconds()))
		}
		return func(s *rotation.State) ([]audit.Event, error) {
			ev, err := s.Start(b, now)
			if err != nil || len(req.Leave) == 0 {
				return ev, err
			}
			more, err := s.Leave(by, req.Leave, now)
			return append(ev, more...), err
		}, nil
	case wire.RotationLeave:
		if len(req.Leave) == 0 {
			return nil, bad("leave names nobody")
		}
		return func(s *rotation.State) ([]audit.Event, error) { return s.Leave(by, req.Leave, now) }, nil
	case wire.RotationAbort:
		if len(req.Leave) > 0 {
			return nil, bad("leave goes with start and with leave")
		}
		return func(s *rotation.State) ([]audit.Event, error) { return s.Abort(by, signing, now) }, nil
	}
	return nil, bad("%.32q is no action", req.Action)
}

// leaves refuses a name that names nobody who could hold narrowing up.
func (a *API) leaves(ctx context.Context, who string) error {
	if strings.HasPrefix(who, "/") {
		if slices.Contains(a.gated, who) {
			return nil
		}
		return bad("%.64q is no path behind the gate", who)
	}
	if !wire.IsMachineID(who) {
		return bad("%.64q is no machine id", who)
	}
	_, err := a.Store.Machine(ctx, who)
	return notFound(err, who)
}

// rotationView is the state as people see it.
func (a *API) rotationView(ctx context.Context, e *rotation.Engine, s rotation.State) (wire.MaterialRotation, error) {
	now := a.Now()
	doc := wire.MaterialRotation{Schema: wire.SchemaMaterialRotation, Kind: e.Kind, State: wire.RotationIdle, Version: s.Version,
		Target: s.Target(), Retiring: s.Retiring(), Problem: e.Problem(),
		Leave: []string{}, Stragglers: []wire.RotationStraggler{}, Missed: []wire.RotationStraggler{}, Replicas: []wire.RotationReplica{}}
	tally := a.Store.Tally(e.Kind, s.Moved, s.Left)
	callers := a.Store.Callers(e.Kind)
	doc.Machines = wire.RotationMachines{All: tally.All, Moved: tally.Moved, Left: tally.Left}
	f := rotation.Facts{Behind: tally.Behind, Last: tally.Last, Since: a.Store.Since(), Flat: e.Flat}
	doc.Uses = wire.RotationUses{Count: tally.Uses, NeededS: e.Flat.Seconds()}
	for _, c := range callers {
		doc.Uses.Count += c.Uses
		if !s.Left(c.Path) && c.Last.After(f.Last) {
			f.Last = c.Last
		}
	}
	doc.Uses.LastAt = wire.TimeOf(f.Last)
	replicas, err := a.Store.Replicas(ctx, e.Kind, now.Add(-rotation.ReplicaLives))
	if err != nil {
		return doc, err
	}
	for _, r := range replicas {
		doc.Replicas = append(doc.Replicas, wire.RotationReplica{ID: r.ID, Versions: r.Versions, At: wire.Time{Time: r.At}})
	}
	a.signedView(&doc, s)
	r := s.Run
	if r == nil {
		return doc, nil
	}
	doc.State, doc.From, doc.To, doc.By, doc.Drill, doc.Back = r.Outcome, r.From, r.To, r.By, r.Drill, r.Back
	doc.StartedAt, doc.StepAt, doc.ProvedAt, doc.EndedAt = wire.TimeOf(r.StartedAt), wire.TimeOf(r.StepAt), wire.TimeOf(r.ProvedAt), wire.TimeOf(r.EndedAt)
	doc.Leave = append(doc.Leave, r.Leave...)
	if !s.Running() {
		return doc, a.missed(ctx, &doc, r.Missed)
	}
	doc.State, doc.Step = wire.RotationRunning, r.Step
	quiet := now.Sub(s.Quiet(f))
	doc.Uses.FlatS = max(0, quiet.Round(time.Millisecond).Seconds())
	recent := now.Add(-e.Flat)
	if err := a.stragglers(ctx, &doc, s, recent); err != nil {
		return doc, err
	}
	for _, c := range callers {
		if c.Last.After(recent) {
			doc.Stragglers = append(doc.Stragglers, wire.RotationStraggler{Endpoint: c.Path, Uses: c.Uses, LastUsed: wire.TimeOf(c.Last), Left: s.Left(c.Path)})
		}
	}
	if r.Back {
		if err := a.missed(ctx, &doc, r.Missed); err != nil {
			return doc, err
		}
	}
	doc.Waiting = waitsFor(r, f, quiet)
	if e.Kind == wire.MaterialURL && r.Step == wire.StepWiden {
		doc.Waiting = "an owner to reach the plane at " + doc.ToValue
	}
	return doc, nil
}

func waitsFor(r *rotation.Run, f rotation.Facts, quiet time.Duration) string {
	switch r.Step {
	case wire.StepWiden:
		return "every plane that runs to accept both versions"
	case wire.StepRoll:
		return "machines to present the new version"
	case wire.StepProve:
		if f.Behind > 0 {
			return "machines to present the new version"
		}
		return "the retiring version to have been unused for " + f.Flat.String() + "; so far " + max(0, quiet).Round(time.Second).String()
	}
	return "every plane that runs to refuse the retired version and to erase it"
}

// stragglers names the machines that hold narrowing up, or would were they not
// left.
func (a *API) stragglers(ctx context.Context, doc *wire.MaterialRotation, s rotation.State, recent time.Time) error {
	full := errors.New("enough")
	err := a.Store.EachMachine(ctx, func(r *machine.Row) error {
		if s.Moved(r.Holds(doc.Kind)) && !r.UsesOf(doc.Kind).Last.After(recent) {
			return nil
		}
		if len(doc.Stragglers) == rotation.MaxNamed {
			return full
		}
		doc.Stragglers = append(doc.Stragglers, a.straggler(doc.Kind, r, s.Left(r.ID)))
		return nil
	})
	if errors.Is(err, full) {
		return nil
	}
	return err
}

func (a *API) straggler(kind string, r *machine.Row, left bool) wire.RotationStraggler {
	m, uses := a.view(r), r.UsesOf(kind)
	return wire.RotationStraggler{Machine: m.ID, Name: m.Name, Presence: m.Presence, LastCheck: m.LastCheck, Version: r.Holds(kind),
		Uses: uses.Count, LastUsed: wire.TimeOf(uses.Last), Left: left}
}

// missed names those that a drill found.
func (a *API) missed(ctx context.Context, doc *wire.MaterialRotation, names []string) error {
	for _, who := range names {
		if strings.HasPrefix(who, "/") {
			doc.Missed = append(doc.Missed, wire.RotationStraggler{Endpoint: who})
			continue
		}
		r, err := a.Store.Machine(ctx, who)
		var gone *store.GoneError
		switch {
		case errors.Is(err, store.ErrNotFound), errors.As(err, &gone):
			continue
		case err != nil:
			return err
		}
		doc.Missed = append(doc.Missed, a.straggler(doc.Kind, r, false))
	}
	return nil
}
