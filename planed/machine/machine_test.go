package machine

import (
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newRow(t *testing.T) (*Row, secret.Digest) {
	t.Helper()
	d := secret.New("fm_").Digest()
	r, ev := New(wire.NewMachineID(), Admission{By: By{Actor: "person:dana", Person: "dana"}, Installation: secret.New("").Digest(), Credential: d}, t0)
	if len(ev) != 1 || ev[0].Action != "machine.admit" {
		t.Fatal(ev)
	}
	return r, d
}

// hear sends a check with a body digest of its own.
func hear(t *testing.T, r *Row, d secret.Digest, seq uint64, at time.Time, b wire.CheckBody) Heard {
	t.Helper()
	return r.Hear(Check{Presented: Bearer(d), Mark: wire.CheckMark{Instance: "a", Seq: seq}, Digest: [16]byte{byte(seq), 1}, At: at}, &b)
}

func body(said string, blockers ...wire.Finding) wire.CheckBody {
	return wire.CheckBody{Lifecycle: wire.Lifecycle{State: said}, Readiness: &wire.CheckReadiness{Blockers: blockers}}
}

func TestSilenceIsMeasuredInIntervals(t *testing.T) { // R9
	for _, c := range []struct {
		p    Policy
		want time.Duration
	}{
		{Policy{Interval: 30 * time.Second}, 2 * time.Minute},
		{Policy{Interval: 50 * time.Second}, 2 * time.Minute},
		{Policy{Interval: 5 * time.Minute}, 10*time.Minute + 20*time.Second},
		{Policy{Interval: time.Second, TestFloor: time.Second}, 12 * time.Second},
		{Policy{Interval: 30 * time.Second, TestFloor: time.Second}, 62 * time.Second},
	} {
		if got := c.p.Silence(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.p, got, c.want)
		}
	}
}

func TestPresenceCountsFromTheOpeningForThoseWhoWerePresent(t *testing.T) { // R9, R19
	p := Policy{Interval: 30 * time.Second}
	alive := t0.Add(time.Hour)
	opened := alive.Add(time.Hour) // an outage of an hour
	e := Epoch{Opened: opened, Alive: alive}
	for _, c := range []struct {
		name string
		last time.Time
		now  time.Time
		want string
	}{
		{"never", time.Time{}, opened, wire.Never},
		{"was present", alive.Add(-time.Minute), opened.Add(time.Second), wire.Present},
		{"was present, stayed silent", alive.Add(-time.Minute), opened.Add(121 * time.Second), wire.Absent},
		{"was absent before", alive.Add(-3 * time.Minute), opened.Add(time.Second), wire.Absent},
		{"checked since", opened.Add(time.Minute), opened.Add(3 * time.Minute), wire.Present},
		{"checked since, silent", opened.Add(time.Minute), opened.Add(3*time.Minute + time.Second), wire.Absent},
	} {
		if got, _ := p.Presence(c.last, c.now, e); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if got, _ := p.Presence(t0, t0.Add(3*time.Minute), Epoch{Opened: t0.Add(-time.Hour)}); got != wire.Absent {
		t.Error("a new store makes nobody present:", got)
	}
}

func TestLifecycleIsWhatWasSaidAndWhetherItWentOn(t *testing.T) { // R12
	p, e := Policy{Interval: 30 * time.Second}, Epoch{Opened: t0.Add(-time.Hour)}
	r, d := newRow(t)
	state := func(now time.Time) string { return r.View(p, e, now).Lifecycle.State }
	if got := state(t0); got != wire.LifecycleNever {
		t.Error(got)
	}
	hear(t, r, d, 1, t0, body(wire.SaidRunning))
	if got := state(t0.Add(time.Minute)); got != wire.LifecycleRunning {
		t.Error(got)
	}
	v := r.View(p, e, t0.Add(time.Hour))
	if v.Lifecycle.State != wire.LifecycleUnknown || *v.Lifecycle.Said != wire.SaidRunning || !v.Lifecycle.Since.Equal(t0.Add(2*time.Minute)) || v.Presence != wire.Absent {
		t.Errorf("%+v", v.Lifecycle)
	}
	stop := body(wire.SaidStopping)
	reason := wire.ReasonUpdate
	stop.Lifecycle.Reason = &reason
	hear(t, r, d, 2, t0.Add(time.Hour), stop)
	for _, now := range []time.Time{t0.Add(time.Hour), t0.Add(48 * time.Hour)} {
		if v := r.View(p, e, now); v.Lifecycle.State != wire.LifecycleStopped || *v.Lifecycle.Reason != "update" || v.Accepting {
			t.Errorf("%+v", v.Lifecycle)
		}
	}
	hear(t, r, d, 3, t0.Add(49*time.Hour), body(wire.SaidRunning))
	if got := state(t0.Add(49 * time.Hour)); got != wire.LifecycleRunning {
		t.Error(got)
	}
	odd := "whatever\x1b[2J"
	stop.Lifecycle.Reason = &odd
	hear(t, r, d, 4, t0.Add(50*time.Hour), stop)
	if r.Told.Reason != wire.ReasonSignal {
		t.Error(r.Told.Reason)
	}
}

func TestReadinessKeepsWhatIsNotProbed(t *testing.T) { // R15
	p, e := Policy{Interval: 30 * time.Second}, Epoch{Opened: t0}
	r, d := newRow(t)
	hear(t, r, d, 1, t0, wire.CheckBody{Lifecycle: wire.Lifecycle{State: wire.SaidRunning}})
	if v := r.View(p, e, t0); v.Readiness.State != wire.ReadinessUnknown || v.Accepting {
		t.Errorf("%+v", v.Readiness)
	}
	hear(t, r, d, 2, t0.Add(time.Second), body(wire.SaidRunning, wire.Finding{Code: "disk_floor"}, wire.Finding{Code: "clock_skew", Severity: "warn"}))
	hear(t, r, d, 3, t0.Add(2*time.Second), wire.CheckBody{Lifecycle: wire.Lifecycle{State: wire.SaidRunning}})
	if v := r.View(p, e, t0.Add(3*time.Second)); v.Readiness.State != wire.Blocked || len(v.Readiness.Blockers) != 2 || !v.Readiness.At.Equal(t0.Add(time.Second)) {
		t.Errorf("%+v", v.Readiness)
	}
	hear(t, r, d, 4, t0.Add(9*time.Second), body(wire.SaidRunning, wire.Finding{Code: "clock_skew", Severity: "warn"}, wire.Finding{Code: "memory_floor", Severity: "warn"}))
	v := r.View(p, e, t0.Add(9*time.Second))
	if v.Readiness.State != wire.Ready || !v.Accepting {
		t.Errorf("%+v", v.Readiness)
	}
	if s := v.Readiness.Blockers; !s[0].Since.Equal(t0.Add(time.Second)) || !s[1].Since.Equal(t0.Add(9*time.Second)) {
		t.Errorf("since: %+v", s)
	}
	hear(t, r, d, 5, t0.Add(10*time.Second), body(wire.SaidRunning))
	if v := r.View(p, e, t0.Add(10*time.Second)); v.Readiness.State != wire.Ready || len(v.Readiness.Blockers) != 0 || v.Readiness.Blockers == nil {
		t.Errorf("%+v", v.Readiness)
	}
}

func TestWhatAMachineSaysIsBoundedAndClean(t *testing.T) { // R13, R18
	r, d := newRow(t)
	b := body(wire.SaidRunning)
	for range 500 {
		b.Readiness.Blockers = append(b.Readiness.Blockers, wire.Finding{Code: "Odd Code\n", Detail: "\x1b[31m" + strings.Repeat("é", 2000), Remedy: "ask 192.0.2.9:22 now"})
	}
	b.Version = strings.Repeat("9", 1000)
	b.Boot = "fe80::1%eth0"
	hear(t, r, d, 1, t0, b)
	if len(r.Told.Blockers) != maxBlockers || len(r.Told.Version) != maxWord || r.Told.Boot != "[address]" {
		t.Errorf("%d %d %q", len(r.Told.Blockers), len(r.Told.Version), r.Told.Boot)
	}
	x := r.Told.Blockers[0]
	if x.Code != "odd_code_" || strings.ContainsAny(x.Detail, "\x1b\n") || len([]rune(x.Detail)) > maxText || strings.Contains(x.Remedy, "192.0.2.9") || x.Severity != wire.SeverityBlock {
		t.Errorf("%+v", x)
	}
}

func TestSuggestedNames(t *testing.T) { // R14
	for in, want := range map[string]string{
		"Box": "box", "web-1.example.org": "web-1", "a b": "a-b", "-x-": "x", "": "", "localhost": "", "localhost.localdomain": "",
		"10.0.0.5": "", "ip-10-0-0-5.ec2.internal": "", "2001-db8--1": "", "host-93-184-216-34.isp.example": "",
		"52-54-00-12-34-56": "", strings.Repeat("x", 80): strings.Repeat("x", 63), "é": "", strings.Repeat("y", 300): "",
		"m_abcdefghijklmnopqrstuvwxyz": "",
	} {
		if got := SuggestedName(in); got != want {
			t.Errorf("SuggestedName(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzSuggestedNameIsAName(f *testing.F) {
	f.Add("Web-1.example.org")
	f.Fuzz(func(t *testing.T, s string) {
		if n := SuggestedName(s); n != "" && wire.CheckName(n) != nil {
			t.Errorf("%q → %q", s, n)
		}
	})
}

func TestATombstoneKeepsNothingButWhatItAnswers(t *testing.T) { // R23
	r, d := newRow(t)
	hear(t, r, d, 1, t0, body(wire.SaidRunning, wire.Finding{Code: "x", Detail: "y"}))
	if _, err := r.Label(By{Owner: true}, map[string]string{"a": "b"}, nil, t0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Delete(By{Actor: "person:dana", Owner: true}, t0); err != nil {
		t.Fatal(err)
	}
	if r.Labels != nil || r.Told.Version != "" || len(r.Told.Blockers) != 0 || !r.Installation.IsZero() || r.Gone() == nil {
		t.Errorf("%+v", r)
	}
}

// TestAStepOfThePlanesClockMakesNobodyAbsent: nor present, of those who had been
// silent. The bounds are those of a restart.
func TestAStepOfThePlanesClockMakesNobodyAbsent(t *testing.T) { // R9, R19
	p := Policy{Interval: 30 * time.Second}
	for name, step := range map[string]time.Duration{
		"10 minutes ahead": 10 * time.Minute, "a year ahead": 8760 * time.Hour, "10 minutes back": -10 * time.Minute, "a year back": -8760 * time.Hour,
	} {
		// The clock is set after an hour.
		before, after := t0.Add(time.Hour), t0.Add(time.Hour+time.Second+step)
		e := Epoch{Opened: t0}.afterParts(before, after.Sub(before), time.Second)
		present, silent := before.Add(-20*time.Second), before.Add(-30*time.Minute)
		for _, c := range []struct {
			what string
			last time.Time
			now  time.Duration
			want string
		}{
			{"who was present", present, time.Second, wire.Present},
			{"who was present, and is silent since", present, 5 * time.Minute, wire.Absent},
			{"who was silent", silent, time.Second, wire.Absent},
			{"who checks on", after.Add(30 * time.Second), time.Minute, wire.Present},
			{"who checked on, and is silent since", after.Add(30 * time.Second), 5 * time.Minute, wire.Absent},
		} {
			if got, _ := p.Presence(c.last, after.Add(c.now), e); got != c.want {
				t.Errorf("%s: %s is %s, want %s", name, c.what, got, c.want)
			}
		}
	}
}

func TestSlewAndRunningTimeAreNoStep(t *testing.T) {
	e := Epoch{Opened: t0}
	if got := e.afterParts(t0, time.Hour+5*time.Second, time.Hour); got != e {
		t.Errorf("%+v", got)
	}
	now := time.Now()
	if got := e.After(now, now.Add(48*time.Hour)); got != e {
		t.Errorf("%+v", got)
	}
}
