package api

import (
	"encoding/json"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// A rotation from the request to the echo, as it is seen from outside, by its
// metrics too. // R16, R20
func TestARotationFromRequestToEcho(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	w.check(w.id, w.key, "instance=a; seq=1", `{}`)
	tok := secret.New("ft_") // outlives the hour that passes
	must(t, w.store.CreateToken(t.Context(), store.Token{Name: "rotator", Owner: "owner", Scopes: []string{wire.ScopeRotate}, CreatedAt: w.now, ExpiresAt: w.now.Add(24 * time.Hour)},
		tok.Digest(), machine.By{Actor: "person:owner"}))
	ask := func(body string) wire.Machine {
		t.Helper()
		rec := w.do("POST", wire.PathMachines+"/"+w.id+"/requests", tok.Reveal(), body)
		var m wire.Machine
		if err := json.Unmarshal(rec.Body.Bytes(), &m); err != nil || rec.Code != 200 {
			t.Fatal(rec.Code, rec.Body)
		}
		return m
	}
	metrics := func(lines ...string) {
		t.Helper()
		rec := httptest.NewRecorder()
		w.api.MetricsHandler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		out, _ := io.ReadAll(rec.Body)
		for _, l := range lines {
			if !strings.Contains(string(out), "\n"+l+"\n") {
				t.Errorf("metrics do not say %s", l)
			}
		}
	}
	w.now = w.now.Add(time.Hour)
	if m := ask(`{"kind":"rotate","older_than_s":3601}`); m.Requests.Rotate != nil {
		t.Fatal("a young credential was asked to rotate")
	}
	m := ask(`{"kind":"rotate","older_than_s":3600}`)
	if m.Requests.Rotate == nil || !m.Requests.Rotate.Equal(w.now) {
		t.Fatalf("%+v", m.Requests)
	}
	value := w.now.Format(time.RFC3339Nano)
	w.now = w.now.Add(time.Second)
	if again := ask(`{"kind":"rotate"}`); !again.Requests.Rotate.Equal(m.Requests.Rotate.Time) {
		t.Fatal("a second request does not join the first")
	}
	if rec := w.check(w.id, w.key, "instance=a; seq=2", `{}`); !strings.Contains(rec.Body.String(), `"rotate":"`+value+`"`) {
		t.Fatal(rec.Body)
	}
	next := secret.New("fm_")
	stage := func() {
		t.Helper()
		body := `{"generation":2,"digest":"` + next.Digest().Hex() + `"}`
		if rec := w.do("POST", wire.PathRotate, w.id+"."+w.key.Reveal(), body); rec.Code != 200 {
			t.Fatal(rec.Code, rec.Body)
		}
	}
	stage()
	stage() // the answer was lost
	if r := w.row(w.id); !r.StagedAt.Equal(w.now) {
		t.Fatal(r.StagedAt)
	}
	metrics(`fleet_rotations_total{step="staged"} 1`, `fleet_rotations_total{step="confirmed"} 0`,
		`fleet_rotations_pending{state="requested"} 1`, `fleet_rotations_pending{state="staged"} 1`, `fleet_rotations_pending{state="stuck"} 0`)
	w.now = w.now.Add(time.Hour)
	w.check(w.id, w.key, "instance=a; seq=3", `{}`)
	metrics(`fleet_rotations_pending{state="stuck"} 1`)

	// The check that promotes carries the echo.
	rec := w.check(w.id, next, "instance=a; seq=4", `{"echo":{"rotate":"`+value+`"}}`)
	if rec.Code != 200 || strings.Contains(rec.Body.String(), `"requests"`) || !strings.Contains(rec.Body.String(), `"generation":2`) {
		t.Fatal(rec.Code, rec.Body)
	}
	metrics(`fleet_rotations_total{step="staged"} 1`, `fleet_rotations_total{step="confirmed"} 1`,
		`fleet_rotations_pending{state="requested"} 0`, `fleet_rotations_pending{state="staged"} 0`, `fleet_rotations_pending{state="stuck"} 0`)
	if rec := w.check(w.id, w.key, "instance=b; seq=1", `{}`); rec.Code != 409 {
		t.Fatal("a superseded secret:", rec.Code, rec.Body)
	}
	show := w.do("GET", wire.PathMachines+"/"+w.id, w.creds["owner"], "")
	if err := json.Unmarshal(show.Body.Bytes(), &m); err != nil || m.Credential.BehindAt == nil || m.Credential.StagedAt != nil || !m.Credential.IssuedAt.Equal(w.now) {
		t.Fatal(show.Body)
	}
}
