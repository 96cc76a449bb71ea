package check

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// fake is a plane in memory.
type fake struct {
	mu     sync.Mutex
	at     []time.Time
	bodies []wire.CheckBody
	gens   []int64
	closed int
	answer func(n int, c credential.Credential) (*wire.CheckAnswer, error)
	hang   time.Duration
}

func (f *fake) Check(ctx context.Context, c credential.Credential, m wire.CheckMark, body []byte) (*wire.CheckAnswer, error) {
	f.mu.Lock()
	f.at = append(f.at, time.Now())
	var b wire.CheckBody
	json.Unmarshal(body, &b)
	f.bodies = append(f.bodies, b)
	f.gens = append(f.gens, c.Generation)
	n, answer, hang := len(f.at), f.answer, f.hang
	f.mu.Unlock()
	if hang > 0 {
		select {
		case <-time.After(hang):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return answer(n, c)
}

func (f *fake) Rotate(context.Context, credential.Credential, wire.RotateRequest) error {
	return errors.New("rotation is not what this test is about")
}

func (f *fake) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
}

func (f *fake) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.at...)
}

func (f *fake) set(answer func(int, credential.Credential) (*wire.CheckAnswer, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func ok(interval float64) func(int, credential.Credential) (*wire.CheckAnswer, error) {
	return func(_ int, c credential.Credential) (*wire.CheckAnswer, error) {
		return &wire.CheckAnswer{Machine: c.Machine, Generation: c.Generation, IntervalS: interval, MinGapS: 10, Mark: "m", PlaneTime: time.Now()}, nil
	}
}

func refuse(r plane.Refusal) func(int, credential.Credential) (*wire.CheckAnswer, error) {
	return func(_ int, c credential.Credential) (*wire.CheckAnswer, error) {
		x := r
		if x.Machine == "self" {
			x.Machine = c.Machine
		}
		return nil, &x
	}
}

// within runs f with a loop that is running, in a bubble of its own time.
func within(t *testing.T, answer func(int, credential.Credential) (*wire.CheckAnswer, error), f func(l *Loop, p *fake)) {
	t.Helper()
	dir := t.TempDir()
	s := credential.Open(credential.Dir(dir))
	if _, err := s.Install(&wire.Credential{Schema: wire.SchemaCredential, Machine: wire.NewMachineID(), Generation: 7,
		Secret: secret.New("fm_").Reveal(), Plane: wire.CredentialPlane{URL: "https://p.example", RootsPEM: "system"}}, false); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := &fake{answer: answer}
		l := &Loop{Store: s, Body: func() wire.CheckBody { return wire.CheckBody{Name: "box"} }, Log: hclog.NewNullLogger(),
			Dial: func(credential.Plane, *wire.CredentialGate) (Plane, error) { return p, nil }}
		l.Init()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		synctest.Wait()
		f(l, p)
		cancel()
		<-done
	})
}

func gaps(at []time.Time) []time.Duration {
	var g []time.Duration
	for i := 1; i < len(at); i++ {
		g = append(g, at[i].Sub(at[i-1]))
	}
	return g
}

func TestIntervalIsTheServers(t *testing.T) { // R9
	within(t, ok(60), func(l *Loop, p *fake) {
		if n := len(p.times()); n != 1 {
			t.Fatalf("%d checks at the start, want one at once", n)
		}
		time.Sleep(10 * time.Minute)
		for _, g := range gaps(p.times()) {
			if g < 57*time.Second || g > 63*time.Second {
				t.Errorf("gap %v", g)
			}
		}
		p.set(ok(300))
		time.Sleep(2 * time.Minute)
		n := len(p.times())
		time.Sleep(20 * time.Minute)
		if more := len(p.times()) - n; more < 3 || more > 5 {
			t.Errorf("%d checks in 20 minutes at 300 s", more)
		}
	})
}

func TestNothingBeatsTheFloor(t *testing.T) { // R9, R10
	within(t, ok(1), func(l *Loop, p *fake) { // the server's 1 s is below the floor
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			l.Kick() // readiness flaps
		}
		for _, g := range gaps(p.times()) {
			if g < 10*time.Second {
				t.Errorf("gap %v", g)
			}
		}
	})
	lab := func(_ int, c credential.Credential) (*wire.CheckAnswer, error) {
		return &wire.CheckAnswer{Machine: c.Machine, IntervalS: 2, MinGapS: 1, TestFloorS: 1}, nil
	}
	within(t, lab, func(l *Loop, p *fake) {
		time.Sleep(time.Minute)
		if n := len(p.times()); n < 25 || n > 35 {
			t.Errorf("%d checks in a lab's minute at 2 s", n)
		}
	})
}

func TestKickChecksAtOnce(t *testing.T) { // R10
	within(t, ok(300), func(l *Loop, p *fake) {
		time.Sleep(30 * time.Second)
		l.Kick()
		synctest.Wait()
		if n := len(p.times()); n != 2 {
			t.Fatalf("%d checks, want the second at once", n)
		}
	})
}

func TestOutageIsTriedAgainAndThenSpread(t *testing.T) { // R19, R22
	after := map[time.Duration]bool{}
	for range 20 {
		within(t, ok(60), func(l *Loop, p *fake) {
			p.set(func(int, credential.Credential) (*wire.CheckAnswer, error) {
				return nil, errors.New("connection refused")
			})
			time.Sleep(30 * time.Minute)
			at := p.times()
			for i, g := range gaps(at)[1:] {
				if g < 10*time.Second || g > 61*time.Second {
					t.Errorf("try %d after %v", i, g)
				}
			}
			p.set(ok(60))
			n := len(at)
			time.Sleep(5 * time.Minute)
			at = p.times()
			if len(at) < n+3 {
				t.Fatalf("%d checks in the five minutes after the outage", len(at)-n)
			}
			g := gaps(at[n:])[0]
			after[g] = true
			if g < 10*time.Second || g > 70*time.Second {
				t.Errorf("the first gap after the outage is %v", g)
			}
		})
	}
	if len(after) < 15 {
		t.Errorf("%d different first gaps in 20 machines: they come back in step", len(after))
	}
}

func TestRetryAfterIsHonouredAndSpread(t *testing.T) { // R19
	within(t, refuse(plane.Refusal{Code: wire.CodeBusy, Status: 503, RetryAfter: 2 * time.Minute}), func(l *Loop, p *fake) {
		time.Sleep(time.Hour)
		for _, g := range gaps(p.times()) {
			if g < 2*time.Minute || g > 2*time.Minute+31*time.Second {
				t.Errorf("gap %v", g)
			}
		}
	})
}

func TestRevokedEndsTheLoopOnlyTwiceAMinuteApart(t *testing.T) { // R22
	within(t, refuse(plane.Refusal{Code: wire.CodeRevoked, Status: 410, Machine: "self"}), func(l *Loop, p *fake) {
		l.Kick()
		time.Sleep(30 * time.Second)
		l.Kick() // a second answer within the minute does not count
		time.Sleep(24 * time.Hour)
		at := p.times()
		if len(at) > 4 {
			t.Fatalf("%d checks of a deleted machine", len(at))
		}
		if d := at[len(at)-1].Sub(at[0]); d < time.Minute {
			t.Fatalf("believed after %v", d)
		}
		if !l.Store.Status().Revoked {
			t.Fatal("not recorded")
		}
		if _, ok := l.Store.Present(); !ok {
			t.Fatal("the credential was discarded")
		}
	})
	for name, r := range map[string]plane.Refusal{
		"another machine": {Code: wire.CodeRevoked, Status: 410, Machine: wire.NewMachineID()},
		"no machine":      {Code: wire.CodeRevoked, Status: 410},
		"no code":         {Status: 410, Message: "gone"},
	} {
		within(t, refuse(r), func(l *Loop, p *fake) {
			time.Sleep(time.Hour)
			if l.Store.Status().Revoked || len(p.times()) < 50 {
				t.Errorf("%s: believed", name)
			}
		})
	}
	within(t, func(n int, c credential.Credential) (*wire.CheckAnswer, error) {
		if n%2 == 0 {
			return ok(60)(n, c)
		}
		return refuse(plane.Refusal{Code: wire.CodeRevoked, Status: 410, Machine: "self"})(n, c)
	}, func(l *Loop, p *fake) {
		time.Sleep(3 * time.Hour)
		if l.Store.Status().Revoked {
			t.Error("a success between two revocations was forgotten")
		}
	})
}

func TestUnauthorizedAndBehindKeepTheKeyAndTheInterval(t *testing.T) { // R20, R22
	for _, code := range []string{wire.CodeUnauthorized, wire.CodeBehind} {
		within(t, refuse(plane.Refusal{Code: code, Status: 401}), func(l *Loop, p *fake) {
			time.Sleep(time.Hour)
			n := len(p.times())
			if n < 100 || n > 140 {
				t.Errorf("%s: %d tries in an hour at 30 s", code, n)
			}
			if _, ok := l.Store.Present(); !ok {
				t.Errorf("%s: the credential was discarded", code)
			}
		})
	}
}

func TestLastCheckHasItsOwnDeadlineAndNoFloor(t *testing.T) { // R10, R11
	within(t, ok(60), func(l *Loop, p *fake) {
		p.mu.Lock()
		p.hang = time.Hour
		p.mu.Unlock()
		began := time.Now()
		if err := l.Last(wire.ReasonSignal); err == nil {
			t.Error("a last check that hangs succeeded")
		}
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("the last check took %v", d)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		last := p.bodies[len(p.bodies)-1].Lifecycle
		if last.State != wire.SaidStopping || last.Reason == nil || *last.Reason != wire.ReasonSignal {
			t.Errorf("%+v", last)
		}
	})
}

func TestWallClockJumpMakesACheckDue(t *testing.T) {
	dir := t.TempDir()
	s := credential.Open(credential.Dir(dir))
	if _, err := s.Install(&wire.Credential{Schema: wire.SchemaCredential, Machine: wire.NewMachineID(), Generation: 7,
		Secret: secret.New("fm_").Reveal(), Plane: wire.CredentialPlane{URL: "https://p.example", RootsPEM: "system"}}, false); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var jumped time.Duration
		p := &fake{answer: ok(3600)}
		l := &Loop{Store: s, Body: func() wire.CheckBody { return wire.CheckBody{} }, Log: hclog.NewNullLogger(),
			Now:  func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(jumped) },
			Dial: func(credential.Plane, *wire.CredentialGate) (Plane, error) { return p, nil }}
		l.Init()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		time.Sleep(time.Minute)
		mu.Lock()
		jumped = 20 * time.Minute // the machine slept
		mu.Unlock()
		time.Sleep(2 * wakeEvery)
		if n := len(p.times()); n != 2 || p.closed == 0 {
			t.Errorf("%d checks, connection dropped %d times", n, p.closed)
		}
		mu.Lock()
		jumped = -48 * time.Hour // somebody set it back
		mu.Unlock()
		time.Sleep(2 * wakeEvery)
		if n := len(p.times()); n != 3 {
			t.Errorf("%d checks after the clock was set back", n)
		}
		cancel()
		<-done
	})
}

func TestClockThatIsSetDuringACheckHoldsNoCheckBack(t *testing.T) {
	for name, by := range map[string]time.Duration{"an hour back": -time.Hour, "years back": -5 * 365 * 24 * time.Hour, "years ahead": 5 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := credential.Open(credential.Dir(dir))
			if _, err := s.Install(&wire.Credential{Schema: wire.SchemaCredential, Machine: wire.NewMachineID(), Generation: 7,
				Secret: secret.New("fm_").Reveal(), Plane: wire.CredentialPlane{URL: "https://p.example", RootsPEM: "system"}}, false); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				var jumped atomic.Int64
				p := &fake{hang: 20 * time.Second}
				p.answer = func(n int, c credential.Credential) (*wire.CheckAnswer, error) {
					jumped.Store(int64(by)) // its clock is set while the first check waits for an answer
					return ok(60)(n, c)
				}
				l := &Loop{Store: s, Body: func() wire.CheckBody { return wire.CheckBody{} }, Log: hclog.NewNullLogger(),
					Now:  func() time.Time { return time.Now().Add(time.Duration(jumped.Load())) },
					Dial: func(credential.Plane, *wire.CredentialGate) (Plane, error) { return p, nil }}
				l.Init()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { l.Run(ctx); close(done) }()
				time.Sleep(10 * time.Minute)
				if n := len(p.times()); n < 9 || n > 12 {
					t.Errorf("%d checks in ten minutes at one a minute", n)
				}
				cancel()
				<-done
			})
		})
	}
}

func TestBodyIsBounded(t *testing.T) {
	within(t, ok(60), func(l *Loop, p *fake) {
		var many []wire.Finding
		for range 1000 {
			many = append(many, wire.Finding{Code: "x", Detail: string(make([]byte, 5000)), Remedy: string(make([]byte, 5000))})
		}
		l.Body = func() wire.CheckBody { return wire.CheckBody{Readiness: &wire.CheckReadiness{Blockers: many}} }
		if b := l.body(way{}, wire.Lifecycle{State: wire.SaidRunning}); len(b) > wire.MaxCheckBody {
			t.Errorf("%d bytes", len(b))
		}
	})
}
