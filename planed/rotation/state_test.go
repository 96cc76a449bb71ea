package rotation

import (
	"errors"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

var (
	t0    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	one   = Holding{1, secret.New("fg_").Digest()}
	two   = Holding{2, secret.New("fg_").Digest()}
	three = Holding{3, secret.New("fg_").Digest()}
)

const flat = time.Minute

// idle has version 1.
func idle(t *testing.T) *State {
	t.Helper()
	s := &State{Kind: wire.MaterialGate}
	if ev, err := s.Adopt(one, nil, t0); err != nil || len(ev) != 1 {
		t.Fatal(ev, err)
	}
	return s
}

// at is a rotation from 1 to 2 in a step.
func at(t *testing.T, step string, drill bool) *State {
	t.Helper()
	s := idle(t)
	if _, err := s.Start(Begin{By: "person:dana", Drill: drill, Duration: time.Hour}, t0); err != nil {
		t.Fatal(err)
	}
	if step == wire.StepWiden {
		return s
	}
	if err := s.Made(two); err != nil {
		t.Fatal(err)
	}
	for s.Run.Step != step {
		if _, ok := s.Advance(Facts{Ready: true, Flat: flat}, t0.Add(2*flat)); !ok && s.Run.Step == wire.StepProve {
			s.Advance(Facts{Flat: flat}, t0.Add(4*flat))
		}
	}
	return s
}

// Each step accepts exactly what the invariant needs, and machines are told of a
// version only while every plane accepts it. // R26
func TestWhatEachStepAcceptsAndWants(t *testing.T) {
	for _, test := range []struct {
		step             string
		back             bool
		one, two         bool
		target, retiring int64
	}{
		{"", false, true, false, 1, 0},
		{wire.StepWiden, false, true, false, 1, 0}, // two was not made yet
		{wire.StepRoll, false, true, true, 2, 1},
		{wire.StepProve, false, true, true, 2, 1},
		{wire.StepNarrow, false, false, true, 2, 1},
		{wire.StepRoll, true, true, true, 1, 2},
		{wire.StepNarrow, true, true, false, 1, 2},
	} {
		s := idle(t)
		switch {
		case test.back && test.step == wire.StepNarrow:
			s = at(t, wire.StepRoll, false)
			s.Abort("person:dana", nil, t0)
			s.Run.Step = wire.StepNarrow
		case test.back:
			s = at(t, wire.StepRoll, false)
			s.Abort("person:dana", nil, t0)
		case test.step != "":
			s = at(t, test.step, false)
		}
		if s.Accepts(1, one.Digest) != test.one || s.Accepts(2, two.Digest) != test.two {
			t.Errorf("%s, back %v: accepts 1: %v, 2: %v", test.step, test.back, s.Accepts(1, one.Digest), s.Accepts(2, two.Digest))
		}
		if s.Accepts(1, two.Digest) || s.Accepts(2, one.Digest) || s.Accepts(3, three.Digest) || s.Accepts(0, secret.Digest{}) || s.Accepts(1, secret.Digest{}) {
			t.Errorf("%s: accepts what it must not", test.step)
		}
		if s.Target() != test.target || s.Retiring() != test.retiring {
			t.Errorf("%s, back %v: target %d, retiring %d", test.step, test.back, s.Target(), s.Retiring())
		}
	}
}

func TestItNarrowsOnlyWhenItMay(t *testing.T) { // R26
	late := t0.Add(time.Hour)
	for name, test := range map[string]struct {
		step  string
		facts Facts
		now   time.Time
		want  string
	}{
		"a plane does not accept both":   {wire.StepWiden, Facts{}, late, wire.StepWiden},
		"a straggler":                    {wire.StepRoll, Facts{Behind: 1, Flat: flat}, late, wire.StepRoll},
		"none":                           {wire.StepRoll, Facts{Flat: flat}, late, wire.StepProve},
		"a straggler is back":            {wire.StepProve, Facts{Behind: 1, Flat: flat}, late, wire.StepRoll},
		"used lately":                    {wire.StepProve, Facts{Flat: flat, Last: late.Add(-flat)}, late, wire.StepProve},
		"not used for longer":            {wire.StepProve, Facts{Flat: flat, Last: late.Add(-flat - time.Second)}, late, wire.StepNarrow},
		"the store was opened lately":    {wire.StepProve, Facts{Flat: flat, Since: late.Add(-flat)}, late, wire.StepProve},
		"the step has just begun":        {wire.StepProve, Facts{Flat: flat}, t0.Add(2 * flat), wire.StepProve},
		"not every plane has proved":     {wire.StepNarrow, Facts{Erased: true}, late, wire.StepNarrow},
		"a late straggler stops nothing": {wire.StepNarrow, Facts{Behind: 1}, late, wire.StepNarrow},
	} {
		s := at(t, test.step, false)
		s.Advance(test.facts, test.now)
		if s.Run.Step != test.want || !s.Running() {
			t.Errorf("%s: %s, not %s", name, s.Run.Step, test.want)
		}
	}
}

func TestItEndsOnlyAfterTheProofAndTheErasure(t *testing.T) { // R26
	s := at(t, wire.StepNarrow, false)
	now := t0.Add(time.Hour)
	if ev, ok := s.Advance(Facts{Proved: true, Erased: true}, now); !ok || len(ev) != 1 || s.Run.ProvedAt != now || !s.Running() {
		t.Fatalf("%v, %+v", ev, s.Run)
	}
	if _, ok := s.Advance(Facts{Proved: true}, now); ok {
		t.Fatal("it went on before what is retired was erased")
	}
	if _, ok := s.Advance(Facts{Erased: true}, now); !ok || s.Running() || s.Run.Outcome != wire.RotationDone || s.Version != 2 || s.Digest != two.Digest {
		t.Fatalf("%+v", s)
	}
	if s.Accepts(1, one.Digest) || !s.Accepts(2, two.Digest) || s.Target() != 2 || s.Retiring() != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestTwoPersonsBeginOne(t *testing.T) { // R26
	s := at(t, wire.StepRoll, false)
	before := *s.Run
	if ev, err := s.Start(Begin{By: "person:mo"}, t0.Add(time.Second)); err != nil || len(ev) != 0 || s.Run.By != "person:dana" || s.Run.Step != before.Step {
		t.Fatal(ev, err, s.Run)
	}
	if _, err := s.Start(Begin{By: "person:mo", Drill: true}, t0); !errors.Is(err, ErrRotation) {
		t.Fatal(err)
	}
	if _, err := at(t, wire.StepRoll, true).Start(Begin{By: "person:mo"}, t0); !errors.Is(err, ErrDrill) {
		t.Fatal(err)
	}
	if _, err := (&State{}).Start(Begin{}, t0); !errors.Is(err, ErrNothing) {
		t.Fatal(err)
	}
}

func TestAbortGoesBackUntilItNarrows(t *testing.T) { // R26
	for _, step := range []string{wire.StepRoll, wire.StepProve} {
		s := at(t, step, false)
		if _, err := s.Abort("person:dana", nil, t0); err != nil || s.Run.Step != wire.StepRoll || !s.Run.Back {
			t.Fatalf("%v, %+v", err, s.Run)
		}
		if ev, err := s.Abort("person:mo", nil, t0); err != nil || len(ev) != 0 {
			t.Fatal(ev, err)
		}
	}
	// Nobody was given the new value yet.
	s := at(t, wire.StepWiden, false)
	if _, err := s.Abort("person:dana", nil, t0); err != nil || s.Run.Step != wire.StepNarrow || s.Target() != 1 || !s.Accepts(1, one.Digest) {
		t.Fatalf("%v, %+v", err, s.Run)
	}
	s.Advance(Facts{Proved: true}, t0)
	if s.Advance(Facts{Erased: true}, t0); s.Run.Outcome != wire.RotationAborted || s.Version != 1 {
		t.Fatalf("%+v", s.Run)
	}
	// The number is never used again.
	if s.Start(Begin{}, t0); s.Run.To != 3 {
		t.Fatalf("%+v", s.Run)
	}
	if _, err := at(t, wire.StepNarrow, false).Abort("person:dana", nil, t0); !errors.Is(err, ErrNarrowing) {
		t.Fatal(err)
	}
	if _, err := idle(t).Abort("person:dana", nil, t0); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
}

func TestADrillTurnsBack(t *testing.T) { // R26
	s := at(t, wire.StepRoll, true)
	s.Advance(Facts{Behind: 2, Missed: []string{"m_a", "m_b"}}, t0.Add(59*time.Minute))
	if s.Run.Back {
		t.Fatal("too early")
	}
	if ev, ok := s.Advance(Facts{Behind: 2, Missed: []string{"m_a", "m_b"}}, t0.Add(time.Hour)); !ok || !s.Run.Back || len(s.Run.Missed) != 2 || s.Target() != 1 || ev[0].Detail["missed"] != "2" {
		t.Fatalf("%+v", s.Run)
	}
	// One in which all take part turns back when it would have narrowed.
	s = at(t, wire.StepProve, true)
	if _, ok := s.Advance(Facts{Flat: flat}, t0.Add(10*flat)); !ok || !s.Run.Back || len(s.Run.Missed) != 0 {
		t.Fatalf("%+v", s.Run)
	}
	s.Advance(Facts{Flat: flat}, t0.Add(10*flat))
	s.Advance(Facts{Flat: flat}, t0.Add(20*flat))
	s.Advance(Facts{Proved: true}, t0.Add(20*flat))
	if s.Advance(Facts{Erased: true}, t0.Add(20*flat)); s.Run.Outcome != wire.RotationDrilled || s.Version != 1 || s.Accepts(2, two.Digest) {
		t.Fatalf("%+v", s.Run)
	}
}

func TestLeaveIsNamedAndBounded(t *testing.T) { // R26
	s := at(t, wire.StepRoll, false)
	ev, err := s.Leave("person:dana", []string{"m_a", "m_a", "/v1/enroll"}, t0)
	if err != nil || len(ev) != 2 || !s.Left("m_a") || !s.Left("/v1/enroll") || s.Left("m_b") {
		t.Fatal(ev, err)
	}
	if ev, err := s.Leave("person:dana", []string{"m_a"}, t0); err != nil || len(ev) != 0 {
		t.Fatal(ev, err)
	}
	if _, err := s.Leave("person:dana", make([]string, 0), t0); err != nil {
		t.Fatal(err)
	}
	many := make([]string, MaxNamed)
	for i := range many {
		many[i] = string(rune('a'+i%26)) + num(int64(i))
	}
	if _, err := s.Leave("person:dana", many, t0); !errors.Is(err, ErrTooMany) {
		t.Fatal(err)
	}
	s.Run.Step = wire.StepNarrow
	if _, err := s.Leave("person:dana", []string{"m_c"}, t0); !errors.Is(err, ErrNarrowing) {
		t.Fatal(err)
	}
	if _, err := idle(t).Leave("person:dana", []string{"m_c"}, t0); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
}

// What an earlier deployment puts back lets nobody in, and what a person puts in
// place by hand counts at once. // R26
func TestAdoptKnowsWhatWasRetired(t *testing.T) {
	done := func() *State {
		s := at(t, wire.StepNarrow, false)
		s.Advance(Facts{Proved: true}, t0)
		s.Advance(Facts{Erased: true}, t0)
		return s
	}
	other := Holding{2, three.Digest}
	for name, test := range map[string]struct {
		s         *State
		primary   Holding
		secondary *Holding
		retired   bool
		version   int64
		running   bool
	}{
		"as it is":                            {done(), two, nil, false, 2, false},
		"the retired one is back":             {done(), one, nil, true, 2, false},
		"the retired one beside":              {done(), two, &one, true, 2, false},
		"another value of the number":         {done(), other, nil, true, 2, false},
		"a new one by hand":                   {done(), three, nil, false, 3, false},
		"a new one beside":                    {done(), two, &three, false, 2, false},
		"by hand in the middle":               {at(t, wire.StepRoll, false), three, nil, false, 3, false},
		"both in the middle":                  {at(t, wire.StepRoll, false), one, &two, false, 1, true},
		"swapped in the middle":               {at(t, wire.StepRoll, false), two, &one, false, 1, true},
		"only the old one, not made yet":      {at(t, wire.StepWiden, false), one, nil, false, 1, true},
		"only the new one in the middle":      {at(t, wire.StepRoll, false), two, nil, false, 2, false},
		"only the old one in the middle":      {at(t, wire.StepRoll, false), one, nil, false, 1, false},
		"only the new one while it narrows":   {at(t, wire.StepNarrow, false), two, nil, false, 1, true}, // its end is the engine's
		"only the old one while it narrows":   {at(t, wire.StepNarrow, false), one, nil, true, 1, true},
		"another number beside in the middle": {at(t, wire.StepRoll, false), one, &three, true, 1, true},
	} {
		_, err := test.s.Adopt(test.primary, test.secondary, t0)
		var retired *RetiredError
		if errors.As(err, &retired) != test.retired || (err != nil) != test.retired {
			t.Errorf("%s: %v", name, err)
		}
		if test.s.Version != test.version || test.s.Running() != test.running {
			t.Errorf("%s: version %d, running %v", name, test.s.Version, test.s.Running())
		}
	}
}

// A rotation that is done by hand, with both files, is what an engine's is.
func TestAdoptFollowsARotationByHand(t *testing.T) { // R26
	s := idle(t)
	by := func(primary Holding, secondary *Holding) {
		t.Helper()
		if _, err := s.Adopt(primary, secondary, t0); err != nil {
			t.Fatal(err)
		}
	}
	by(one, &two)
	if !s.Accepts(1, one.Digest) || !s.Accepts(2, two.Digest) || s.Target() != 1 || s.Retiring() != 0 {
		t.Fatalf("%+v", s)
	}
	by(two, &one)
	if !s.Accepts(1, one.Digest) || s.Target() != 2 || s.Retiring() != 1 {
		t.Fatalf("%+v", s)
	}
	// The engine ends it when it is asked to.
	c := s.Clone()
	if _, err := c.Start(Begin{}, t0); err != nil || c.Run.From != 1 || c.Run.To != 2 || c.Run.ToDigest != two.Digest {
		t.Fatalf("%+v, %v", c.Run, err)
	}
	by(two, nil)
	if s.Accepts(1, one.Digest) || s.Retiring() != 0 {
		t.Fatalf("%+v", s)
	}
	if _, err := s.Adopt(two, &one, t0); err == nil {
		t.Fatal("what was retired by hand is accepted again")
	}
}

func TestMadeIsOneValue(t *testing.T) {
	s := at(t, wire.StepWiden, false)
	if err := s.Made(Holding{9, three.Digest}); err != nil || !s.Run.ToDigest.IsZero() {
		t.Fatal("another rotation's value was taken", err)
	}
	if err := s.Made(two); err != nil {
		t.Fatal(err)
	}
	if err := s.Made(two); err != nil {
		t.Fatal(err)
	}
	if err := s.Made(Holding{2, three.Digest}); err == nil {
		t.Fatal("a second value was taken")
	}
}
