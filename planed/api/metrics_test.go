package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
)

func TestEveryRefusalIsCountedByItsKind(t *testing.T) { // R22
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	line := func(code, n string) string { return `fleet_refusals_total{code="` + code + `"} ` + n + "\n" }
	for _, code := range codes {
		if out := w.metrics(); !strings.Contains(out, line(code, "0")) {
			t.Errorf("%s has no counter before it happens", code)
		}
	}
	mark := "instance=a; seq=1"
	w.check(w.id, secret.New("fm_"), mark, `{}`)                                         // unauthorized
	w.check("m_aaaaaaaaaaaaaaaaaaaaaaaaaa", w.key, mark, `{}`)                           // unauthorized
	w.check(w.id, w.key, "no mark", `{}`)                                                // bad_request
	w.do("POST", wire.PathRotate, "x", strings.Repeat(" ", smallBody+1))                 // too_large
	w.do("GET", "/v1/nothing", "", "")                                                   // not_found
	w.do("POST", wire.PathPersons, w.creds["member"], `{"name":"mo","role":"member"}`)   // forbidden
	w.do("DELETE", wire.PathMachines+"/"+w.id, w.creds["owner"], "")                     // accepted
	w.check(w.id, w.key, mark, `{}`)                                                     // revoked
	w.do("GET", wire.PathMachines+"/"+w.id, w.creds["owner"], "")                        // deleted
	w.do("GET", wire.PathMachines+"/m_bbbbbbbbbbbbbbbbbbbbbbbbbb", w.creds["owner"], "") // not_found
	out := w.metrics()
	for code, n := range map[string]string{wire.CodeUnauthorized: "2", wire.CodeBadRequest: "1", wire.CodeTooLarge: "1", wire.CodeNotFound: "2",
		wire.CodeForbidden: "1", wire.CodeRevoked: "1", wire.CodeDeleted: "1", wire.CodeInternal: "0"} {
		if !strings.Contains(out, line(code, n)) {
			t.Errorf("%s was not counted %s times", code, n)
		}
	}
}

func TestSkewIsMeasuredOnEveryAcceptedCheckAndOnNoOther(t *testing.T) { // R18, R27
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	at := func(off time.Duration) string {
		return wire.CheckMark{Instance: "a", Seq: 1, Clock: w.now.Add(off)}.String()
	}
	for _, off := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute, 24 * time.Hour, -24 * time.Hour, 87600 * time.Hour, -87600 * time.Hour} {
		if rec := w.check(w.id, w.key, at(off), `{}`); rec.Code != http.StatusOK {
			t.Fatalf("%v: %d", off, rec.Code)
		}
	}
	w.check(w.id, w.key, "instance=a; seq=2", `{}`)     // says nothing of its clock
	w.check(w.id, secret.New("fm_"), at(time.Hour), "") // is nobody
	out := w.metrics()
	for _, want := range []string{
		`fleet_clock_skew_seconds_bucket{way="ahead",le="0.1"} 1`, `fleet_clock_skew_seconds_bucket{way="ahead",le="600"} 2`,
		`fleet_clock_skew_seconds_bucket{way="ahead",le="86400"} 3`, `fleet_clock_skew_seconds_bucket{way="ahead",le="3.1536e+07"} 3`,
		`fleet_clock_skew_seconds_count{way="ahead"} 4`, `fleet_clock_skew_seconds_bucket{way="behind",le="60"} 0`,
		`fleet_clock_skew_seconds_count{way="behind"} 3`,
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("the metrics do not say %s", want)
		}
	}
}
