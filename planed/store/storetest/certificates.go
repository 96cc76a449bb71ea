package storetest

import (
	"errors"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// rungs holds what a store does for the rung of mutual TLS: every move is
// durable before it is answered, and a crash between a certificate's request and
// its first use leaves the bearer. // R23, R27
func rungs(t *testing.T, fx Fixture) {
	ctx := t.Context()
	s := fx.Open(t)
	a, err := s.Admit(ctx, machine.Admission{By: Owner, Installation: secret.New("").Digest(), Credential: secret.Of("fm_1").Digest(), Name: "box"}, Base)
	if err != nil {
		t.Fatal(err)
	}
	id, one, two := a.Row.ID, secret.Of("fm_1").Digest(), secret.Of("fm_2").Digest()
	key, thiefs := secret.Of("key").Digest(), secret.Of("thief's").Digest()
	seq := uint64(0)
	check := func(by machine.Proof) identity.Standing {
		t.Helper()
		seq++
		did, err := s.Check(ctx, store.Check{Machine: id, Check: machine.Check{Presented: by, Mark: wire.CheckMark{Instance: "i", Seq: seq}, At: Base.Add(time.Minute)},
			Body: func() (*wire.CheckBody, error) {
				return &wire.CheckBody{Lifecycle: wire.Lifecycle{State: wire.SaidRunning}}, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		return did.Standing
	}
	certify := func(bearer, held, key secret.Digest) identity.Standing {
		t.Helper()
		did, err := s.Certify(ctx, store.Certification{Machine: id, Certification: machine.Certification{Bearer: bearer, Held: held, Key: key, Until: Base.Add(8 * time.Hour), At: Base}})
		if err != nil && !errors.Is(err, identity.ErrSuperseded) {
			t.Fatal(err)
		}
		return did.Standing
	}
	ask := func(r identity.Rung) {
		t.Helper()
		if _, err := s.Edit(ctx, id, store.Change{By: Owner, At: Base, Ask: &machine.Wish{Kind: "rotate", Rung: r}}); err != nil {
			t.Fatal(err)
		}
	}
	crash := func() {
		fx.Crash(t, s)
		s = fx.Open(t)
	}
	is := func(what string, got, want identity.Standing) {
		t.Helper()
		if got != want {
			t.Errorf("%s: standing %d, want %d", what, got, want)
		}
	}
	cert := machine.Proof{Digest: key, Key: true}

	is("the bearer", check(machine.Bearer(one)), identity.Current)
	is("a key that nobody asked for", certify(one, secret.Digest{}, key), identity.Barred)
	is("a machine that never was", func() identity.Standing {
		did, err := s.Certify(ctx, store.Certification{Machine: "m_aaaaaaaaaaaaaaaaaaaaaaaaaa", Certification: machine.Certification{Bearer: one, Key: key}})
		if err != nil {
			t.Fatal(err)
		}
		return did.Standing
	}(), identity.Unknown)
	ask(identity.MutualTLS)
	is("the first key", certify(one, secret.Digest{}, key), identity.Current)
	crash()
	is("the bearer, until the key is used", check(machine.Bearer(one)), identity.Current)
	if n := s.Certificates(Base, nil).Machines; n != 0 {
		t.Errorf("%d machines by certificate", n)
	}
	is("the key's first use", check(cert), identity.Next)
	crash()
	is("the key", check(cert), identity.Current)
	is("the bearer", check(machine.Bearer(one)), identity.Barred)
	is("a renewal", certify(one, secret.Digest{}, key), identity.Current)
	is("a thief's key", certify(one, secret.Digest{}, thiefs), identity.Barred)
	if n := s.Certificates(Base, []time.Duration{time.Hour, 9 * time.Hour}); n.Machines != 1 || n.Within[0] != 0 || n.Within[1] != 1 || n.Left != 8*time.Hour {
		t.Errorf("%+v", n)
	}
	m, err := s.Machine(ctx, id)
	if err != nil || m.BarredAt.IsZero() || !m.CertifiedTo.Equal(Base.Add(8*time.Hour)) {
		t.Errorf("%+v %v", m, err)
	}
	if did, err := s.Rotate(ctx, store.Rotation{Machine: id, Presented: machine.Bearer(one), Generation: 2, Digest: two, At: Base}); err != nil || did.Standing != identity.Barred {
		t.Error(did, err)
	}
	if did, err := s.Rotate(ctx, store.Rotation{Machine: id, Presented: cert, Generation: 2, Digest: two, At: Base}); err != nil || !did.Staged {
		t.Error(did, err)
	}
	is("the next generation without a person's wish", check(machine.Bearer(two)), identity.Barred)
	ask(identity.Bearer)
	is("the key, until the next generation is used", check(cert), identity.Current)
	is("the generation that climbed", check(machine.Bearer(one)), identity.Barred)
	is("the next generation", check(machine.Bearer(two)), identity.Next)
	crash()
	is("the next generation", check(machine.Bearer(two)), identity.Current)
	is("the key that was left", check(cert), identity.Behind)
	if n := s.Certificates(Base, nil).Machines; n != 0 {
		t.Errorf("%d machines by certificate", n)
	}
	ask(identity.MutualTLS)
	if _, err := s.Certify(ctx, store.Certification{Machine: id, Certification: machine.Certification{Bearer: two, Key: key, At: Base}}); !errors.Is(err, identity.ErrSuperseded) {
		t.Errorf("the key that was left is certified again: %v", err)
	}
	again := machine.Proof{Digest: thiefs, Key: true}
	is("another key", certify(two, secret.Digest{}, thiefs), identity.Current)
	is("its first use", check(again), identity.Next)
	if _, err := s.Edit(ctx, id, store.Change{By: Owner, At: Base, Delete: true}); err != nil {
		t.Fatal(err)
	}
	crash()
	is("the key of a machine that was deleted", check(again), identity.Revoked)
	is("its bearer", check(machine.Bearer(two)), identity.Revoked)
	is("a certificate for it", certify(two, thiefs, thiefs), identity.Revoked)
	if problems, err := s.Verify(ctx); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
