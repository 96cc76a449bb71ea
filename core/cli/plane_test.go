package cli

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fakePlane answers as a plane does, from values that stand still.
type fakePlane struct {
	*httptest.Server
	t    *testing.T
	home string

	mu       sync.Mutex
	machines []wire.Machine
	deleted  map[string]wire.Deleted
	audit    []wire.AuditEntry
	head     *wire.AuditHead // instead of the last entry
	tokens   []wire.Token
	refuse   map[string]int // a path that is refused, with this status
	asked    []string       // what changed, in order
}

const (
	idWeb  = "m_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	idWeb2 = "m_abbbbbbbbbbbbbbbbbbbbbbbbb"
	idNew  = "m_cccccccccccccccccccccccccc"
	idGone = "m_dddddddddddddddddddddddddd"
)

func at(s string) *wire.Time {
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return &wire.Time{Time: v}
}

func ptr[T any](v T) *T { return &v }

func sampleMachines() []wire.Machine {
	return []wire.Machine{
		{ID: idWeb, Name: "web-1", Owner: "dana", Labels: map[string]string{"env": "prod", "tier": "front"}, Presence: wire.Present,
			LastCheck: at("2026-01-02T03:04:05Z"), LastCheckAgeS: ptr(4.2), IntervalS: 30, Accepting: true,
			Lifecycle:  wire.MachineLifecycle{State: wire.LifecycleRunning, Said: ptr("running"), Since: at("2026-01-01T00:00:00Z")},
			Readiness:  wire.MachineReadiness{State: wire.Ready, Blockers: []wire.Blocker{}, At: at("2026-01-02T03:04:05Z")},
			Credential: wire.MachineCredential{Kind: "bearer", Generation: 3, IssuedAt: at("2026-01-01T00:00:00Z")},
			Agent:      wire.MachineAgent{Version: "1.4.0", OS: "linux", Arch: "amd64", Scope: "user", ServiceManager: "systemd"}},
		// What a machine says of itself tries to paint the terminal.
		{ID: idWeb2, Name: "web-with-a-name-that-goes-on-and-on-for-sixty-three-characters-x", Owner: "somebody\x1b]0;owned\x07", Labels: map[string]string{},
			Presence: wire.Absent, LastCheck: at("2026-01-01T03:04:05Z"), LastCheckAgeS: ptr(200000.0), IntervalS: 30,
			Lifecycle: wire.MachineLifecycle{State: wire.LifecycleUnknown, Said: ptr("running"), Since: at("2026-01-01T00:00:00Z")},
			Readiness: wire.MachineReadiness{State: wire.Blocked, At: at("2026-01-01T03:04:05Z"), Blockers: []wire.Blocker{
				{Code: "linger_disabled", Severity: wire.SeverityBlock, Detail: "\x1b[2Jthe service ends with the login", Remedy: "loginctl enable-linger", Since: at("2026-01-01T00:00:00Z")},
				{Code: "disk_low", Severity: wire.SeverityBlock, Detail: "1 % is free", Remedy: "", Since: at("2026-01-01T00:00:00Z")}}},
			Credential: wire.MachineCredential{Kind: "bearer", Generation: 1, NextPending: true}, CloneSuspected: true,
			Agent: wire.MachineAgent{Version: "1.3.0\u202e", OS: "linux", Arch: "arm64"}},
		{ID: idNew, Owner: "dana", Labels: map[string]string{}, Presence: wire.Never,
			Lifecycle: wire.MachineLifecycle{State: wire.LifecycleNever}, Readiness: wire.MachineReadiness{State: wire.ReadinessUnknown, Blockers: []wire.Blocker{}},
			Credential: wire.MachineCredential{Kind: "bearer", Generation: 1}},
	}
}

// chain makes entries that follow each other.
func chain(n int) []wire.AuditEntry {
	var out []wire.AuditEntry
	prev := strings.Repeat("0", 64)
	for i := range n {
		e := wire.AuditEntry{Seq: uint64(i + 1), At: *at("2026-01-02T03:04:05Z"), Actor: "person:dana", Action: "machine.rename",
			Subject: "machine:" + idWeb, Detail: map[string]string{"to": fmt.Sprintf("web-%d", i+1), "from": "box"}, Prev: prev}
		e = seal(e)
		out, prev = append(out, e), e.Hash
	}
	return out
}

func newFake(t *testing.T) *fakePlane {
	t.Helper()
	p := &fakePlane{t: t, home: t.TempDir(), machines: sampleMachines(), audit: chain(3), refuse: map[string]int{},
		deleted: map[string]wire.Deleted{idGone: {Machine: idGone, Name: "old", At: *at("2026-01-02T03:04:05Z"), By: "person:dana", LastPresented: at("2026-01-02T03:05:00Z")}},
		tokens: []wire.Token{
			{Name: "ci", Owner: "dana", Scopes: []string{"read", "rotate"}, CreatedAt: *at("2026-01-01T00:00:00Z"), ExpiresAt: *at("2026-04-01T00:00:00Z")},
			{Name: "old", Owner: "dana", Scopes: []string{"read"}, CreatedAt: *at("2025-01-01T00:00:00Z"), ExpiresAt: *at("2025-04-01T00:00:00Z"), LastUsed: at("2025-03-31T00:00:00Z")}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PathMachines, p.list)
	mux.HandleFunc("GET "+wire.PathMachines+"/{id}", p.one)
	mux.HandleFunc("DELETE "+wire.PathMachines+"/{id}", p.remove)
	mux.HandleFunc("POST "+wire.PathMachines+"/{id}/rename", p.edit)
	mux.HandleFunc("POST "+wire.PathMachines+"/{id}/labels", p.edit)
	mux.HandleFunc("POST "+wire.PathMachines+"/{id}/requests", p.ask)
	mux.HandleFunc("GET "+wire.PathAudit, p.auditLog)
	mux.HandleFunc("GET "+wire.PathWhoami, func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, wire.Whoami{Schema: wire.SchemaWhoami, Plane: "https://plane", Kind: "person", Name: "dana", Role: "owner", Key: "SHA256:abc", ExpiresAt: at("2026-01-02T15:04:05Z")})
	})
	mux.HandleFunc("POST "+wire.PathLogout, func(w http.ResponseWriter, _ *http.Request) { p.did("logout"); p.answer(w, struct{}{}) })
	mux.HandleFunc("GET "+wire.PathTokens, func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, wire.Tokens{Schema: wire.SchemaTokens, Tokens: p.tokens})
	})
	mux.HandleFunc("POST "+wire.PathTokens, func(w http.ResponseWriter, r *http.Request) {
		var req wire.TokenRequest
		json.NewDecoder(r.Body).Decode(&req)
		p.did("token %s %v %g", req.Name, req.Scopes, req.ExpiresS)
		p.answer(w, wire.TokenCreated{Secret: "ft_thesecret", Token: wire.Token{Name: req.Name, Owner: "dana", Scopes: req.Scopes,
			CreatedAt: *at("2026-01-01T00:00:00Z"), ExpiresAt: *at("2026-04-01T00:00:00Z")}})
	})
	mux.HandleFunc("DELETE "+wire.PathTokens+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		p.did("token rm %s", r.PathValue("name"))
		p.answer(w, struct{}{})
	})
	mux.HandleFunc("POST "+wire.PathPersons, func(w http.ResponseWriter, r *http.Request) {
		var req wire.PersonRequest
		json.NewDecoder(r.Body).Decode(&req)
		p.did("person %s %s", req.Name, req.Role)
		p.answer(w, wire.PersonInvited{Name: req.Name, Role: req.Role, Invitation: "fi_thesecret", ExpiresAt: *at("2026-01-02T00:00:00Z")})
	})
	p.persons(mux)
	p.rotations(mux)
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer fs_session" {
			p.say(w, http.StatusUnauthorized, wire.ErrorDetail{Code: wire.CodeUnauthorized})
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if status := p.refuse[r.URL.Path]; status != 0 {
			p.say(w, status, wire.ErrorDetail{Code: wire.CodeForbidden, Message: "not \x1b[31myours"})
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw})
	_, err := p.dirs().SaveLogin(t.Context(), p.URL, string(roots), "SHA256:abc", wire.LoginAnswer{
		Token: "fs_session", Person: "dana", Role: "owner", ExpiresAt: wire.Time{Time: time.Now().Add(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *fakePlane) getenv(k string) string { return map[string]string{"HOME": p.home}[k] }
func (p *fakePlane) dirs() state.Dirs       { return state.DirsOf(p.getenv) }

func (p *fakePlane) kept() *state.Plane {
	p.t.Helper()
	k, err := p.dirs().OpenPlane("")
	if err != nil {
		p.t.Fatal(err)
	}
	return k
}

func (p *fakePlane) did(format string, args ...any) {
	p.asked = append(p.asked, fmt.Sprintf(format, args...))
}

func (p *fakePlane) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

func (p *fakePlane) say(w http.ResponseWriter, status int, d wire.ErrorDetail) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(wire.Error{Error: d})
}

func (p *fakePlane) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	out := []wire.Machine{}
	for i := range p.machines {
		p.hear(i)
		m := p.machines[i]
		match := q.Get("match")
		if match != "" && !strings.HasPrefix(m.ID, match) && !strings.HasPrefix(m.Name, match) {
			continue
		}
		if match == m.Name && match != "" {
			out = []wire.Machine{m}
			break
		}
		if q.Get("presence") != "" && q.Get("presence") != m.Presence || q.Get("selector") == "env=prod" && m.Labels["env"] != "prod" {
			continue
		}
		out = append(out, m)
	}
	p.answer(w, wire.Machines{Schema: wire.SchemaMachines, PlaneTime: *at("2026-01-02T03:04:09Z"), Machines: out})
}

func (p *fakePlane) find(w http.ResponseWriter, id string) int {
	for i, m := range p.machines {
		if m.ID == id {
			return i
		}
	}
	if d, ok := p.deleted[id]; ok {
		p.say(w, http.StatusGone, wire.ErrorDetail{Code: wire.CodeDeleted, Message: "deleted", Deleted: &d})
	} else {
		p.say(w, http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: "there is no machine " + id})
	}
	return -1
}

func (p *fakePlane) one(w http.ResponseWriter, r *http.Request) {
	if i := p.find(w, r.PathValue("id")); i >= 0 {
		p.hear(i)
		p.answer(w, p.machines[i])
	}
}

func (p *fakePlane) remove(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	i := p.find(w, id)
	if i < 0 {
		return
	}
	p.did("delete %s", id)
	d := wire.DeleteAnswer{Machine: id, Name: p.machines[i].Name, At: *at("2026-01-02T03:04:05Z")}
	p.machines = append(p.machines[:i:i], p.machines[i+1:]...)
	p.answer(w, d)
}

func (p *fakePlane) edit(w http.ResponseWriter, r *http.Request) {
	i := p.find(w, r.PathValue("id"))
	if i < 0 {
		return
	}
	var req struct {
		wire.RenameRequest
		wire.LabelRequest
	}
	json.NewDecoder(r.Body).Decode(&req)
	if req.Name != "" {
		p.machines[i].Name = req.Name
	}
	for k, v := range req.Set {
		p.machines[i].Labels[k] = v
	}
	for _, k := range req.Remove {
		delete(p.machines[i].Labels, k)
	}
	p.answer(w, p.machines[i])
}

// ask takes a request to rotate, at one and the same time.
func (p *fakePlane) ask(w http.ResponseWriter, r *http.Request) {
	i := p.find(w, r.PathValue("id"))
	if i < 0 {
		return
	}
	var req wire.AskRequest
	json.NewDecoder(r.Body).Decode(&req)
	p.did("%s %s %g", req.Kind, p.machines[i].ID, req.OlderThanS)
	m, now := &p.machines[i], at("2026-01-02T03:04:05Z")
	young := m.Credential.IssuedAt != nil && now.Sub(m.Credential.IssuedAt.Time).Seconds() < req.OlderThanS
	if m.Requests.Rotate == nil && !young {
		m.Requests.Rotate = now
	}
	p.answer(w, *m)
}

// hear is the machine's next check: one that is present rotates.
func (p *fakePlane) hear(i int) {
	if m := &p.machines[i]; m.Requests.Rotate != nil && m.Presence == wire.Present && hindered(*m) == nil {
		m.Requests.Rotate = nil
		m.Credential.Generation++
		m.Credential.IssuedAt = at("2026-01-02T03:05:00Z")
	}
}

func (p *fakePlane) auditLog(w http.ResponseWriter, r *http.Request) {
	a := wire.Audit{Schema: wire.SchemaAudit, Entries: []wire.AuditEntry{}, Head: wire.AuditHead{Hash: strings.Repeat("0", 64)}}
	for _, e := range p.audit {
		a.Head = wire.AuditHead{Seq: e.Seq, Hash: e.Hash}
		if id := r.URL.Query().Get("machine"); id == "" || e.Subject == "machine:"+id {
			a.Entries = append(a.Entries, e)
		}
	}
	if p.head != nil {
		a.Head = *p.head
	}
	p.answer(w, a)
}

// run is a whole fleet in this process.
func (p *fakePlane) run(args ...string) (out, errOut string, exit int) {
	p.t.Helper()
	return p.runWith("", args...)
}

func (p *fakePlane) runWith(stdin string, args ...string) (out, errOut string, exit int) {
	p.t.Helper()
	var o, e bytes.Buffer
	exit = Main(append([]string{"fleet"}, args...), command.IO{Stdin: strings.NewReader(stdin), Stdout: &o, Stderr: &e, Getenv: p.getenv}, "1.2.3")
	return o.String(), e.String(), exit
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got:\n%s\nwant:\n%s", path, got, want)
	}
}
