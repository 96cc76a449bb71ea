package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/gate"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store/bolt"
)

type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// BenchmarkPlainCheck is the handler alone: what a check costs beyond net/http
// and TLS. Command planebench measures the whole.
func BenchmarkPlainCheck(b *testing.B) {
	b.Run("open", func(b *testing.B) { benchmarkCheck(b, nil, "") })
	b.Run("gated", func(b *testing.B) {
		_, g, old, _ := twoTokens(b)
		benchmarkCheck(b, g, old)
	})
}

// BenchmarkAuthenticate is what it costs to know who sends a check: the gate's
// two digests, and the credential's against all of a row's.
func BenchmarkAuthenticate(b *testing.B) {
	_, g, old, _ := twoTokens(b)
	a := &API{Config: Config{Gate: g}}
	s := secret.New("fm_")
	row := identity.Make(s.Digest())
	req := httptest.NewRequest("POST", wire.PathCheck, nil)
	req.Header.Set("Authorization", "Bearer "+wire.NewMachineID()+"."+s.Reveal())
	req.Header.Set(wire.HeaderGate, old)
	c := &call{r: req}
	b.ReportAllocs()
	for b.Loop() {
		if !a.pass(c) {
			b.Fatal("the gate is closed")
		}
		_, presented := machineBearer(c.r)
		if row.Judge(presented) != identity.Current {
			b.Fatal("the credential is refused")
		}
	}
}

func benchmarkCheck(b *testing.B, g *gate.Gate, token string) {
	st, err := bolt.Open(filepath.Join(b.TempDir(), "db"), bolt.Options{Create: true})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	a := New(Config{Gate: g, Store: st, URL: "https://plane.example", Policy: machine.Policy{Interval: 30 * time.Second}, Log: hclog.NewNullLogger(), Now: time.Now})
	h := a.Handler()
	s := secret.New("fm_")
	did, err := st.Admit(context.Background(), machine.Admission{By: machine.By{Person: "dana"}, Installation: secret.New("").Digest(), Credential: s.Digest()}, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	body := []byte(`{"name":"box","version":"1.0.0","os":"linux","arch":"amd64","lifecycle":{"state":"running","reason":null},"readiness":{"blockers":[]}}`)
	req := httptest.NewRequest("POST", wire.PathCheck, nil)
	req.Header.Set("Authorization", "Bearer "+did.Row.ID+"."+s.Reveal())
	if token != "" {
		req.Header.Set(wire.HeaderGate, token)
	}
	var seq uint64
	send := func(w http.ResponseWriter) {
		seq++
		req.Header[wire.HeaderCheck] = []string{fmt.Sprintf("instance=a; seq=%d; mark=abcdefghijklmnop; clock=2026-01-02T03:04:05.123456789Z", seq)}
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.ContentLength = int64(len(body))
		h.ServeHTTP(w, req)
	}
	rec := httptest.NewRecorder()
	if send(rec); rec.Code != http.StatusOK {
		b.Fatal(rec.Body)
	}
	w := &discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		send(w)
	}
}
