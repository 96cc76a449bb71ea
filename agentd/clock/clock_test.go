package clock

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// hands are clocks that a test moves.
type hands struct {
	r      Reading
	synced bool
}

func (h *hands) source() Source {
	return Source{Read: func() Reading { return h.r }, Synced: func() bool { return h.synced }}
}

// run lets time pass on an awake machine.
func (h *hands) run(d time.Duration) {
	h.r.Wall, h.r.Mono, h.r.Boot = h.r.Wall.Add(d), h.r.Mono+d, h.r.Boot+d
}

// sleep suspends it for d; its kernel then does not call the clock synchronised.
func (h *hands) sleep(d time.Duration) {
	h.r.Wall, h.r.Boot, h.synced = h.r.Wall.Add(d), h.r.Boot+d, false
}

// set sets the wall clock.
func (h *hands) set(by time.Duration) { h.r.Wall, h.synced = h.r.Wall.Add(by), false }

func settled() *hands {
	return &hands{r: Reading{Wall: time.Unix(1e9, 0), Mono: time.Hour, Boot: 2 * time.Hour}, synced: true}
}

func TestSleepAndStepAreToldApart(t *testing.T) { // R27
	h := settled()
	w := New(h.source())
	for _, v := range []struct {
		name string
		move func()
		want Change
	}{
		{"an hour awake", func() { h.run(time.Hour) }, Change{}},
		{"a night asleep", func() { h.sleep(8 * time.Hour); h.run(time.Second) }, Change{Slept: 8 * time.Hour}},
		{"set a day ahead", func() { h.set(24 * time.Hour) }, Change{Stepped: 24 * time.Hour}},
		{"set ten years back", func() { h.set(-87600 * time.Hour) }, Change{Stepped: -87600 * time.Hour}},
		{"asleep, with a clock that stood still", func() { h.sleep(time.Hour); h.r.Wall = h.r.Wall.Add(-time.Hour) },
			Change{Slept: time.Hour, Stepped: -time.Hour}},
	} {
		v.move()
		if got := w.Look(); got != v.want {
			t.Errorf("%s: %+v", v.name, got)
		} else if got.Matters() != (v.want != Change{}) {
			t.Errorf("%s matters: %t", v.name, got.Matters())
		}
	}
}

func TestAStepAndASlewThatDoNotMatterHoldNothingBack(t *testing.T) {
	h := settled()
	w := New(h.source())
	h.set(9 * time.Second)
	if c := w.Look(); c.Matters() || w.Hold(Settle) != 0 {
		t.Errorf("%+v", c)
	}
}

func TestAStartAfterABootIsHeldBackAndARestartIsNot(t *testing.T) { // R27
	h := settled()
	h.synced = false
	if d := New(h.source()).Hold(Settle); d != 0 {
		t.Errorf("a restart waits %v", d)
	}
	h.r.Boot = 15 * time.Second
	w := New(h.source())
	if d := w.Hold(Settle); d <= 0 || d > recheck {
		t.Errorf("a boot waits %v", d)
	}
	h.synced = true
	if d := w.Hold(Settle); d != 0 {
		t.Errorf("a clock that is right is waited for, %v", d)
	}
}

// TestNoWaitIsLongerThanItsBound: whatever the clocks do.
func TestNoWaitIsLongerThanItsBound(t *testing.T) { // R27
	rapid.Check(t, func(t *rapid.T) {
		h := settled()
		h.synced = false
		if rapid.Bool().Draw(t, "boot") {
			h.r.Boot = time.Second
		}
		w := New(h.source())
		var held time.Duration // in one piece, awake
		for range rapid.IntRange(1, 200).Draw(t, "looks") {
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				h.set(time.Duration(rapid.Int64Range(-1e18, 1e18).Draw(t, "step")))
			case 1:
				h.sleep(time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "sleep")))
			}
			c := w.Look()
			d := w.Hold(Settle)
			if d < 0 || d > recheck {
				t.Fatalf("asked to wait %v", d)
			}
			if c.Matters() && d == 0 && held == 0 {
				t.Fatal("a clock that was set is believed at once")
			}
			if d == 0 {
				held = 0
				h.run(time.Second)
				continue
			}
			h.run(d)
			if held += d; held > Settle {
				t.Fatalf("held back for %v", held)
			}
		}
	})
}

func TestWhatElapsedIsNotMovedByAStep(t *testing.T) {
	h := settled()
	w := New(h.source())
	before := w.Elapsed()
	h.set(-87600 * time.Hour)
	h.run(time.Minute)
	h.sleep(time.Hour)
	if d := w.Elapsed() - before; d != time.Hour+time.Minute {
		t.Errorf("%v", d)
	}
}

func TestThisMachinesClocksRun(t *testing.T) {
	src := Machine()
	a := src.Read()
	b := src.Read()
	if b.Mono < a.Mono || b.Boot < a.Boot || b.Wall.Before(a.Wall.Add(-time.Hour)) {
		t.Errorf("%+v then %+v", a, b)
	}
	src.Synced() // either, without privileges
}
