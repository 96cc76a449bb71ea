package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	engine "fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/store"
)

func nobody(string) bool { return false }

func holding(target int64) func(int64) bool { return func(v int64) bool { return v == target } }

// gated makes a check with a gate token's version.
func gated(t *testing.T, s store.Store, b *Box, version int64, retiring bool, at time.Time) {
	t.Helper()
	b.Seq++
	did, err := s.Check(t.Context(), store.Check{Machine: b.ID,
		Check: machine.Check{Presented: machine.Bearer(b.Secret.Digest()), Mark: wire.CheckMark{Instance: b.Instance, Seq: b.Seq}, Digest: [16]byte{1}, At: at,
			Gate: version, Retiring: retiring},
		Body: func() (*wire.CheckBody, error) { return &b.Body, nil }})
	if err != nil || did.Standing != identity.Current {
		t.Fatal(did, err)
	}
}

func steer(t *testing.T, s store.Store, f func(*engine.State) ([]audit.Event, error)) engine.State {
	t.Helper()
	st, err := s.Steer(t.Context(), wire.MaterialGate, secret.Digest{}, f)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

var (
	one = engine.Holding{Version: 1, Digest: secret.New("fg_").Digest()}
	two = engine.Holding{Version: 2, Digest: secret.New("fg_").Digest()}
)

// rollTo begins a rotation from 1 to 2 and takes it to roll.
func rollTo(t *testing.T, s store.Store) {
	t.Helper()
	steer(t, s, func(st *engine.State) ([]audit.Event, error) { return st.Adopt(one, nil, Base) })
	steer(t, s, func(st *engine.State) ([]audit.Event, error) { return st.Start(engine.Begin{By: Owner.Actor}, Base) })
	steer(t, s, func(st *engine.State) ([]audit.Event, error) { return nil, st.Made(two) })
	steer(t, s, func(st *engine.State) ([]audit.Event, error) {
		ev, _ := st.Advance(engine.Facts{Ready: true}, Base)
		return ev, nil
	})
}

// gateUses: what a machine presented last is durable before it is answered, its
// uses of what retires like the times of checks. // R26
func gateUses(t *testing.T, f Fixture) {
	s := f.Open(t)
	moved, behind, deleted := newBox(t, s, Owner), newBox(t, s, Owner), newBox(t, s, Owner)
	for _, b := range []*Box{moved, behind, deleted} {
		gated(t, s, b, 1, false, Base.Add(time.Second))
	}
	rollTo(t, s)
	gated(t, s, moved, 1, true, Base.Add(2*time.Second))
	gated(t, s, moved, 2, false, Base.Add(3*time.Second))
	for i := range 3 {
		gated(t, s, behind, 1, true, Base.Add(time.Duration(4+i)*time.Second))
	}
	if _, err := s.Edit(t.Context(), deleted.ID, store.Change{By: Owner, At: Base, Delete: true}); err != nil {
		t.Fatal(err)
	}
	s.CallerUsed(wire.MaterialGate, wire.PathEnroll, Base.Add(5*time.Second))
	s.CallerUsed(wire.MaterialGate, wire.PathEnroll, Base.Add(6*time.Second))
	s.MachineUsed(wire.MaterialGate, behind.ID, Base.Add(7*time.Second))
	s.MachineUsed(wire.MaterialGate, wire.NewMachineID(), Base) // nobody
	look := func(s store.Store) {
		t.Helper()
		got := s.Tally(wire.MaterialGate, holding(2), nobody)
		if want := (engine.Tally{All: 2, Moved: 1, Behind: 1, Uses: 5, Last: Base.Add(7 * time.Second)}); got != want {
			t.Errorf("%+v, not %+v", got, want)
		}
		got = s.Tally(wire.MaterialGate, holding(2), func(id string) bool { return id == behind.ID })
		if want := (engine.Tally{All: 2, Moved: 1, Left: 1, Uses: 5, Last: Base.Add(2 * time.Second)}); got != want {
			t.Errorf("with one left %+v, not %+v", got, want)
		}
		if c := s.Callers(wire.MaterialGate); len(c) != 1 || c[0] != (engine.Caller{Path: wire.PathEnroll, Uses: 2, Last: Base.Add(6 * time.Second)}) {
			t.Errorf("callers: %+v", c)
		}
		if names, err := s.Behind(t.Context(), wire.MaterialGate, holding(2), 10); err != nil || !slices.Equal(names, []string{behind.ID}) {
			t.Errorf("behind: %v, %v", names, err)
		}
		r, err := s.Machine(t.Context(), behind.ID)
		if err != nil || r.Gate != 1 || r.GateUses != (machine.Uses{Count: 4, Last: Base.Add(7 * time.Second)}) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	look(s)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Crash(t, s)
	s = f.Open(t)
	look(s)
	// What was not flushed is lost, and what was presented is not.
	gated(t, s, behind, 2, false, Base.Add(8*time.Second))
	s.MachineUsed(wire.MaterialGate, behind.ID, Base.Add(9*time.Second))
	f.Crash(t, s)
	s = f.Open(t)
	if r, err := s.Machine(t.Context(), behind.ID); err != nil || r.Gate != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	// Another version retires from here on: its uses are counted from nothing.
	steer(t, s, func(st *engine.State) ([]audit.Event, error) { return st.Abort(Owner.Actor, nil, Base) })
	if got := s.Tally(wire.MaterialGate, holding(1), nobody); got.Uses != 0 || got.Behind != 2 || !got.Last.IsZero() {
		t.Errorf("after turning back: %+v", got)
	}
	if c := s.Callers(wire.MaterialGate); len(c) != 0 {
		t.Errorf("after turning back: %+v", c)
	}
	s.Close()
}

// steering: a change of the state is durable with its events, or nothing is. // R26
func steering(t *testing.T, f Fixture) {
	s := f.Open(t)
	session := join(t, s, Owner.Person, wire.RoleOwner, "SHA256:x").Digest()
	rollTo(t, s)
	head, err := s.AuditHead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	refuse := errors.New("no")
	if _, err := s.Steer(t.Context(), wire.MaterialGate, secret.Digest{}, func(st *engine.State) ([]audit.Event, error) {
		st.Run.Step = wire.StepNarrow
		return []audit.Event{{Action: "x"}}, refuse
	}); !errors.Is(err, refuse) {
		t.Fatal(err)
	}
	if _, err := s.Steer(t.Context(), wire.MaterialGate, secret.New("fs_").Digest(), func(st *engine.State) ([]audit.Event, error) {
		return st.Abort("person:gone", nil, Base)
	}); !errors.Is(err, store.ErrSessionEnded) {
		t.Fatal(err)
	}
	st, err := s.RotationState(t.Context(), wire.MaterialGate)
	if now, _ := s.AuditHead(t.Context()); err != nil || st.Run.Step != wire.StepRoll || now != head {
		t.Fatalf("%+v, %v", st.Run, err)
	}
	if _, err := s.Steer(t.Context(), wire.MaterialGate, session, func(st *engine.State) ([]audit.Event, error) {
		return st.Leave(Owner.Actor, []string{wire.PathCheck}, Base)
	}); err != nil {
		t.Fatal(err)
	}
	f.Crash(t, s)
	s = f.Open(t)
	st, err = s.RotationState(t.Context(), wire.MaterialGate)
	if err != nil || !st.Running() || st.Target() != 2 || st.Retiring() != 1 || !st.Left(wire.PathCheck) || !st.Accepts(2, two.Digest) || st.Accepts(2, one.Digest) ||
		!st.Run.StartedAt.Equal(Base) || st.Run.By != Owner.Actor {
		t.Fatalf("%+v, %+v, %v", st, st.Run, err)
	}
	if other, err := s.RotationState(t.Context(), "url"); err != nil || other.Run != nil || other.Kind != "url" {
		t.Fatalf("%+v, %v", other, err)
	}
	s.Close()
}

// materialStandings: what stands in front of the gate takes a credential that
// lives, and using the next one promotes it as everywhere. // R20, R26
func materialStandings(t *testing.T, f Fixture) {
	s := f.Open(t)
	b := newBox(t, s, Owner)
	next := secret.New("fm_")
	ask := func(id string, key secret.Text, want identity.Standing) {
		t.Helper()
		if got, err := s.Material(t.Context(), id, machine.Bearer(key.Digest()), Base); err != nil || got != want {
			t.Errorf("%v, %v, not %v", got, err, want)
		}
	}
	ask(b.ID, b.Secret, identity.Current) // the first use proves it
	if r, err := s.Machine(t.Context(), b.ID); err != nil || !r.Credential.Proven {
		t.Errorf("%+v, %v", r, err)
	}
	ask(b.ID, next, identity.Unknown)
	ask(wire.NewMachineID(), b.Secret, identity.Unknown)
	ask("m_", b.Secret, identity.Unknown)
	if _, err := s.Rotate(t.Context(), store.Rotation{Machine: b.ID, Presented: machine.Bearer(b.Secret.Digest()), Generation: 2, Digest: next.Digest(), At: Base}); err != nil {
		t.Fatal(err)
	}
	ask(b.ID, b.Secret, identity.Current)
	ask(b.ID, next, identity.Next)
	ask(b.ID, next, identity.Current)
	ask(b.ID, b.Secret, identity.Behind)
	f.Crash(t, s)
	s = f.Open(t)
	ask(b.ID, b.Secret, identity.Behind)
	if _, err := s.Edit(t.Context(), b.ID, store.Change{By: Owner, At: Base, Delete: true}); err != nil {
		t.Fatal(err)
	}
	ask(b.ID, next, identity.Revoked)
	s.Close()
}
