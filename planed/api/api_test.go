package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
	"fleet.example/fleet/planed/store/bolt"
)

var update = flag.Bool("update", false, "write the golden files anew")

// world is an interface over a store with one of every kind of principal.
type world struct {
	t     testing.TB
	api   *API
	h     http.Handler
	now   time.Time
	store *bolt.Store
	creds map[string]string // kind of principal → bearer value
	id    string            // a machine of the owner's, and its credential
	key   secret.Text
	mine  string // a machine of the member's
}

func newWorld(t testing.TB, policy machine.Policy) *world {
	t.Helper()
	w := &world{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), creds: map[string]string{"nobody": ""}}
	clock := func() time.Time { return w.now }
	st, err := bolt.Open(filepath.Join(t.TempDir(), "db"), bolt.Options{Create: true, Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	w.store = st
	w.api = New(Config{Store: st, URL: "https://plane.example", Policy: policy, Version: "1.0.0", Log: hclog.NewNullLogger(), Now: clock,
		Certificates: anAuthority(t), MTLSURL: "https://plane.example:9443"})
	w.h = w.api.Handler()
	for _, person := range []string{"owner", "member"} { // in order, which the audit shows
		role := map[string]string{"owner": wire.RoleOwner, "member": wire.RoleMember}[person]
		inv, sess := secret.New("fi_"), secret.New("fs_")
		must(t, st.Invite(t.Context(), store.Invitation{Actor: "local:init", Digest: inv.Digest(), Person: person, Role: role, At: w.now, ExpiresAt: w.now.Add(time.Hour)}))
		_, err := st.Login(t.Context(), store.Login{Fingerprint: "SHA256:" + person, Key: "k", Invitation: inv.Digest(), Session: sess.Digest(), At: w.now, ExpiresAt: w.now.Add(sessionLife)})
		must(t, err)
		w.creds[person] = sess.Reveal()
	}
	for _, sc := range []string{wire.ScopeRead, wire.ScopeRotate, wire.ScopeOrder, wire.ScopeLogs, "all"} {
		scopes := []string{sc}
		if sc == "all" {
			scopes = []string{wire.ScopeRead, wire.ScopeRotate, wire.ScopeOrder, wire.ScopeLogs}
		}
		tok := secret.New("ft_")
		must(t, st.CreateToken(t.Context(), store.Token{Name: sc, Owner: "owner", Scopes: scopes, CreatedAt: w.now, ExpiresAt: w.now.Add(time.Hour)}, tok.Digest(), machine.By{Actor: "person:owner"}))
		w.creds["token:"+sc] = tok.Reveal()
	}
	w.id, w.key = w.admit("owner")
	w.mine, _ = w.admit("member")
	w.creds["machine"] = w.id + "." + w.key.Reveal()
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// loginAs opens a new session for a person who is there.
func (w *world) loginAs(person string) {
	w.t.Helper()
	sess := secret.New("fs_")
	_, err := w.store.Login(w.t.Context(), store.Login{Fingerprint: "SHA256:" + person, Key: "k", Session: sess.Digest(), At: w.now, ExpiresAt: w.now.Add(sessionLife)})
	must(w.t, err)
	w.creds[person] = sess.Reveal()
}

func (w *world) admit(person string) (string, secret.Text) {
	w.t.Helper()
	k := secret.New("fm_")
	a, err := w.store.Admit(w.t.Context(), machine.Admission{By: machine.By{Actor: "person:" + person, Person: person}, Installation: secret.New("").Digest(), Credential: k.Digest()}, w.now)
	must(w.t, err)
	return a.Row.ID, k
}

func (w *world) do(method, path, bearer, body string, header ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	w.h.ServeHTTP(rec, r)
	return rec
}

func (w *world) check(id string, k secret.Text, mark, body string) *httptest.ResponseRecorder {
	return w.do("POST", wire.PathCheck, id+"."+k.Reveal(), body, wire.HeaderCheck, mark)
}

// TestWhoMayCallWhat tries every route as every kind of principal. Allowed
// means that the answer is no 401 and no 403; what else it is, other tests
// say. // R8
func TestWhoMayCallWhat(t *testing.T) {
	persons := []string{"owner", "member"}
	read := append([]string{"token:read", "token:all"}, persons...)
	anyone := append([]string{"token:read", "token:rotate", "token:order", "token:logs", "token:all"}, persons...)
	may := map[string][]string{
		"GET /healthz":                                 {"*"},
		"GET /version":                                 {"*"},
		"POST /v1/check":                               {"machine"},
		"POST /v1/credential/rotate":                   {"machine"},
		"POST /v1/credential/certificate":              {}, // a machine's whose key is known, or that a person asked to have one
		"GET /v1/spiffe/bundle":                        {"*"},
		"GET /v1/material/{kind}/{version}":            {"machine"},
		"GET /v1/rotations/{kind}":                     read,
		"POST /v1/rotations/{kind}":                    {"owner", "token:rotate", "token:all"}, // the tokens are an owner's
		"POST /v1/enroll":                              {"*"},
		"POST /v1/enroll/poll":                         {}, // a poll secret's holder
		"POST /v1/enrollments/look":                    persons,
		"POST /v1/enrollments/approve":                 persons,
		"POST /v1/enrollments/deny":                    persons,
		"POST /v1/web/links":                           persons,
		"POST /v1/login/challenge":                     {"*"},
		"POST /v1/login":                               {"*"},
		"POST /v1/logout":                              persons,
		"GET /v1/whoami":                               anyone,
		"GET /v1/machines":                             read,
		"POST /v1/machines":                            persons,
		"GET /v1/machines/{id}":                        read,
		"DELETE /v1/machines/{id}":                     {"owner"}, // the machine is the owner's
		"POST /v1/machines/{id}/rename":                {"owner"},
		"POST /v1/machines/{id}/labels":                {"owner"},
		"POST /v1/machines/{id}/transfer":              {"owner"},
		"POST /v1/machines/{id}/requests":              {"owner", "token:rotate", "token:all"}, // a request to rotate
		"GET /v1/audit":                                read,
		"GET /v1/audit/head":                           read,
		"POST /v1/persons":                             {"owner"},
		"GET /v1/persons":                              persons,
		"GET /v1/persons/{name}":                       persons,
		"DELETE /v1/persons/{name}":                    {"owner"},
		"POST /v1/persons/{name}/lock":                 {"owner"},
		"POST /v1/persons/{name}/unlock":               {"owner"},
		"POST /v1/persons/{name}/keys":                 {"owner"}, // the person is another
		"DELETE /v1/persons/{name}/keys/{fingerprint}": {"owner"},
		"GET /v1/tokens":                               persons,
		"POST /v1/tokens":                              persons,
		"DELETE /v1/tokens/{name}":                     {"owner"}, // the token is the owner's
	}
	bodies := map[string]string{
		"POST /v1/check":                  `{"lifecycle":{"state":"running"}}`,
		"POST /v1/credential/rotate":      `{"generation":2,"digest":"` + secret.New("fm_").Digest().Hex() + `"}`,
		"POST /v1/credential/certificate": `{"csr":` + strconv.Quote(aRequest(t)) + `}`,
		"POST /v1/login":                  `{"url":"https://other.example"}`,
		"POST /v1/machines":               `{"installation_digest":"` + secret.New("").Digest().Hex() + `","credential_digest":"` + secret.New("").Digest().Hex() + `"}`,
		"POST /v1/machines/{id}/rename":   `{"name":"x"}`,
		"POST /v1/machines/{id}/labels":   `{"set":{"a":"b"}}`,
		"POST /v1/machines/{id}/requests": `{"kind":"rotate"}`,
		"POST /v1/machines/{id}/transfer": `{"to":"member"}`,
		"POST /v1/rotations/{kind}":       `{"action":"start"}`,
		"POST /v1/persons/{name}/keys":    `{"public_key":"` + aKey + `"}`,
		"POST /v1/enrollments/look":       `{"code":"x"}`,
		"POST /v1/enrollments/approve":    `{"code":"x"}`,
		"POST /v1/enrollments/deny":       `{"code":"x"}`,
		"POST /v1/persons":                `{"name":"new","role":"member"}`,
		"POST /v1/tokens":                 `{"name":"new","scopes":["read"],"expires_s":60}`,
	}
	for _, rt := range Routes {
		name := rt.Method + " " + rt.Path
		allowed, ok := may[name]
		if !ok {
			t.Errorf("%s: this test does not say who may call it", name)
			continue
		}
		base := newWorld(t, machine.Policy{Interval: 30 * time.Second})
		for kind := range base.creds {
			w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
			path := strings.NewReplacer("{id}", w.id, "{name}", "read", "{fingerprint}", "SHA256:x").Replace(rt.Path)
			rec := w.do(rt.Method, path, w.creds[kind], bodies[name], wire.HeaderCheck, "instance=a; seq=1")
			got := rec.Code != http.StatusUnauthorized && rec.Code != http.StatusForbidden
			want := false
			for _, k := range allowed {
				want = want || k == kind || k == "*"
			}
			if got != want {
				t.Errorf("%s as %s: %d %s", name, kind, rec.Code, rec.Body)
			}
		}
	}
	if len(may) != len(Routes) {
		t.Errorf("%d routes, %d expected", len(Routes), len(may))
	}
}

// TestATokenNeverMakesAnything holds R8 against the table itself, whatever
// routes come.
func TestATokenNeverMakesAnything(t *testing.T) {
	for _, rt := range Routes {
		if rt.Method == http.MethodGet || rt.Who.own() || rt.Who == Person || rt.Who == Owner {
			continue
		}
		// Neither makes anything that lets somebody in.
		if rt.Path != wire.PathMachines+"/{id}/requests" && rt.Path != wire.PathRotations+"/{kind}" {
			t.Errorf("%s %s changes something and is open to tokens", rt.Method, rt.Path)
		}
	}
}

func TestEveryRefusalIsTheSame401(t *testing.T) { // R22, R24
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	mark := []string{wire.HeaderCheck, "instance=a; seq=1"}
	want := `{"error":{"code":"unauthorized"}}` + "\n"
	for _, bearer := range []string{
		"", ".", w.id, w.id + ".", w.id + ".wrong", wire.NewMachineID() + "." + w.key.Reveal(),
		w.mine + "." + w.key.Reveal(), w.creds["owner"], "m_." + w.key.Reveal(), strings.Repeat("x", 600),
	} {
		for _, path := range []string{wire.PathCheck, wire.PathRotate} {
			body := `{"lifecycle":{"state":"running"},"generation":2,"digest":"` + secret.New("").Digest().Hex() + `"}`
			rec := w.do("POST", path, bearer, body, mark...)
			if rec.Code != http.StatusUnauthorized || rec.Body.String() != want {
				t.Errorf("%s with %q: %d %s", path, bearer, rec.Code, rec.Body)
			}
		}
	}
	for _, bearer := range []string{"", "x", w.id + "." + w.key.Reveal()} {
		rec := w.do("GET", wire.PathMachines, bearer, "")
		if rec.Code != http.StatusUnauthorized || rec.Body.String() != want {
			t.Errorf("%q: %d %s", bearer, rec.Code, rec.Body)
		}
	}
}

func (w *world) row(id string) *machine.Row {
	w.t.Helper()
	r, err := w.store.Machine(w.t.Context(), id)
	must(w.t, err)
	return r
}

// TestABodyTouchesNoOtherRow sends bodies that name another machine in every
// way a body can. // R13
func TestABodyTouchesNoOtherRow(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	before := w.row(w.mine)
	digest := secret.New("fm_").Digest().Hex()
	body := `{"machine":"` + w.mine + `","id":"` + w.mine + `","name":"` + w.mine + `","owner":"member","lifecycle":{"state":"stopping","reason":"person"},"generation":2,"digest":"` + digest + `","installation_digest":"` + digest + `"}`
	if rec := w.check(w.id, w.key, "instance=a; seq=1; machine="+w.mine, body); rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), w.id) {
		t.Fatal(rec.Code, rec.Body)
	}
	if rec := w.do("POST", wire.PathRotate+"?machine="+w.mine, w.id+"."+w.key.Reveal(), body, "X-Machine", w.mine); rec.Code != http.StatusOK {
		t.Fatal(rec.Code, rec.Body)
	}
	if after := w.row(w.mine); !reflect.DeepEqual(before, after) {
		t.Errorf("\n%+v\n%+v", before, after)
	}
	r := w.row(w.id)
	if r.Owner != "owner" || r.Name != "" || r.Told.Said != wire.SaidStopping || r.Credential.Next.Hex() != digest {
		t.Errorf("%+v", r)
	}
	a, err := w.store.Audit(t.Context(), store.AuditFilter{})
	must(t, err)
	if e := a.Entries[len(a.Entries)-1]; e.Actor != "machine:"+w.id || e.Subject != "machine:"+w.id {
		t.Errorf("%+v", e)
	}
}

func TestBadInputIsRefusedInWords(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	owner := w.creds["owner"]
	d := secret.New("").Digest().Hex()
	empty := (secret.Text{}).Digest().Hex()
	m := wire.PathMachines + "/" + w.id
	for _, c := range []struct {
		method, path, body string
		status             int
		words              string
	}{
		{"POST", m + "/rename", `{"name":"x","nam":"y"}`, 400, "unknown field"},
		{"POST", m + "/rename", `{"name":"x"} {}`, 400, "something follows"},
		{"POST", m + "/rename", `{"name":"x"`, 400, "ends early"},
		{"POST", m + "/rename", ``, 400, "ends early"},
		{"POST", m + "/rename", `<html>`, 400, "invalid character"},
		{"POST", m + "/rename", `{"name":"a b"}`, 400, "name:"},
		{"POST", m + "/rename", `{"name":"10.0.0.5"}`, 400, "network address"},
		{"POST", m + "/rename", `{"name":"` + strings.Repeat("x", 70<<10) + `"}`, 413, "too large"},
		{"POST", m + "/labels", `{"set":{"k":"192.0.2.1"}}`, 400, "network address"},
		{"POST", m + "/labels", `{"set":{"k":"v"},"remove":["k"]}`, 400, "at once"},
		{"POST", m + "/requests", `{"kind":"reboot"}`, 400, "logs or rotate"},
		{"POST", m + "/requests", `{"kind":"rotate","older_than_s":-1}`, 400, "older_than_s"},
		{"POST", m + "/requests", `{"kind":"rotate","older_than_s":1e300}`, 400, "older_than_s"},
		{"POST", m + "/requests", `{"kind":"logs","older_than_s":1}`, 400, "goes with rotate"},
		{"POST", wire.PathMachines, `{"installation_digest":"` + d + `","credential_digest":"` + empty + `"}`, 400, "nothing"},
		{"POST", wire.PathMachines, `{"installation_digest":"` + d + `","credential_digest":"00"}`, 400, "64 hexadecimal"},
		{"POST", wire.PathMachines, `{"installation_digest":"` + d + `","credential_digest":"` + strings.Repeat("0", 64) + `"}`, 400, "64 hexadecimal"},
		{"GET", wire.PathMachines + "/web", "", 400, "no machine id"},
		{"GET", wire.PathMachines + "/" + wire.NewMachineID(), "", 404, "no machine"},
		{"GET", wire.PathMachines + "?selector=a", "", 400, "no condition"},
		{"GET", wire.PathMachines + "?colour=red", "", 400, "cannot be selected"},
		{"GET", wire.PathMachines + "?presence=asleep", "", 400, "presence"},
		{"GET", wire.PathMachines, "body", 413, "too large"},
		{"GET", wire.PathAudit + "?limit=0", "", 400, "limit"},
		{"GET", wire.PathAudit + "?since=yesterday", "", 400, "since"},
		{"POST", wire.PathTokens, `{"name":"t","scopes":["admin"],"expires_s":60}`, 400, "none of"},
		{"POST", wire.PathTokens, `{"name":"t","scopes":["read"]}`, 400, "expires_s"},
		{"POST", wire.PathTokens, `{"name":"read","scopes":["read"],"expires_s":60}`, 409, "already"},
		{"DELETE", wire.PathTokens + "/none", "", 404, "no such token"},
		{"GET", "/v2/anything", "", 404, "no such path"},
		{"PUT", wire.PathMachines, "", 404, "no such path"},
	} {
		rec := w.do(c.method, c.path, owner, c.body)
		var e wire.Error
		if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || rec.Code != c.status || e.Error.Code == "" || !strings.Contains(e.Error.Message, c.words) {
			t.Errorf("%s %.60s %.60s: %d %s", c.method, c.path, c.body, rec.Code, rec.Body)
		}
	}
	// A machine's document may say more than this plane knows.
	if rec := w.check(w.id, w.key, "instance=a; seq=1; later=1", `{"lifecycle":{"state":"running"},"later":1}`); rec.Code != 200 {
		t.Error(rec.Code, rec.Body)
	}
	for _, bad := range []struct{ mark, body string }{{"", "{}"}, {"instance=a", "{}"}, {"instance=a; seq=2", `{}{}`}, {"instance=a; seq=2", "<html>"}} {
		if rec := w.check(w.id, w.key, bad.mark, bad.body); rec.Code != 400 {
			t.Errorf("%q %q: %d %s", bad.mark, bad.body, rec.Code, rec.Body)
		}
	}
	if rec := w.check(w.id, w.key, "instance=a; seq=3", strings.Repeat("x", wire.MaxCheckBody+1)); rec.Code != 413 {
		t.Error(rec.Code)
	}
}

func TestOverloadIsShedWithRetryAfter(t *testing.T) { // R19
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	w.api.running.Store(int64(w.api.MaxConcurrent))
	rec := w.check(w.id, w.key, "instance=a; seq=1", "{}")
	if rec.Code != http.StatusServiceUnavailable || rec.Header().Get("Retry-After") == "" {
		t.Fatal(rec.Code, rec.Header())
	}
	if rec := w.do("GET", wire.PathHealthz, "", ""); rec.Code != 200 {
		t.Error(rec.Code)
	}
	w.api.running.Store(0)
	if rec := w.check(w.id, w.key, "instance=a; seq=1", "{}"); rec.Code != 200 {
		t.Error(rec.Code)
	}
}

func TestALabFloorIsTold(t *testing.T) { // R9
	w := newWorld(t, machine.Policy{Interval: 2 * time.Second, TestFloor: 500 * time.Millisecond})
	rec := w.check(w.id, w.key, "instance=a; seq=1", "{}")
	var a wire.CheckAnswer
	must(t, json.Unmarshal(rec.Body.Bytes(), &a))
	if a.TestFloorS != 0.5 || a.MinGapS != 0.5 || a.IntervalS != 2 {
		t.Fatalf("%+v", a)
	}
}

// TestTheHandMadeAnswerIsTheDocument compares the appended answer with what
// encoding/json makes of the wire type.
func TestTheHandMadeAnswerIsTheDocument(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 45 * time.Second, TestFloor: time.Second})
	for _, kind := range []string{"", "logs", "rotate"} {
		if kind != "" {
			if rec := w.do("POST", wire.PathMachines+"/"+w.id+"/requests", w.creds["owner"], `{"kind":"`+kind+`"}`); rec.Code != 200 {
				t.Fatal(rec.Body)
			}
		}
		rec := w.check(w.id, w.key, "instance=a; seq=1", `{}`)
		d := json.NewDecoder(bytes.NewReader(rec.Body.Bytes()))
		d.DisallowUnknownFields()
		var a wire.CheckAnswer
		must(t, d.Decode(&a))
		want, err := json.Marshal(a)
		must(t, err)
		var x, y any
		must(t, json.Unmarshal(rec.Body.Bytes(), &x))
		must(t, json.Unmarshal(want, &y))
		// The times may be spelled with zeros at their end.
		delete(x.(map[string]any), "plane_time")
		delete(y.(map[string]any), "plane_time")
		if !reflect.DeepEqual(x, y) || !a.PlaneTime.Equal(w.now) {
			t.Errorf("\n%s\n%s", rec.Body, want)
		}
	}
}

func TestDocumentsAreTheGoldenOnes(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	w.check(w.id, w.key, "instance=a; seq=1", `{"boot":"b","name":"web-1.example","version":"1.4.0","os":"linux","arch":"amd64","scope":"user","service_manager":"systemd","lifecycle":{"state":"running","reason":null},"readiness":{"blockers":[{"code":"linger_disabled","detail":"sessions end at logout","remedy":"loginctl enable-linger"},{"code":"clock_skew","severity":"warn"}]}}`)
	w.do("POST", wire.PathMachines+"/"+w.id+"/labels", w.creds["owner"], `{"set":{"env":"prod"}}`)
	w.now = w.now.Add(4200 * time.Millisecond)
	gone, k := w.admit("owner")
	w.check(gone, k, "instance=a; seq=1", "{}")
	w.do("DELETE", wire.PathMachines+"/"+gone, w.creds["owner"], "")
	for name, path := range map[string]string{
		"machine": wire.PathMachines + "/" + w.id, "machine-never": wire.PathMachines + "/" + w.mine,
		"machines": wire.PathMachines + "?selector=env%3Dprod", "none": wire.PathMachines + "?match=none",
		"deleted": wire.PathMachines + "/" + gone, "whoami": wire.PathWhoami, "tokens": wire.PathTokens,
		"audit": wire.PathAudit, "version": wire.PathVersion, "unauthorized": "/401",
	} {
		bearer := w.creds["owner"]
		if path == "/401" {
			path, bearer = wire.PathWhoami, "x"
		}
		var pretty bytes.Buffer
		must(t, json.Indent(&pretty, w.do("GET", path, bearer, "").Body.Bytes(), "", "  "))
		got := strings.NewReplacer(w.id, "m_first", w.mine, "m_second", gone, "m_third").Replace(pretty.String())
		got = maskHashes(got)
		file := filepath.Join("testdata", name+".json")
		if *update {
			must(t, os.MkdirAll("testdata", 0o755))
			must(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		must(t, err)
		if got != string(want) {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
		}
	}
}

// maskHashes hides what random ids make random.
func maskHashes(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		for _, k := range []string{`"hash": "`, `"prev": "`} {
			if i := strings.Index(line, k); i >= 0 {
				j := i + len(k)
				line = line[:j] + "…" + line[j+64:]
			}
		}
		b.WriteString(line)
	}
	return b.String()
}

func TestMetricsNameNobody(t *testing.T) { // R18
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	w.check(w.id, w.key, "instance=a; seq=1", `{"name":"webserver"}`)
	w.do("GET", wire.PathMachines+"/"+w.id, w.creds["owner"], "")
	rec := httptest.NewRecorder()
	w.api.MetricsHandler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	out, _ := io.ReadAll(rec.Body)
	for _, never := range []string{w.id, "webserver", "192.0.2.1", "owner"} {
		if bytes.Contains(out, []byte(never)) {
			t.Errorf("metrics say %q", never)
		}
	}
	for _, always := range []string{`fleet_checks_total{standing="current"} 1`, "fleet_machines 2", `fleet_rotations_total{step="staged"} 0`} {
		if !bytes.Contains(out, []byte(always)) {
			t.Errorf("metrics do not say %q", always)
		}
	}
}

func (w *world) metrics() string {
	w.t.Helper()
	rec := httptest.NewRecorder()
	w.api.MetricsHandler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	return rec.Body.String()
}
