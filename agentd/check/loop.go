// Package check keeps the machine known to the plane: one loop of short
// outbound checks, whatever else runs on the machine (R9).
//
// The loop waits for nothing but its own timer (R17). What a check says comes
// from a snapshot in memory; what an answer leads to on disk or in further
// requests - promoting a credential, rotating it, recording a revocation - is
// done by a second goroutine, the worker, so that a slow disk delays no check.
//
// A refusal never makes the loop discard anything, and only one makes it end:
// `revoked`, over TLS verified with the plane's roots, naming this machine,
// twice, a minute apart (with a lab's test floor D, 6 × D), with no other
// answer between (R22). Then it waits for an install.
//
// Go's timers stand still while a machine sleeps. The loop therefore never
// waits longer than wakeEvery at once and compares the clocks: after a sleep or
// a step of the wall clock the kept connection is dropped and a check is due,
// as soon as the clock is right or package clock's bound is over (R27). A plane
// whose certificate is not valid by this machine's clock makes a blocker,
// `clock_skew`, and nothing else: the tries go on, and with the step that puts
// the clock right one is due at once.
//
// The package knows nothing of probes, sessions or service managers.
package check

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/clock"
	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/wire"
)

const (
	wakeEvery  = 15 * time.Second
	lastBudget = 5 * time.Second // a stop's last check
	workBudget = time.Minute
)

// Plane is what the loop asks of the plane.
type Plane interface {
	Check(ctx context.Context, cred credential.Credential, mark wire.CheckMark, body []byte) (*wire.CheckAnswer, error)
	credential.Rotator
	Close()
}

// Loop is the check loop of one run of agentd.
type Loop struct {
	Store *credential.Store
	// Dial makes the client for where the credential files point; it is called
	// again after Reload.
	Dial func(credential.Plane, *wire.CredentialGate) (Plane, error)
	// Body returns what the machine says of itself, from memory.
	Body func() wire.CheckBody
	// Changed is called by the worker when the credential's state, its last
	// write's success or ClockTrouble became another, for the blockers that
	// follow from them.
	Changed func()
	// Skewed is called when the clocks' offset became another by more than a
	// moment, also from none to one at once. It must not wait.
	Skewed func()
	// Rung is nil for a machine that knows of bearers alone.
	Rung *Rung
	Log  hclog.Logger
	// Clock compares the machine's clocks; nil: Now alone is there, and right.
	Clock *clock.Watch
	Now   func() time.Time // the wall clock; nil means Clock's, or time.Now

	instance string
	kick     chan struct{}
	work     chan struct{}
	reload   chan struct{}
	regate   chan struct{} // another gate token is to be presented

	// Owned by Run's goroutine.
	seq     uint64
	mark    string
	client  Plane
	gate    int64 // version that client presents
	pace    pace
	due     time.Time
	started time.Time // of the last check
	doubted time.Time // when revoked was first heard

	mu          sync.Mutex
	last        wire.LastCheck
	lastOK      time.Time
	okElapsed   time.Duration // lastOK, by the clock that no step moves
	trouble     string        // why the plane cannot be told by this clock
	offset      *time.Duration
	toldOffset  time.Duration // what Skewed was called about last
	requests    wire.Requests
	want        int64                 // version of the gate token
	moves       map[string]int64      // versions of the other kinds
	unreached   int                   // checks in a row that nobody answered
	astray      bool                  // the place before is to be asked for news
	sought      bool                  // the worker looks for why a check was refused
	answered    credential.Credential // presented with the last check that was
	shut        bool                  // a check was refused, by the gate perhaps
	gone        bool                  // the plane said so of this machine in front of the gate
	workerPlane Plane
	stopped     bool // revoked: no more checks
}

// Init makes the loop ready; it is called before everything else.
func (l *Loop) Init() {
	var b [10]byte
	rand.Read(b[:])
	l.instance = strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
	l.kick, l.work, l.reload, l.regate = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	l.pace = newPace()
	switch {
	case l.Now != nil:
	case l.Clock != nil:
		l.Now = l.Clock.Now
	default:
		l.Now = time.Now
	}
	l.Now = stripMonotonic(l.Now)
	if l.Clock == nil {
		l.Clock = clock.New(clock.Fixed(l.Now))
	}
	l.last.IntervalS = l.pace.interval.Seconds()
}

// stripMonotonic leaves only the wall clock, which goes on while the machine sleeps.
func stripMonotonic(now func() time.Time) func() time.Time {
	return func() time.Time { return now().Round(0) }
}

// Kick asks for a check at once; the floor still holds (R10).
func (l *Loop) Kick() { poke(l.kick) }

// Reload says that the credential files changed.
func (l *Loop) Reload() { poke(l.reload) }

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Status is the outcome of the last check, or nil before the first.
func (l *Loop) Status() *wire.LastCheck {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.At.IsZero() {
		return nil
	}
	last := l.last
	last.OKAt = wire.TimeOf(l.lastOK)
	return &last
}

// Fresh tells when the row was confirmed last in this run, and whether that is
// within twice the interval and 20 s.
func (l *Loop) Fresh() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastOK, !l.lastOK.IsZero() && l.Clock.Elapsed()-l.okElapsed <= 2*seconds(l.last.IntervalS)+20*time.Second
}

// ClockTrouble says, while the plane's certificate is not valid by this
// machine's clock, by how much it is out; otherwise it is empty.
func (l *Loop) ClockTrouble() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// Offset is the plane's clock minus the machine's, or nil before an answer.
func (l *Loop) Offset() *time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.offset
}

// Run checks until the context ends.
func (l *Loop) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { l.worker(wctx) })
	l.due = l.Now()
	l.open()
	for {
		if !l.await(ctx) {
			return
		}
		cred, ok := l.ready()
		if !ok {
			l.due = l.Now().Add(maxInterval)
			continue
		}
		if w, ok := l.choose(cred); ok {
			l.check(ctx, w)
		} else {
			l.expired()
		}
	}
}

// await returns true when a check is due, false when the context ended.
func (l *Loop) await(ctx context.Context) bool {
	for {
		// A check takes up to half a minute, and a machine that starts sets its
		// clock in just that time, so the clocks are compared here, not only over a
		// wait: a start that lies in the future would hold the next check back until
		// then.
		if c := l.Clock.Look(); c.Matters() {
			l.Log.Info("the clocks went apart", "slept", c.Slept.Round(time.Second), "stepped", c.Stepped.Round(time.Second))
			if l.client != nil {
				l.client.Close()
			}
			if l.Rung != nil {
				l.Rung.close()
			}
			// Nor does a minute that did not pass lie between two revocations.
			l.due, l.started, l.doubted = l.Now(), time.Time{}, time.Time{}
		}
		now := l.Now()
		if earliest := l.started.Add(l.pace.floor); !l.started.IsZero() && l.due.Before(earliest) {
			l.due = earliest
		}
		wait := l.due.Sub(now)
		if wait <= 0 {
			if wait = l.Clock.Hold(l.pace.settle()); wait == 0 {
				return ctx.Err() == nil
			}
		}
		t := time.NewTimer(min(wait, wakeEvery))
		select {
		case <-ctx.Done():
			t.Stop()
			return false
		case <-l.kick:
			l.due = now
		case <-l.reload:
			l.open()
			l.pace.failures, l.doubted = 0, time.Time{}
			l.due = now
		case <-l.regate:
			l.open()
		case <-t.C:
		}
		t.Stop()
	}
}

// open makes the client for where the files point now.
func (l *Loop) open() {
	if l.client != nil {
		l.client.Close()
		l.client = nil
	}
	if r := l.Rung; r != nil {
		r.close()
		r.Certs.Reload()
		r.turn, r.turns, r.missed = anyTurn, 0, 0
	}
	p, gate := l.Store.Plane()
	l.gate = 0
	if gate != nil {
		l.gate = gate.Version
	}
	if p != nil {
		c, err := l.Dial(*p, gate)
		if err != nil {
			l.Log.Error("cannot use plane", "error", err)
		} else {
			l.client = c
		}
	}
	l.mu.Lock()
	l.workerPlane = l.client
	l.stopped = l.Store.Status().Revoked
	if r := l.Rung; r != nil {
		r.by, r.mutual, r.renew, r.barred, r.descends = nil, nil, false, false, false
	}
	l.mu.Unlock()
}

// ready returns the credential to present, unless there is none, no plane, or
// the machine was deleted.
func (l *Loop) ready() (credential.Credential, bool) {
	l.mu.Lock()
	stopped := l.stopped
	l.mu.Unlock()
	if l.client == nil || stopped {
		return credential.Credential{}, false
	}
	return l.Store.Present()
}

func (l *Loop) check(ctx context.Context, w way) {
	l.started = l.Now()
	began := time.Now()
	l.seq++
	var answer *wire.CheckAnswer
	client, err := l.through(w)
	if err == nil {
		answer, err = client.Check(ctx, w.cred, l.header(), l.body(w, wire.Lifecycle{State: wire.SaidRunning}))
	}
	if ctx.Err() != nil {
		return
	}
	now := l.Now()
	var wait time.Duration
	switch {
	case err == nil:
		l.doubted = time.Time{}
		l.mark = answer.Mark
		wait = l.pace.answered(answer)
		l.accepted(w, answer.Generation, now)
		l.Store.GateAccepted(l.gate)
		l.note(answer, now, time.Since(began))
		l.mu.Lock()
		l.answered, l.want, l.moves, l.shut, l.gone = w.cred, answer.Want[wire.MaterialGate], answer.Want, false, false
		l.mu.Unlock()
		poke(l.work)
	case w.held != nil:
		wait = l.refusedCertificate(w, err, now)
	default:
		wait = l.refusal(w.cred, err, now)
	}
	l.judge(err)
	l.strayed(err)
	l.due = l.started.Add(wait)
	l.report(err, now, wait)
}

var errExpired = errors.New("the certificate is no longer valid, another one is asked for")

func (l *Loop) header() wire.CheckMark {
	return wire.CheckMark{Instance: l.instance, Seq: l.seq, Mark: l.mark, Clock: l.Now()}
}

// offsetMatters is a change of the clocks' offset that no slow answer explains.
const offsetMatters = 5 * time.Second

const (
	maxBlockers = 64
	maxWords    = 512
)

// body is the check's body, cut to its bound. What it presents says which
// request to rotate it answers (R16): the plane that accepts it has it in the
// same transaction, and one that knows of no such request passes over it.
func (l *Loop) body(w way, life wire.Lifecycle) []byte {
	b := l.Body()
	b.Lifecycle = life
	if at := w.answers(); !at.IsZero() {
		b.Echo.Rotate = &at
	}
	if b.Readiness != nil {
		cut := make([]wire.Finding, 0, min(len(b.Readiness.Blockers), maxBlockers))
		for _, f := range b.Readiness.Blockers[:min(len(b.Readiness.Blockers), maxBlockers)] {
			f.Detail, f.Remedy = clip(f.Detail), clip(f.Remedy)
			cut = append(cut, f)
		}
		b.Readiness = &wire.CheckReadiness{Blockers: cut}
	}
	out, err := json.Marshal(b)
	if err != nil || len(out) > wire.MaxCheckBody { // the name and the like are bounded by their sources
		out, _ = json.Marshal(wire.CheckBody{Lifecycle: life})
	}
	return out
}

func clip(s string) string {
	if len(s) <= maxWords {
		return s
	}
	return strings.ToValidUTF8(s[:maxWords], "")
}

// Last sends the last check before a stop. It has its own short deadline,
// since the agent's context is cancelled already, and no floor (R10, R11). It
// is called after Run returned.
func (l *Loop) Last(reason string) error {
	cred, ok := l.ready()
	if !ok {
		return nil
	}
	w, ok := l.choose(cred)
	if !ok {
		return errExpired
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastBudget)
	defer cancel()
	l.seq++
	client, err := l.through(w)
	if err != nil {
		return err
	}
	_, err = client.Check(ctx, w.cred, l.header(), l.body(w, wire.Lifecycle{State: wire.SaidStopping, Reason: &reason}))
	return err
}

// gateWork does what answers lead to for the gate token.
func (l *Loop) gateWork(ctx context.Context, client Plane) {
	l.mu.Lock()
	if r := l.Rung; r != nil && r.mutual != nil && r.Certs.Present() != nil {
		client = r.mutual // where the bearer alone brings nothing
	}
	l.mu.Unlock()
	f, ok := client.(credential.Fetcher)
	if !ok {
		return
	}
	l.mu.Lock()
	cred, want, shut := l.answered, l.want, l.shut
	l.shut = false
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, workBudget)
	defer cancel()
	var moved bool
	var err error
	l.mu.Lock()
	l.sought = shut
	l.mu.Unlock()
	if shut {
		moved, err = l.Store.SeekGate(ctx, f)
		l.mu.Lock()
		l.gone = revoked(err, l.Store.Machine())
		l.mu.Unlock()
	} else {
		moved, err = l.Store.AdvanceGate(ctx, f, cred, want)
	}
	if err != nil && ctx.Err() == nil && !shut {
		l.Log.Warn("cannot take another gate token", "wanted", want, "error", err)
	}
	if moved {
		l.Log.Info("presenting another version of the gate token", "version", l.Store.Status().Gate)
		poke(l.regate)
		if shut {
			l.Kick()
		}
	}
}

// worker does what answers lead to on disk and in further requests.
func (l *Loop) worker(ctx context.Context) {
	said, trouble := "", ""
	state := l.Store.Status()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.work:
		}
		l.mu.Lock()
		client, stopped, requests := l.workerPlane, l.stopped, l.requests
		l.mu.Unlock()
		if stopped {
			if err := l.Store.MarkRevoked(l.Now()); err != nil {
				l.Log.Error("cannot record that this machine was deleted", "error", err)
			}
			continue
		}
		if client != nil {
			l.gateWork(ctx, client)
			l.planeWork(ctx, client)
			wctx, cancel := context.WithTimeout(ctx, workBudget)
			moved, err := l.advance(wctx, client, requests)
			cancel()
			// A machine that has nothing left to present makes no check: what it asks
			// for another certificate is then all that meets the plane's.
			if errors.As(err, new(*plane.ClockError)) {
				l.judge(err)
			}
			if err != nil && ctx.Err() == nil && err.Error() != said {
				said = err.Error()
				l.Log.Warn("credential did not advance", "error", err)
			} else if err == nil {
				said = ""
			}
			if moved {
				l.Log.Info("presenting the next credential")
				l.Kick()
			}
		}
		now, off := l.Store.Status(), l.ClockTrouble()
		if l.Changed != nil && (now.State != state.State || now.Problem != state.Problem || now.Refused != state.Refused || (off == "") != (trouble == "")) {
			l.Changed()
		}
		state, trouble = now, off
	}
}
