package rotation

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
)

// shared is a store that several planes have open.
type shared struct {
	state    State
	tally    Tally
	callers  []Caller
	replicas map[string]Replica
	since    time.Time
}

func (s *shared) RotationState(context.Context, string) (State, error) { return s.state.Clone(), nil }

func (s *shared) Steer(_ context.Context, _ string, _ secret.Digest, f func(*State) ([]audit.Event, error)) (State, error) {
	c := s.state.Clone()
	if _, err := f(&c); err != nil {
		return State{}, err
	}
	s.state = c
	return c.Clone(), nil
}

func (s *shared) Tally(string, func(int64) bool, func(string) bool) Tally { return s.tally }
func (s *shared) Callers(string) []Caller                                 { return s.callers }
func (s *shared) Since() time.Time                                        { return s.since }
func (s *shared) Behind(context.Context, string, func(int64) bool, int) ([]string, error) {
	return []string{"m_a"}, nil
}

func (s *shared) Report(_ context.Context, r Replica) error {
	s.replicas[r.ID] = r
	return nil
}

func (s *shared) Replicas(_ context.Context, _ string, since time.Time) (out []Replica, err error) {
	for _, r := range s.replicas {
		if !r.At.Before(since) {
			out = append(out, r)
		}
	}
	return out, nil
}

// held is what one plane's host holds.
type held struct {
	all      []Holding
	accepts  []int64
	makes    *Holding // what Make makes; nil: it cannot
	proves   error
	erasures int
}

func (h *held) Load() (Holding, *Holding, func(), error) {
	if len(h.all) > 1 {
		return h.all[0], &h.all[1], func() {}, nil
	}
	return h.all[0], nil, func() {}, nil
}

func (h *held) Make(version int64) (Holding, error) {
	for _, x := range h.all {
		if x.Version == version {
			return x, nil
		}
	}
	if h.makes == nil {
		return Holding{}, errors.New("read-only file system")
	}
	h.all = append(h.all, *h.makes)
	return *h.makes, nil
}

func (h *held) Apply(s State) []int64 {
	h.accepts = nil
	for _, x := range h.all {
		if s.Accepts(x.Version, x.Digest) {
			h.accepts = append(h.accepts, x.Version)
		}
	}
	return h.accepts
}

func (h *held) Prove(context.Context, int64) error { return h.proves }

func (h *held) Erase(keep int64) error {
	h.erasures++
	for _, x := range h.all {
		if x.Version == keep {
			h.all = []Holding{x}
		}
	}
	return nil
}

func (h *held) Only(v int64) bool { return len(h.all) == 1 && h.all[0].Version == v }

func replica(t *testing.T, st *shared, id string, h *held, now *time.Time) *Engine {
	t.Helper()
	e := &Engine{Kind: wire.MaterialGate, Store: st, Material: h, Replica: id, Flat: flat, Log: hclog.NewNullLogger(), Now: func() time.Time { return *now }}
	e.Init()
	if err := e.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// Of two planes over one store neither is special: nothing is rolled until both
// accept the new value, and nothing is erased until both have seen the old one
// refused. One that has not reported for a while does not count. // R26
func TestEveryReplicaWidensAndNarrows(t *testing.T) {
	now := t0
	st := &shared{replicas: map[string]Replica{}, since: t0.Add(-time.Hour)}
	a, b := &held{all: []Holding{one}, makes: &two}, &held{all: []Holding{one}}
	ea, eb := replica(t, st, "a", a, &now), replica(t, st, "b", b, &now)
	both := func() {
		eb.Pass(t.Context())
		ea.Pass(t.Context())
		eb.Pass(t.Context())
	}
	both()
	if _, err := ea.Steer(t.Context(), secret.Digest{}, func(s *State) ([]audit.Event, error) { return s.Start(Begin{By: "person:dana"}, now) }); err != nil {
		t.Fatal(err)
	}
	both()
	if s := st.state.Run; s.Step != wire.StepWiden || s.ToDigest != two.Digest {
		t.Fatalf("it rolls though b does not accept the new value: %+v", s)
	}
	b.all = append(b.all, two) // its host was given the value
	if err := eb.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	st.tally = Tally{All: 1, Behind: 1}
	both()
	if st.state.Run.Step != wire.StepRoll {
		t.Fatalf("%+v", st.state.Run)
	}
	st.tally = Tally{All: 1, Moved: 1}
	both()
	b.proves = errors.New("version 1 is still accepted")
	for range 8 { // both report meanwhile
		now = now.Add(flat / 6)
		both()
	}
	if s := st.state.Run; s.Step != wire.StepNarrow || !s.ProvedAt.IsZero() || a.erasures != 0 || len(a.accepts) != 1 || eb.Problem() == "" {
		t.Fatalf("%+v, %d erasures, %v, %q", s, a.erasures, a.accepts, eb.Problem())
	}
	b.proves = nil
	both()
	both()
	if st.state.Running() || st.state.Version != 2 || !a.Only(2) || !b.Only(2) {
		t.Fatalf("%+v, %+v, %+v", st.state.Run, a, b)
	}

	// A plane that has gone does not hold up the next one.
	now = now.Add(time.Hour)
	a.makes = &three
	ea.Steer(t.Context(), secret.Digest{}, func(s *State) ([]audit.Event, error) { return s.Start(Begin{By: "person:dana"}, now) })
	if ea.Pass(t.Context()); st.state.Run.Step == wire.StepWiden {
		t.Fatalf("%+v, %q", st.state.Run, ea.Problem())
	}
}

// A host on which the new value cannot be written says so, and goes on once it
// can, or once somebody put the value there. // R26
func TestAValueThatCannotBeMadeIsAProblemAndNoFailure(t *testing.T) {
	now := t0
	st := &shared{replicas: map[string]Replica{}, since: t0}
	h := &held{all: []Holding{one}}
	e := replica(t, st, "a", h, &now)
	e.Steer(t.Context(), secret.Digest{}, func(s *State) ([]audit.Event, error) { return s.Start(Begin{By: "person:dana"}, now) })
	if !e.Pass(t.Context()) || st.state.Run.Step != wire.StepWiden || e.Problem() == "" || len(h.accepts) != 1 {
		t.Fatalf("%+v, %q", st.state.Run, e.Problem())
	}
	h.makes = &two
	if e.Pass(t.Context()); st.state.Run.Step == wire.StepWiden || e.Problem() != "" {
		t.Fatalf("%+v, %q", st.state.Run, e.Problem())
	}
}

func TestADrillNamesCallersToo(t *testing.T) { // R26
	now := t0
	st := &shared{replicas: map[string]Replica{}, since: t0}
	e := replica(t, st, "a", &held{all: []Holding{one}, makes: &two}, &now)
	e.Steer(t.Context(), secret.Digest{}, func(s *State) ([]audit.Event, error) {
		return s.Start(Begin{By: "token:cron", Drill: true, Duration: time.Minute}, now)
	})
	st.tally = Tally{All: 1, Behind: 1}
	e.Pass(t.Context())
	now = now.Add(time.Minute)
	st.callers = []Caller{{Path: wire.PathEnroll, Uses: 1, Last: now.Add(-time.Second)}, {Path: wire.PathCheck, Uses: 1, Last: now.Add(-time.Hour)}}
	e.Pass(t.Context())
	if r := st.state.Run; !r.Back || len(r.Missed) != 2 || r.Missed[0] != "m_a" || r.Missed[1] != wire.PathEnroll {
		t.Fatalf("%+v", r)
	}
}
