// Package clock knows how far the machine's wall clock is to be believed.
// Certificates are of the wall clock, so a clock that is wrong makes TLS fail,
// and what fails then is the clock and not the identity (R27).
//
// # What is noticed
//
// Three clocks are compared, look by look: the wall clock, the monotonic one,
// which stands still while the machine sleeps, and the one since boot, which
// does not. Between two looks
//
//	slept   = boot − monotonic   the machine was suspended, and woke
//	stepped = wall − boot        somebody set the wall clock
//
// A guest that is restored from a snapshot of its memory resumes with all three
// as they were. No clock of its own says so, and its boot id is the old one;
// what says so is the plane's certificate, which is not valid yet by such a
// clock (package plane), and then the step by which the clock is put right. A
// boot shows as a short time since boot: a machine without a battery for its
// clock begins with the year that it was made in.
//
// # The invariant
//
// After a boot, a wake and a step no connection is begun before the kernel says
// that the wall clock is synchronised, or Settle has passed, whichever is
// first. Hence
//
//   - no check waits longer than Settle for a clock, however often it is set,
//     since a step during the wait does not prolong it, and a machine on which
//     nothing ever synchronises waits for that once each time, and not for ever;
//   - a machine whose clock is being put right does not show a certificate, or
//     judge the plane's, by the wrong one;
//   - while nothing happens to the clocks, nothing waits.
//
// The wait holds back, and does nothing else: no credential is touched, nothing
// is refused, and a stop's last check does not wait. The kernel takes back its
// word "synchronised" whenever the wall clock is set and whenever the machine
// wakes (ntp_clear in its timekeeping), so an old word is not taken for a new
// one. Where the kernel gives no such word, as on darwin, there is no wait.
//
// What elapses is measured on the clock since boot where there is one, so that
// a step makes nothing old or young.
//
// The package must not know the plane, nor what is held back.
package clock

import (
	"sync"
	"time"
)

const (
	// Settle bounds the wait for a clock. Time daemons set the clock within
	// seconds of a wake.
	Settle = 20 * time.Second
	// recheck is how often the kernel is asked meanwhile.
	recheck = time.Second
	// matters is a difference that no slow step between two readings explains.
	matters = 10 * time.Second
	// fresh is how long after a boot a start counts as part of it.
	fresh = 2 * time.Minute
)

// Reading is one look at the clocks.
type Reading struct {
	Wall time.Time     // without a monotonic reading
	Mono time.Duration // since any point; stands still during a sleep
	Boot time.Duration // since boot, sleep included; 0: there is no such clock
}

// Source reads a machine's clocks.
type Source struct {
	Read func() Reading
	// Synced reports whether something keeps the wall clock right, as far as the
	// kernel knows. Where it knows nothing, it is true.
	Synced func() bool
}

// Fixed is a source made of a wall clock alone, which is taken to be right: for
// tests, and for machines that are played.
func Fixed(now func() time.Time) Source {
	began := time.Now()
	return Source{
		Read:   func() Reading { return Reading{Wall: now().Round(0), Mono: time.Since(began)} },
		Synced: func() bool { return true },
	}
}

// Watch compares the clocks. It is safe for concurrent use.
type Watch struct {
	src Source

	mu    sync.Mutex
	last  Reading
	held  bool
	since time.Duration // on the monotonic clock, while held
}

// New begins to compare.
func New(src Source) *Watch {
	w := &Watch{src: src, last: src.Read()}
	if b := w.last.Boot; b > 0 && b < fresh {
		w.held, w.since = true, w.last.Mono
	}
	return w
}

// Now is the wall clock.
func (w *Watch) Now() time.Time { return w.src.Read().Wall }

// Elapsed is a time since some point that a step of the wall clock does not
// change and that goes on in a sleep, where the machine has such a clock.
func (w *Watch) Elapsed() time.Duration {
	r := w.src.Read()
	if r.Boot > 0 {
		return r.Boot
	}
	return time.Duration(r.Wall.UnixNano())
}

// Change is what happened to the clocks between two looks.
type Change struct {
	Slept   time.Duration // the machine was suspended for that long
	Stepped time.Duration // the wall clock was set by that much; where sleep cannot be told, that is in it
}

// Matters reports whether anything happened.
func (c Change) Matters() bool {
	return c.Slept > matters || c.Stepped > matters || c.Stepped < -matters
}

// Look compares the clocks with those of the last look.
func (w *Watch) Look() Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, is := w.last, w.src.Read()
	w.last = is
	ran := is.Mono - was.Mono
	c := Change{Stepped: is.Wall.Sub(was.Wall) - ran}
	if is.Boot > 0 {
		c.Slept = is.Boot - was.Boot - ran
		c.Stepped -= c.Slept
	}
	if c.Matters() && !w.held {
		w.held, w.since = true, is.Mono
	}
	return c
}

// Hold is how long a connection is still to be held back before the question is
// worth asking again; 0: no longer. most is Settle, or less in a lab.
func (w *Watch) Hold(most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.held {
		return 0
	}
	left := most - (w.src.Read().Mono - w.since)
	if left <= 0 || w.src.Synced() {
		w.held = false
		return 0
	}
	return min(left, recheck)
}
