package rotation

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
)

// State is what the store keeps of the rotation of one kind of material.
type State struct {
	Kind    string
	Version int64         // that holds when nothing is under way; 0: none yet
	Digest  secret.Digest // of its value
	// Second is a version that the plane's host accepts besides, without a
	// rotation: its secondary file. 0: none.
	Second       int64
	SecondDigest secret.Digest
	High         int64 // the highest version that ever was: a number never means two values
	Run          *Run  // under way, or the last one
	// Signed is the statement of Version, of a kind that a person signs and that
	// was rotated before; otherwise it is zero.
	Signed Signed
}

// Signed is a value that a person signed: the statement's bytes and the
// signature over them. The package does not look into it.
type Signed struct {
	Statement, Signature string
}

// IsZero reports whether there is none.
func (s Signed) IsZero() bool { return s == Signed{} }

// Signing is a statement with what it says: the version, and the digest of the
// value.
type Signing struct {
	Signed
	Holding
}

// Run is one rotation.
type Run struct {
	From, To             int64
	FromDigest, ToDigest secret.Digest // ToDigest is zero until the value was made
	FromSigned, ToSigned Signed
	Step                 string // one of wire's Step constants
	Back                 bool   // it goes back to From: aborted, or a drill's second half
	Aborted              bool   // a person said so
	Drill                bool
	Until                time.Time // of a drill: it turns back by then
	By                   string
	StartedAt            time.Time
	StepAt               time.Time
	ProvedAt             time.Time // when the retired value was seen to be refused by every replica
	EndedAt              time.Time // zero: under way
	Outcome              string    // then one of wire.RotationDone, RotationAborted, RotationDrilled
	Leave                []string
	// Missed are those that a drill found at its turn, by id or path.
	Missed []string
}

// MaxNamed bounds how many are named in a state.
const MaxNamed = 1000

// Refusals.
var (
	ErrNone      = errors.New("no rotation is under way")
	ErrNarrowing = errors.New("the rotation narrows already: what was retired is refused")
	ErrDrill     = errors.New("a drill is under way")
	ErrRotation  = errors.New("a rotation is under way")
	ErrTooMany   = fmt.Errorf("at most %d can be left", MaxNamed)
	ErrNothing   = errors.New("this plane has no gate")
	ErrUnsigned  = errors.New("it takes a person's signed statement")
	ErrOther     = errors.New("another rotation of this kind is under way")
)

// VersionError refuses a statement of a version that is not the next.
type VersionError struct{ Has, Next int64 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the statement is version %d, and the next one is %d: another was begun meanwhile", e.Has, e.Next)
}

// Running reports whether a rotation is under way.
func (s *State) Running() bool { return s.Run != nil && s.Run.EndedAt.IsZero() }

// Target is the version that machines are to hold now.
func (s *State) Target() int64 {
	if !s.Running() {
		return s.Version
	}
	if r := s.Run; r.Back || r.Step == wire.StepWiden {
		return r.From
	}
	return s.Run.To
}

// Moved reports whether a machine that presented a version last is where it is
// to be. Of what a person signed, going back, those are there that never left:
// what they hold is the value that comes back, under its number of before.
func (s *State) Moved(version int64) bool {
	if version == s.Target() {
		return true
	}
	return s.Running() && s.Run.Back && !s.Run.ToSigned.IsZero() && version < s.Run.To
}

// Retiring is the version whose uses are counted: it is to be accepted no more.
// 0: none.
func (s *State) Retiring() int64 {
	if !s.Running() {
		if s.Second != 0 && s.Second < s.Version {
			return s.Second
		}
		return 0
	}
	switch r := s.Run; {
	case r.Back:
		return r.To
	case r.Step == wire.StepWiden:
		return 0
	}
	return s.Run.From
}

// Accepts reports whether a value is accepted by this state. It is the only
// place that says so.
func (s *State) Accepts(version int64, digest secret.Digest) bool {
	if version == 0 || digest.IsZero() {
		return false
	}
	if !s.Running() {
		return version == s.Version && digest == s.Digest || version == s.Second && digest == s.SecondDigest
	}
	r := s.Run
	narrow := r.Step == wire.StepNarrow
	if version == r.To && digest == r.ToDigest {
		return !narrow || !r.Back
	}
	if version == r.From && digest == r.FromDigest {
		return !narrow || r.Back
	}
	return false
}

// Holding is a version with the digest of its value, as a plane's host holds it.
type Holding struct {
	Version int64
	Digest  secret.Digest
}

// RetiredError refuses a version that was retired, or whose number meant
// another value.
type RetiredError struct {
	Kind    string
	Version int64
	Other   bool
}

func (e *RetiredError) Error() string {
	if e.Other {
		return fmt.Sprintf("version %d of the %s was another value before; a number never means two", e.Version, e.Kind)
	}
	return fmt.Sprintf("version %d of the %s was retired, and is accepted no more", e.Version, e.Kind)
}

// Adopt brings the state in line with what the plane's host holds: a primary
// and perhaps a secondary value. A version above all that were is a person's
// doing on the host, and counts at once; everything else must be known. An
// error leaves the state as it was.
func (s *State) Adopt(primary Holding, secondary *Holding, now time.Time) ([]audit.Event, error) {
	if s.Running() && primary.Version > s.High {
		// Somebody has put a new value in place by hand: the way out of a leak.
		r := s.Run
		r.EndedAt, r.Outcome = now, wire.RotationAborted
		s.settle(primary, nil)
		return []audit.Event{s.event(now, "local:host", "adopt", map[string]string{"version": num(primary.Version)})}, nil
	}
	if s.Running() {
		for _, h := range []*Holding{&primary, secondary} {
			if h == nil {
				continue
			}
			if err := s.known(*h); err != nil {
				return nil, err
			}
		}
		return s.adoptOne(primary, secondary, now)
	}
	if s.Version == 0 { // the first that is seen
		s.settle(primary, secondary)
		return []audit.Event{s.event(now, "local:host", "adopt", map[string]string{"version": num(primary.Version)})}, nil
	}
	if primary.Version <= s.High {
		if err := s.known(primary); err != nil {
			return nil, err
		}
	}
	if secondary != nil && secondary.Version <= s.High {
		if err := s.known(*secondary); err != nil {
			return nil, err
		}
	}
	before := *s
	s.settle(primary, secondary)
	if before.Version == s.Version && before.Second == s.Second {
		return nil, nil
	}
	detail := map[string]string{"version": num(s.Version), "from": num(before.Version)}
	if s.Second != 0 {
		detail["second"] = num(s.Second)
	}
	return []audit.Event{s.event(now, "local:host", "adopt", detail)}, nil
}

// adoptOne ends a rotation of which the host holds one value alone, though both
// were made: it was narrowed in a time that this state does not know, as after a
// restore, or somebody took one away. Whoever holds the other one fetches this.
func (s *State) adoptOne(only Holding, secondary *Holding, now time.Time) ([]audit.Event, error) {
	r := s.Run
	if secondary != nil || only.Version == r.From && r.ToDigest.IsZero() {
		return nil, nil
	}
	if r.Step == wire.StepNarrow {
		if only.Version != s.Target() {
			return nil, &RetiredError{s.Kind, only.Version, false}
		}
		return nil, nil // it was erased and the end not recorded: narrowing goes on and finds nothing left
	}
	r.EndedAt, r.Outcome = now, wire.RotationDone
	if only.Version == r.From {
		r.Outcome = wire.RotationAborted
		if r.Drill && r.Back && !r.Aborted {
			r.Outcome = wire.RotationDrilled
		}
	}
	s.settle(only, nil)
	return []audit.Event{s.event(now, "local:host", "adopt", map[string]string{"version": num(only.Version)})}, nil
}

func (s *State) settle(primary Holding, secondary *Holding) {
	s.Signed = s.signedFor(primary.Version)
	s.Version, s.Digest = primary.Version, primary.Digest
	s.Second, s.SecondDigest = 0, secret.Digest{}
	if secondary != nil && secondary.Version != primary.Version {
		s.Second, s.SecondDigest = secondary.Version, secondary.Digest
	}
	s.High = max(s.High, s.Version, s.Second)
}

// signedFor is the statement of a version that this state knows.
func (s *State) signedFor(version int64) Signed {
	if version == s.Version {
		return s.Signed
	}
	if r := s.Run; r != nil && version == r.To {
		return r.ToSigned
	} else if r != nil && version == r.From {
		return r.FromSigned
	}
	return Signed{}
}

// Given is the statement of the version that machines are to hold now.
func (s *State) Given() Signed { return s.signedFor(s.Target()) }

// known refuses a holding that this state does not know as one that lives.
func (s *State) known(h Holding) error {
	live := []Holding{{s.Version, s.Digest}, {s.Second, s.SecondDigest}}
	if s.Running() {
		live = []Holding{{s.Run.From, s.Run.FromDigest}, {s.Run.To, s.Run.ToDigest}}
	}
	for _, l := range live {
		switch {
		case l.Version != h.Version || l.Version == 0:
		case l.Digest.IsZero() || l.Digest == h.Digest: // zero: it is being made
			return nil
		default:
			return &RetiredError{s.Kind, h.Version, true}
		}
	}
	return &RetiredError{s.Kind, h.Version, false}
}

// Begin is the wish to rotate.
type Begin struct {
	By       string
	Drill    bool
	Duration time.Duration // of a drill, before it turns back
	// Signing is the new value of a kind that a person signs.
	Signing *Signing
}

// Start begins a rotation, or joins the one that is under way.
func (s *State) Start(b Begin, now time.Time) ([]audit.Event, error) {
	if s.Running() {
		switch {
		case s.Run.Drill && !b.Drill:
			return nil, ErrDrill
		case !s.Run.Drill && b.Drill:
			return nil, ErrRotation
		case b.Signing != nil && (s.Run.Back || b.Signing.Signed != s.Run.ToSigned && b.Signing.Digest != s.Run.ToDigest):
			return nil, ErrOther
		}
		return nil, nil
	}
	if s.Version == 0 {
		return nil, ErrNothing
	}
	if b.Signing != nil && b.Signing.Version != s.High+1 {
		return nil, &VersionError{b.Signing.Version, s.High + 1}
	}
	r := &Run{From: s.Version, FromDigest: s.Digest, FromSigned: s.Signed, Step: wire.StepWiden, Drill: b.Drill, By: b.By, StartedAt: now, StepAt: now}
	switch {
	case b.Drill && s.Second != 0:
		return nil, ErrRotation // one is being done by hand
	case b.Drill:
		r.To = s.High + 1
		r.Until = now.Add(b.Duration)
	case s.Second > s.Version:
		r.To, r.ToDigest = s.Second, s.SecondDigest
	case s.Second != 0: // one that was begun by hand is ended
		r.From, r.FromDigest, r.To, r.ToDigest = s.Second, s.SecondDigest, s.Version, s.Digest
	default:
		r.To = s.High + 1
	}
	if b.Signing != nil {
		r.ToSigned = b.Signing.Signed
	}
	s.Run, s.High = r, max(s.High, r.To)
	detail := map[string]string{"from": num(r.From), "to": num(r.To)}
	if r.Drill {
		detail["drill"] = "true"
	}
	return []audit.Event{s.event(now, b.By, "start", detail)}, nil
}

// Made records the digest of the new value.
func (s *State) Made(h Holding) error {
	if !s.Running() || s.Run.To != h.Version {
		return nil // it is another rotation's
	}
	if r := s.Run; !r.ToDigest.IsZero() && r.ToDigest != h.Digest {
		return &RetiredError{s.Kind, h.Version, true}
	}
	s.Run.ToDigest = h.Digest
	return nil
}

// Abort turns back to the value that was before. Where a person signed the new
// one and machines may hold it, again says once more what was before, under the
// next version: machines never go back to a lower one.
func (s *State) Abort(by string, again *Signing, now time.Time) ([]audit.Event, error) {
	switch {
	case !s.Running():
		return nil, ErrNone
	case s.Run.Back:
		return nil, nil
	case s.Run.Step == wire.StepNarrow:
		return nil, ErrNarrowing
	}
	if r := s.Run; !r.ToSigned.IsZero() && r.Step != wire.StepWiden {
		switch {
		case again == nil:
			return nil, ErrUnsigned
		case again.Version != s.High+1:
			return nil, &VersionError{again.Version, s.High + 1}
		case again.Digest != r.FromDigest:
			return nil, ErrOther
		}
		r.From, r.FromSigned, s.High = again.Version, again.Signed, again.Version
	}
	s.Run.Aborted = true
	return s.turn(by, nil, now), nil
}

func (s *State) turn(by string, missed []string, now time.Time) []audit.Event {
	r := s.Run
	fresh := r.Step == wire.StepWiden
	r.Back, r.Step, r.StepAt, r.Missed = true, wire.StepRoll, now, missed
	if fresh {
		// Nobody was given the new value: it is served from roll on.
		r.Step = wire.StepNarrow
	}
	detail := map[string]string{"to": num(r.From)}
	if len(missed) > 0 {
		detail["missed"] = strconv.Itoa(len(missed))
	}
	return []audit.Event{s.event(now, by, "back", detail)}
}

// Leave narrows past those that are named.
func (s *State) Leave(by string, names []string, now time.Time) ([]audit.Event, error) {
	if !s.Running() {
		return nil, ErrNone
	}
	r := s.Run
	var added []string
	for _, n := range names {
		if !slices.Contains(r.Leave, n) && !slices.Contains(added, n) {
			added = append(added, n)
		}
	}
	if len(added) == 0 {
		return nil, nil
	}
	if r.Step == wire.StepNarrow {
		return nil, ErrNarrowing
	}
	if len(r.Leave)+len(added) > MaxNamed {
		return nil, ErrTooMany
	}
	r.Leave = append(slices.Clone(r.Leave), added...)
	ev := make([]audit.Event, 0, len(added))
	for _, n := range added {
		ev = append(ev, s.event(now, by, "leave", map[string]string{"left": n}))
	}
	return ev, nil
}

// Left reports whether who is named was left.
func (s *State) Left(who string) bool { return s.Running() && slices.Contains(s.Run.Leave, who) }

// Facts are what a decision rests on.
type Facts struct {
	Ready  bool      // every live replica accepts both values
	Behind int       // machines that presented another version than the target last, and were not left
	Last   time.Time // of the last use of the retiring value by one that was not left; zero: none
	Since  time.Time // from when on uses are known without a gap
	Flat   time.Duration
	Missed []string // who holds narrowing up, at most MaxNamed
	Proved bool     // every live replica has seen the retired value refused
	Erased bool     // no live replica holds it any more
}

// Quiet is since when the retiring value was not used, as far as is known.
func (s *State) Quiet(f Facts) time.Time {
	at := f.Since
	for _, t := range []time.Time{f.Last, s.Run.StepAt} {
		if t.After(at) {
			at = t
		}
	}
	return at
}

// Advance takes the step that the facts allow, if they allow one.
func (s *State) Advance(f Facts, now time.Time) ([]audit.Event, bool) {
	if !s.Running() {
		return nil, false
	}
	r := s.Run
	if r.Drill && !r.Back && r.Step != wire.StepNarrow && !now.Before(r.Until) {
		return s.turn("plane", f.Missed, now), true
	}
	switch r.Step {
	case wire.StepWiden:
		if f.Ready && !r.ToDigest.IsZero() {
			return s.step(wire.StepRoll, now), true
		}
	case wire.StepRoll:
		if f.Behind == 0 {
			return s.step(wire.StepProve, now), true
		}
	case wire.StepProve:
		switch {
		case f.Behind > 0:
			return s.step(wire.StepRoll, now), true
		case now.Sub(s.Quiet(f)) <= f.Flat:
		case r.Drill && !r.Back:
			return s.turn("plane", nil, now), true
		default:
			return s.step(wire.StepNarrow, now), true
		}
	case wire.StepNarrow:
		switch {
		case r.ProvedAt.IsZero() && f.Proved:
			r.ProvedAt = now
			return []audit.Event{s.event(now, "plane", "proved", map[string]string{"retired": num(s.Retiring())})}, true
		case !r.ProvedAt.IsZero() && f.Erased:
			return s.end(now), true
		}
	}
	return nil, false
}

func (s *State) step(to string, now time.Time) []audit.Event {
	s.Run.Step, s.Run.StepAt = to, now
	return []audit.Event{s.event(now, "plane", to, map[string]string{"to": num(s.Target())})}
}

func (s *State) end(now time.Time) []audit.Event {
	r := s.Run
	retired := s.Retiring()
	s.Version, s.Digest, s.Signed = r.To, r.ToDigest, r.ToSigned
	r.Outcome = wire.RotationDone
	if r.Back {
		s.Version, s.Digest, s.Signed = r.From, r.FromDigest, r.FromSigned
		r.Outcome = wire.RotationAborted
		if r.Drill && !r.Aborted {
			r.Outcome = wire.RotationDrilled
		}
	}
	s.Second, s.SecondDigest = 0, secret.Digest{}
	r.EndedAt = now
	return []audit.Event{s.event(now, "plane", r.Outcome, map[string]string{"version": num(s.Version), "retired": num(retired)})}
}

func (s *State) event(now time.Time, by, what string, detail map[string]string) audit.Event {
	return audit.Event{At: now, Actor: by, Action: "rotation." + what, Subject: "material:" + s.Kind, Detail: detail}
}

func num(n int64) string { return strconv.FormatInt(n, 10) }

// Clone returns a deep copy.
func (s *State) Clone() State {
	c := *s
	if s.Run != nil {
		r := *s.Run
		r.Leave, r.Missed = slices.Clone(r.Leave), slices.Clone(r.Missed)
		c.Run = &r
	}
	return c
}
