package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/gate"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
)

// twoTokens is a gate that accepts versions 1 and 2, of which 1 retires.
func twoTokens(t testing.TB) (file string, g *gate.Gate, old, fresh string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "gate")
	must(t, gate.Make(file, 1))
	must(t, gate.Make(file+".secondary", 2))
	g = gate.New(file, "")
	f, err := g.Read()
	must(t, err)
	g.Hold(f)
	one, two := f.Holdings()
	s := rotation.State{Kind: wire.MaterialGate, Version: 2, Digest: two.Digest, Second: 1, SecondDigest: one.Digest, High: 2}
	g.Apply(s)
	return file, g, valueIn(t, file), valueIn(t, file+".secondary")
}

func valueIn(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	v, err := wire.ParseGate(string(b))
	must(t, err)
	return v.Value
}

// gatedWorld is a world behind a gate whose token is at version 1, with an
// engine that goes on when it is told to.
func gatedWorld(t *testing.T) (w *world, e *rotation.Engine, old string) {
	t.Helper()
	w = newWorld(t, machine.Policy{Interval: 30 * time.Second})
	file := filepath.Join(t.TempDir(), "gate")
	must(t, gate.Make(file, 1))
	g := gate.New(file, "")
	clock := func() time.Time { return w.now }
	e = &rotation.Engine{Kind: wire.MaterialGate, Store: w.store, Replica: "plane", Flat: w.api.Policy.Flat(), Log: hclog.NewNullLogger(), Now: clock,
		Material: gate.Material{Gate: g, Present: func(ctx context.Context, v string) (bool, error) { return Present(ctx, w.h, v) }}}
	e.Init()
	must(t, e.Reload(t.Context()))
	w.api = New(Config{Gate: g, Store: w.store, URL: "https://plane.example", Policy: w.api.Policy, Version: "1.0.0", Log: hclog.NewNullLogger(), Now: clock})
	w.api.Rotate(e)
	w.h = w.api.Handler()
	return w, e, valueIn(t, file)
}

var running = `{"lifecycle":{"state":"running"}}`

func (w *world) through(token, bearer string, seq string) *httptest.ResponseRecorder {
	return w.do("POST", wire.PathCheck, bearer, running, wire.HeaderCheck, "instance=a; seq="+seq, wire.HeaderGate, token)
}

// All machine endpoints stand behind the gate but the one that lets a sleeper in
// again, nothing else does, and what is refused there looks like every refusal. // R22, R26
func TestWhatStandsBehindTheGate(t *testing.T) {
	w, _, old := gatedWorld(t)
	same := `{"error":{"code":"unauthorized"}}` + "\n"
	behind := 0
	for _, rt := range Routes {
		path := strings.NewReplacer("{id}", w.id, "{kind}", "gate", "{version}", "1", "{name}", "x", "{fingerprint}", "SHA256:x").Replace(rt.Path)
		bearer := w.creds["owner"]
		if rt.Who.own() {
			bearer = w.creds["machine"]
		}
		rec := w.do(rt.Method, path, bearer, "", wire.HeaderCheck, "instance=a; seq=1")
		if !rt.Who.gated() {
			if rt.Who == Machine || rt.Who == Enrolling {
				t.Errorf("%s %s is not behind the gate", rt.Method, rt.Path)
			}
			continue
		}
		behind++
		if rec.Code != http.StatusUnauthorized || rec.Body.String() != same {
			t.Errorf("%s %s without a token: %d %s", rt.Method, rt.Path, rec.Code, rec.Body)
		}
		// A body that is far too large is not even looked at.
		if rec := w.do(rt.Method, path, bearer, strings.Repeat("x", 1<<20)); rec.Code != http.StatusUnauthorized {
			t.Errorf("%s %s with a large body: %d", rt.Method, rt.Path, rec.Code)
		}
	}
	if behind < 4 {
		t.Fatalf("%d routes stand behind the gate", behind)
	}
	for _, wrong := range []string{"", "x", old + "x", old[1:], strings.ToUpper(old), "1 " + old, w.key.Reveal(), strings.Repeat("x", 8000)} {
		if rec := w.through(wrong, w.creds["machine"], "1"); rec.Code != http.StatusUnauthorized || rec.Body.String() != same {
			t.Errorf("with a wrong token: %d %s", rec.Code, rec.Body)
		}
	}
	// Of two headers something in front may have looked at the other.
	r := httptest.NewRequest("POST", wire.PathCheck, strings.NewReader(running))
	r.Header[wire.HeaderGate] = []string{old, old}
	rec := httptest.NewRecorder()
	if w.h.ServeHTTP(rec, r); rec.Code != http.StatusUnauthorized {
		t.Errorf("with two headers: %d", rec.Code)
	}
	if rec := w.through(old, w.creds["machine"], "1"); rec.Code != http.StatusOK || strings.Contains(rec.Body.String(), "want") {
		t.Errorf("with the token: %d %s", rec.Code, rec.Body)
	}
	w.loginAs("owner") // one of the requests above was a logout
	var list wire.Machines
	if rec := w.do("GET", wire.PathMachines, w.creds["owner"], ""); json.Unmarshal(rec.Body.Bytes(), &list) != nil || list.GateRefused == nil || list.GateRefused.Requests < 10 {
		t.Errorf("the list says %+v", list.GateRefused)
	}
	if n, since := w.api.Gate.Refused.Now(w.now, time.Minute); n < 10 || since.IsZero() {
		t.Errorf("%d refusals were counted, since %v", n, since)
	}
}

// Fetching material takes a live credential and no token, names versions by
// number, and tells nobody else anything. // R26
func TestASleeperFetchesInFrontOfTheGate(t *testing.T) {
	w, _, old := gatedWorld(t)
	path := func(version string) string { return wire.PathMaterial + "/gate/" + version }
	rec := w.do("GET", path("1"), w.creds["machine"], "")
	var m wire.Material
	if rec.Code != http.StatusOK || json.Unmarshal(rec.Body.Bytes(), &m) != nil || m.Version != 1 || m.Value != old || m.Kind != wire.MaterialGate {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	for _, version := range []string{"0", "2", "7"} {
		rec = w.do("GET", path(version), w.creds["machine"], "")
		var e wire.Error
		if rec.Code != http.StatusNotFound || json.Unmarshal(rec.Body.Bytes(), &e) != nil || e.Error.Want[wire.MaterialGate] != 1 || strings.Contains(rec.Body.String(), old) {
			t.Errorf("version %s: %d %s", version, rec.Code, rec.Body)
		}
	}
	for _, p := range []string{path("x"), path("-1x"), wire.PathMaterial + "/other/1"} {
		if rec := w.do("GET", p, w.creds["machine"], ""); rec.Code != http.StatusNotFound || strings.Contains(rec.Body.String(), "want") {
			t.Errorf("%s: %d %s", p, rec.Code, rec.Body)
		}
	}
	for name, bearer := range map[string]string{"nobody": "", "a person": w.creds["owner"], "a token": w.creds["token:all"], "another machine's": w.mine + "." + w.key.Reveal()} {
		if rec := w.do("GET", path("1"), bearer, "", wire.HeaderGate, old); rec.Code != http.StatusUnauthorized || strings.Contains(rec.Body.String(), old) {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
	if rec := w.do("DELETE", wire.PathMachines+"/"+w.id, w.creds["owner"], ""); rec.Code != http.StatusOK {
		t.Fatal(rec.Body)
	}
	if rec := w.do("GET", path("1"), w.creds["machine"], ""); rec.Code != http.StatusGone {
		t.Errorf("a deleted machine: %d %s", rec.Code, rec.Body)
	}
}

func (w *world) rotation(action string, leave ...string) wire.MaterialRotation {
	w.t.Helper()
	b, err := json.Marshal(wire.RotationRequest{Action: action, Leave: leave})
	must(w.t, err)
	rec := w.do("POST", wire.PathRotations+"/gate", w.creds["owner"], string(b))
	var doc wire.MaterialRotation
	if rec.Code != http.StatusOK || json.Unmarshal(rec.Body.Bytes(), &doc) != nil {
		w.t.Fatalf("%s: %d %s", action, rec.Code, rec.Body)
	}
	return doc
}

func (w *world) status() wire.MaterialRotation {
	w.t.Helper()
	rec := w.do("GET", wire.PathRotations+"/gate", w.creds["token:read"], "")
	var doc wire.MaterialRotation
	if rec.Code != http.StatusOK || json.Unmarshal(rec.Body.Bytes(), &doc) != nil {
		w.t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	return doc
}

// A rotation names a machine that has not moved and a caller that is none, and
// narrows past neither until both were left; then the old token is refused. // R26
func TestStragglersHoldNarrowingUpUntilTheyAreLeft(t *testing.T) {
	w, e, old := gatedWorld(t)
	mine := w.mine
	w.through(old, w.creds["machine"], "1")
	if doc := w.status(); doc.State != wire.RotationIdle || doc.Version != 1 {
		t.Fatalf("%+v", doc)
	}
	w.rotation(wire.RotationStart)
	e.Pass(t.Context())
	doc := w.status()
	if doc.Step != wire.StepRoll || doc.From != 1 || doc.To != 2 || doc.Machines != (wire.RotationMachines{All: 2}) || len(doc.Stragglers) != 2 {
		t.Fatalf("%+v", doc)
	}
	rec := w.through(old, w.creds["machine"], "2")
	if !strings.Contains(rec.Body.String(), `"want":{"gate":2}`) {
		t.Fatalf("%s", rec.Body)
	}
	fetched := w.do("GET", wire.PathMaterial+"/gate/2", w.creds["machine"], "")
	var m wire.Material
	must(t, json.Unmarshal(fetched.Body.Bytes(), &m))
	if rec = w.through(m.Value, w.creds["machine"], "3"); rec.Code != http.StatusOK || strings.Contains(rec.Body.String(), "want") {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	// Somebody who is no machine uses the old token, at two paths.
	w.through(old, "", "1")
	w.do("POST", wire.PathEnroll, "", "{}", wire.HeaderGate, old)
	w.now = w.now.Add(10 * time.Minute)
	w.through(old, "x", "1")
	e.Pass(t.Context())
	doc = w.status()
	if doc.Step != wire.StepRoll || doc.Machines != (wire.RotationMachines{All: 2, Moved: 1}) || doc.Uses.Count != 4 {
		t.Fatalf("%+v", doc)
	}
	if len(doc.Stragglers) != 2 || doc.Stragglers[0].Machine != mine || doc.Stragglers[1].Endpoint != wire.PathCheck || doc.Stragglers[1].Uses != 2 {
		t.Fatalf("%+v", doc.Stragglers)
	}
	if doc = w.rotation(wire.RotationLeave, mine); doc.Machines.Left != 1 || !doc.Stragglers[0].Left {
		t.Fatalf("%+v", doc)
	}
	for range 3 { // the caller goes on
		e.Pass(t.Context())
		w.now = w.now.Add(time.Minute)
		w.through(old, "x", "1")
	}
	if e.Pass(t.Context()); w.status().Step != wire.StepProve {
		t.Fatalf("%+v", w.status())
	}
	w.rotation(wire.RotationLeave, wire.PathCheck)
	if e.Pass(t.Context()); w.status().State != wire.RotationDone {
		t.Fatalf("%+v", w.status())
	}
	if doc = w.status(); doc.Version != 2 || doc.ProvedAt == nil || len(doc.Leave) != 2 {
		t.Fatalf("%+v", doc)
	}
	if rec := w.through(old, w.creds["machine"], "4"); rec.Code != http.StatusUnauthorized {
		t.Errorf("the retired token: %d", rec.Code)
	}
	if rec := w.through(m.Value, w.creds["machine"], "5"); rec.Code != http.StatusOK {
		t.Errorf("the new token: %d", rec.Code)
	}
	if got := w.audited("rotation."); strings.Join(got, " ") != "adopt start roll leave prove leave narrow proved done" {
		t.Errorf("the audit says %v", got)
	}
}

// audited are the actions of the log that begin with a word.
func (w *world) audited(prefix string) (actions []string) {
	w.t.Helper()
	rec := w.do("GET", wire.PathAudit, w.creds["owner"], "")
	var doc wire.Audit
	must(w.t, json.Unmarshal(rec.Body.Bytes(), &doc))
	for _, e := range doc.Entries {
		if rest, ok := strings.CutPrefix(e.Action, prefix); ok {
			actions = append(actions, rest)
		}
	}
	return actions
}

func TestWhoSteersARotation(t *testing.T) { // R8, R26
	w, _, _ := gatedWorld(t)
	for kind, want := range map[string]int{"nobody": 401, "member": 403, "token:read": 403, "token:rotate": 200, "owner": 200, "machine": 401} {
		if rec := w.do("POST", wire.PathRotations+"/gate", w.creds[kind], `{"action":"start"}`); rec.Code != want {
			t.Errorf("%s: %d %s", kind, rec.Code, rec.Body)
		}
	}
	for body, want := range map[string]int{
		`{"action":"widen"}`: 400, `{}`: 400, `{"action":"leave"}`: 400, `{"action":"leave","leave":["web-1"]}`: 400,
		`{"action":"leave","leave":["/healthz"]}`: 400, `{"action":"leave","leave":["` + wire.NewMachineID() + `"]}`: 404,
		`{"action":"abort","leave":["` + w.id + `"]}`: 400, `{"action":"start","drill":true}`: 409, `{"action":"start","drill_s":5}`: 400,
		`{"action":"start","drill":true,"drill_s":1e9}`: 400, `{"action":"start","drill":true,"drill_s":-1}`: 400, `{"action":"start","to":"x"}`: 400,
		`{"action":"abort"}`: 200,
	} {
		if rec := w.do("POST", wire.PathRotations+"/gate", w.creds["owner"], body); rec.Code != want {
			t.Errorf("%s: %d %s", body, rec.Code, rec.Body)
		}
	}
	open := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	if rec := open.do("POST", wire.PathRotations+"/gate", open.creds["owner"], `{"action":"start"}`); rec.Code != http.StatusConflict || !strings.Contains(rec.Body.String(), "planed gate new") {
		t.Errorf("without a gate: %d %s", rec.Code, rec.Body)
	}
	if rec := w.do("GET", wire.PathRotations+"/nothing", w.creds["owner"], ""); rec.Code != http.StatusNotFound {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// An admission brings the token that is to be held from then on. // R26
func TestAnAdmissionBringsTheToken(t *testing.T) {
	w, e, old := gatedWorld(t)
	admit := func() *wire.CredentialGate {
		t.Helper()
		rec := w.do("POST", wire.PathMachines, w.creds["owner"], `{"installation_digest":"`+secret.New("").Digest().Hex()+`","credential_digest":"`+secret.New("").Digest().Hex()+`"}`)
		var a wire.AdmitAnswer
		if rec.Code != http.StatusOK || json.Unmarshal(rec.Body.Bytes(), &a) != nil {
			t.Fatal(rec.Code, rec.Body)
		}
		return a.Gate
	}
	if g := admit(); g == nil || g.Version != 1 || g.Value != old {
		t.Fatalf("%+v", g)
	}
	w.rotation(wire.RotationStart)
	if g := admit(); g.Version != 1 {
		t.Fatalf("while it widens: version %d", g.Version)
	}
	e.Pass(t.Context())
	if g := admit(); g.Version != 2 || g.Value == old {
		t.Fatalf("while it rolls: version %d", g.Version)
	}
}

// A plane whose own gate does not answer as it should never proves anything. // R26
func TestPresentTellsTheGateFromWhatIsBehindIt(t *testing.T) {
	w, _, old := gatedWorld(t)
	if refused, err := Present(t.Context(), w.h, old); refused || err != nil {
		t.Errorf("%v, %v", refused, err)
	}
	if refused, err := Present(t.Context(), w.h, "wrong"); !refused || err != nil {
		t.Errorf("%v, %v", refused, err)
	}
	if n, _ := w.api.Gate.Refused.Now(w.now, time.Minute); n != 0 {
		t.Errorf("%d of the plane's own tries were counted", n)
	}
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusOK, http.StatusInternalServerError} {
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if _, err := Present(t.Context(), h, old); err == nil || errors.Is(err, errUnauthorized) {
			t.Errorf("status %d: %v", status, err)
		}
	}
}
