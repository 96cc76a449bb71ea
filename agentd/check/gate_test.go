package check

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// gatedFake is a plane behind a gate, in memory.
type gatedFake struct {
	mu      sync.Mutex
	accepts []wire.CredentialGate // the first is wanted
	deleted bool
	checks  []int64 // versions that were presented
	refused int
}

// gatedWay is a client of it.
type gatedWay struct {
	*gatedFake
	gate *wire.CredentialGate
}

func (f *gatedFake) passes(g *wire.CredentialGate) bool {
	for _, a := range f.accepts {
		if g != nil && a == *g {
			return true
		}
	}
	return false
}

func (w gatedWay) Check(_ context.Context, c credential.Credential, _ wire.CheckMark, _ []byte) (*wire.CheckAnswer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var version int64
	if w.gate != nil {
		version = w.gate.Version
	}
	w.checks = append(w.checks, version)
	if !w.passes(w.gate) {
		w.refused++
		return nil, &plane.Refusal{Status: http.StatusUnauthorized, Code: wire.CodeUnauthorized}
	}
	if w.deleted {
		return nil, &plane.Refusal{Status: http.StatusGone, Code: wire.CodeRevoked, Machine: c.Machine}
	}
	a := &wire.CheckAnswer{Machine: c.Machine, Generation: c.Generation, IntervalS: 30, MinGapS: 10, Mark: "m", PlaneTime: time.Now()}
	if want := w.accepts[0].Version; want != version {
		a.Want = map[string]int64{wire.MaterialGate: want}
	}
	return a, nil
}

func (w gatedWay) Material(_ context.Context, c credential.Credential, kind string, version int64) (*wire.Material, int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deleted {
		return nil, 0, &plane.Refusal{Status: http.StatusGone, Code: wire.CodeRevoked, Machine: c.Machine}
	}
	if v := w.accepts[0]; v.Version == version {
		return &wire.Material{Kind: kind, Version: version, Value: v.Value}, 0, nil
	}
	return nil, w.accepts[0].Version, nil
}

func (gatedWay) Rotate(context.Context, credential.Credential, wire.RotateRequest) error { return nil }
func (gatedWay) Close()                                                                  {}

func (f *gatedFake) seen() (checks []int64, refused int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(checks, f.checks...), f.refused
}

func (f *gatedFake) accept(all ...wire.CredentialGate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.accepts = all
}

func aToken(version int64) wire.CredentialGate {
	return wire.CredentialGate{Version: version, Value: secret.New("fg_").Reveal()}
}

// throughGate runs f with a loop whose machine holds a token.
func throughGate(t *testing.T, p *gatedFake, held *wire.CredentialGate, f func(l *Loop)) {
	t.Helper()
	s := credential.Open(credential.Dir(t.TempDir()))
	if _, err := s.Install(&wire.Credential{Schema: wire.SchemaCredential, Machine: wire.NewMachineID(), Generation: 7, Gate: held,
		Secret: secret.New("fm_").Reveal(), Plane: wire.CredentialPlane{URL: "https://p.example", RootsPEM: "system"}}, false); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Store: s, Body: func() wire.CheckBody { return wire.CheckBody{Name: "box"} }, Log: hclog.NewNullLogger(),
			Dial: func(_ credential.Plane, g *wire.CredentialGate) (Plane, error) { return gatedWay{p, g}, nil }}
		l.Init()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		synctest.Wait()
		f(l)
		cancel()
		<-done
	})
}

// A rotation costs no check, and no check beyond the usual ones. // R9, R26
func TestARotationOfTheGateCostsNoCheck(t *testing.T) {
	one, two := aToken(1), aToken(2)
	p := &gatedFake{accepts: []wire.CredentialGate{one}}
	throughGate(t, p, &one, func(l *Loop) {
		time.Sleep(time.Minute)
		p.accept(two, one)
		time.Sleep(2 * time.Minute)
		checks, refused := p.seen()
		if refused != 0 || checks[len(checks)-1] != 2 || len(checks) < 6 || len(checks) > 8 || l.Store.Status().Gate != 2 {
			t.Errorf("%v, %d refused", checks, refused)
		}
		p.accept(two)
		time.Sleep(2 * time.Minute)
		if _, refused := p.seen(); refused != 0 {
			t.Errorf("%d refused after narrowing", refused)
		}
	})
}

// A machine that slept through everything is refused once. // R26
func TestASleeperIsBackAfterOneRefusal(t *testing.T) {
	old := aToken(1)
	for name, held := range map[string]*wire.CredentialGate{"with an old token": &old, "with none": nil} {
		t.Run(name, func(t *testing.T) {
			p := &gatedFake{accepts: []wire.CredentialGate{aToken(4)}}
			throughGate(t, p, held, func(l *Loop) {
				time.Sleep(12 * time.Second)
				checks, refused := p.seen()
				if refused != 1 || len(checks) != 2 || checks[1] != 4 || l.Status() == nil || !l.Status().OK {
					t.Errorf("%v, %d refused", checks, refused)
				}
			})
		})
	}
}

// A machine that was deleted hears it in front of the gate, and believes it as it
// does behind: twice, a minute apart. // R22, R26
func TestADeletedMachineHearsItInFrontOfTheGate(t *testing.T) {
	old := aToken(1)
	p := &gatedFake{accepts: []wire.CredentialGate{aToken(4)}, deleted: true}
	throughGate(t, p, &old, func(l *Loop) {
		time.Sleep(time.Minute)
		if l.Store.Status().Revoked {
			t.Error("it believed it at once")
		}
		time.Sleep(10 * time.Minute)
		if !l.Store.Status().Revoked {
			t.Error("it goes on")
		}
		checks, _ := p.seen()
		time.Sleep(24 * time.Hour)
		if now, _ := p.seen(); len(now) != len(checks) {
			t.Errorf("%d checks after it had ended", len(now)-len(checks))
		}
	})
}
