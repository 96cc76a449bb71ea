package check

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/clock"
	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// host has clocks that a test sets, in the time of a bubble.
type host struct {
	mu     sync.Mutex
	began  time.Time
	ahead  time.Duration // of the wall clock
	asleep time.Duration // so far
	synced bool
}

func (h *host) source() clock.Source {
	return clock.Source{
		Read: func() clock.Reading {
			h.mu.Lock()
			defer h.mu.Unlock()
			ran := time.Since(h.began)
			return clock.Reading{Wall: time.Now().Add(h.ahead + h.asleep).Round(0), Mono: ran, Boot: time.Hour + ran + h.asleep}
		},
		Synced: func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.synced },
	}
}

func (h *host) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// onHost runs f with a loop that is running on a host with clocks.
func onHost(t *testing.T, p *fake, f func(h *host, l *Loop)) {
	t.Helper()
	s := credential.Open(credential.Dir(t.TempDir()))
	if _, err := s.Install(&wire.Credential{Schema: wire.SchemaCredential, Machine: wire.NewMachineID(), Generation: 7,
		Secret: secret.New("fm_").Reveal(), Plane: wire.CredentialPlane{URL: "https://p.example", RootsPEM: "system"}}, false); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := &host{began: time.Now(), synced: true}
		l := &Loop{Store: s, Body: func() wire.CheckBody { return wire.CheckBody{} }, Log: hclog.NewNullLogger(), Clock: clock.New(h.source()),
			Dial: func(credential.Plane, *wire.CredentialGate) (Plane, error) { return p, nil }}
		l.Init()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		synctest.Wait()
		f(h, l)
		cancel()
		<-done
	})
}

func TestACheckAfterAWakeWaitsForTheClockAndNotForEver(t *testing.T) { // R10, R17, R27
	p := &fake{answer: ok(3600)}
	onHost(t, p, func(h *host, _ *Loop) {
		time.Sleep(time.Minute)
		h.change(func() { h.asleep += 8 * time.Hour; h.synced = false })
		time.Sleep(wakeEvery + time.Second) // it is noticed by then
		if n := len(p.times()); n != 1 {
			t.Errorf("%d checks by a clock that nobody vouched for", n)
		}
		h.change(func() { h.ahead = -3 * time.Second; h.synced = true })
		time.Sleep(5 * time.Second) // what was due is so again when the step has passed
		if n := len(p.times()); n != 2 {
			t.Errorf("%d checks though the clock is right", n)
		}
		// On a machine on which nothing ever says so.
		h.change(func() { h.asleep += time.Hour; h.synced = false })
		time.Sleep(wakeEvery + clock.Settle + 2*time.Second)
		if n := len(p.times()); n != 3 {
			t.Errorf("%d checks after the bound", n)
		}
	})
}

func TestAStopsLastCheckWaitsForNoClock(t *testing.T) { // R11, R27
	p := &fake{answer: ok(3600)}
	onHost(t, p, func(h *host, l *Loop) {
		h.change(func() { h.asleep = time.Hour; h.synced = false })
		time.Sleep(wakeEvery + time.Second)
		before := time.Now()
		if err := l.Last(wire.ReasonPerson); err != nil || time.Since(before) > time.Second || len(p.times()) != 2 {
			t.Errorf("%v after %v", err, time.Since(before))
		}
	})
}

// TestTheClockIsTheTroubleUntilThePlaneIsHeard: failures that tell nothing of
// the clock change nothing about it.
func TestTheClockIsTheTroubleUntilThePlaneIsHeard(t *testing.T) { // R22, R27, R30
	off := &plane.ClockError{Off: -time.Hour}
	p := &fake{answer: func(int, credential.Credential) (*wire.CheckAnswer, error) { return nil, off }}
	onHost(t, p, func(h *host, l *Loop) {
		if l.ClockTrouble() == "" {
			t.Error("the clock is not named")
		}
		p.set(func(int, credential.Credential) (*wire.CheckAnswer, error) { return nil, context.DeadlineExceeded })
		time.Sleep(2 * time.Minute)
		if l.ClockTrouble() == "" {
			t.Error("a connection that failed cleared the clock")
		}
		p.set(ok(60))
		h.change(func() { h.ahead = time.Hour })
		time.Sleep(wakeEvery + time.Second)
		if s := l.ClockTrouble(); s != "" || !l.Status().OK {
			t.Errorf("%q, %+v", s, l.Status())
		}
	})
}

// TestAClockSetBackKeepsNoConfirmationFresh: the last confirmed row is as old as
// it is (R5).
func TestAClockSetBackKeepsNoConfirmationFresh(t *testing.T) {
	p := &fake{answer: ok(60)}
	onHost(t, p, func(h *host, l *Loop) {
		if _, fresh := l.Fresh(); !fresh {
			t.Fatal("a row that was just confirmed is not fresh")
		}
		p.set(refuse(plane.Refusal{Message: "out"}))
		h.change(func() { h.ahead = -87600 * time.Hour })
		time.Sleep(10 * time.Minute)
		if at, fresh := l.Fresh(); fresh {
			t.Errorf("confirmed at %v, and fresh", at)
		}
	})
}
