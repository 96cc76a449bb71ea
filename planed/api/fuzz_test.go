package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
)

func FuzzCheck(f *testing.F) {
	f.Add("instance=a; seq=1; mark=b; clock=2026-01-02T03:04:05Z", `{"name":"box","lifecycle":{"state":"running"},"readiness":{"blockers":[{"code":"x"}]}}`)
	f.Add("instance=a; seq=18446744073709551615", `{"readiness":null,"echo":{"logs":"2026-01-02T03:04:05Z"}}`)
	f.Add(";;=", "[")
	w := newWorld(f, machine.Policy{Interval: 30 * time.Second})
	f.Fuzz(func(t *testing.T, mark, body string) {
		w.t = t
		if strings.ContainsAny(mark, "\r\n\x00") {
			return
		}
		rec := w.check(w.id, w.key, mark, body)
		switch rec.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		default:
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		if r := w.row(w.id); r.Owner != "owner" || r.Credential.Generation != 1 {
			t.Fatalf("%+v", r)
		}
		if rec := w.do("GET", wire.PathMachines+"/"+w.id, w.creds["owner"], ""); rec.Code != http.StatusOK {
			t.Fatal(rec.Code, rec.Body)
		}
	})
}

func FuzzPersonBodies(f *testing.F) {
	f.Add(`{"name":"x"}`)
	f.Add(`{"set":{"a":"b"},"remove":["c"]}`)
	f.Add(`{"name":"t","scopes":["read"],"expires_s":1e308}`)
	f.Add(`{"nonce":"x","url":"https://plane.example","public_key":"ssh-ed25519 AAAA","signature":"-----BEGIN SSH SIGNATURE-----"}`)
	w := newWorld(f, machine.Policy{Interval: 30 * time.Second})
	f.Fuzz(func(t *testing.T, body string) {
		w.t = t
		for _, rt := range Routes {
			// A logout would end the session that the others need.
			if rt.Method != http.MethodPost || rt.Who == Machine || rt.Path == wire.PathLogout {
				continue
			}
			path := strings.ReplaceAll(rt.Path, "{id}", w.id)
			if rec := w.do("POST", path, w.creds["owner"], body); rec.Code >= 500 {
				t.Errorf("%s: %d %s", path, rec.Code, rec.Body)
			}
		}
	})
}

func FuzzSelector(f *testing.F) {
	f.Add("env=prod,zone!=a,x==y")
	f.Add("=,!=,a=")
	f.Fuzz(func(t *testing.T, s string) {
		sel, err := wire.ParseSelector(s)
		if err != nil {
			return
		}
		labels := map[string]string{}
		for _, c := range sel {
			if !c.Not {
				labels[c.Key] = c.Value
			}
		}
		contradictory := false
		for _, c := range sel {
			v, ok := labels[c.Key]
			contradictory = contradictory || (ok && v == c.Value) == c.Not
		}
		if sel.Match(labels) == contradictory {
			t.Errorf("%q does not select %v", s, labels)
		}
	})
}
