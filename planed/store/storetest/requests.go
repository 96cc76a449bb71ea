package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

func rotation(t *testing.T, f Fixture) { // R20
	s := f.Open(t)
	defer s.Close()
	b := newBox(t, s, Owner)
	one, two := b.Secret, secret.New("fm_")
	b.send(t, s, one, Base)
	rotate := func(by secret.Text, gen int64, d secret.Digest) (identity.Standing, error) {
		did, err := s.Rotate(t.Context(), store.Rotation{Machine: b.ID, Presented: machine.Bearer(by.Digest()), Generation: gen, Digest: d, At: Base})
		return did.Standing, err
	}
	if st, err := rotate(secret.New("fm_"), 2, two.Digest()); err != nil || st != identity.Unknown {
		t.Fatal(st, err)
	}
	for range 2 {
		if st, err := rotate(one, 2, two.Digest()); err != nil || st != identity.Current {
			t.Fatal(st, err)
		}
	}
	if _, err := rotate(one, 3, secret.New("fm_").Digest()); !errors.Is(err, identity.ErrGeneration) {
		t.Fatal(err)
	}
	if out := b.send(t, s, one, Base); out.Standing != identity.Current || out.Generation != 1 {
		t.Fatal(out)
	}
	if out := b.send(t, s, two, Base); out.Standing != identity.Next || out.Generation != 2 {
		t.Fatal(out)
	}
	if out := b.send(t, s, two, Base); out.Standing != identity.Current || out.Generation != 2 {
		t.Fatal(out)
	}
	if out := b.send(t, s, one, Base); out.Standing != identity.Behind {
		t.Fatal(out)
	}
	if st, err := rotate(one, 2, secret.New("fm_").Digest()); err != nil || st != identity.Behind {
		t.Fatal(st, err)
	}
	if st, err := rotate(two, 2, two.Digest()); err != nil || st != identity.Current {
		t.Fatal("the request that was answered late:", st, err)
	}
	// Presenting the next generation to rotate promotes it too.
	three, four := secret.New("fm_"), secret.New("fm_")
	rotate(two, 3, three.Digest())
	if st, err := rotate(three, 4, four.Digest()); err != nil || st != identity.Next {
		t.Fatal(st, err)
	}
	if r := row(t, s, b.ID); r.Credential.Generation != 3 || r.Credential.Next.IsZero() || !r.StagedAt.Equal(Base) || !r.BehindAt.Equal(Base) {
		t.Fatalf("%+v", r)
	}
}

func rotationsUnderWay(t *testing.T, f Fixture) { // R16, R20
	s := f.Open(t)
	defer s.Close()
	p := machine.Policy{Interval: 30 * time.Second} // silence 2 min
	b := newBox(t, s, Owner)
	b.send(t, s, b.Secret, Base)
	want := func(when string, n store.Rotations) {
		t.Helper()
		if got := s.Rotations(p); got != n {
			t.Fatalf("%s: %+v, want %+v", when, got, n)
		}
	}
	ask := func(at time.Time, older time.Duration) time.Time {
		t.Helper()
		r, err := s.Edit(t.Context(), b.ID, store.Change{By: Owner, At: at, Ask: &machine.Wish{Kind: "rotate", OlderThan: older}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Asked.Rotate
	}
	want("before", store.Rotations{})
	if at := ask(Base.Add(time.Hour), 2*time.Hour); !at.IsZero() {
		t.Fatal("a young credential was asked to rotate")
	}
	asked := ask(Base.Add(time.Hour), time.Hour)
	if again := ask(Base.Add(2*time.Hour), time.Hour); asked.IsZero() || !again.Equal(asked) {
		t.Fatal("a second request does not join the first:", asked, again)
	}
	want("asked, and silent since", store.Rotations{Requested: 1})
	b.send(t, s, b.Secret, Base.Add(time.Hour+time.Minute))
	want("asked a minute ago", store.Rotations{Requested: 1})
	b.send(t, s, b.Secret, Base.Add(time.Hour+3*time.Minute))
	want("checks, and does not rotate", store.Rotations{Requested: 1, Stuck: 1})
	two := secret.New("fm_")
	did, err := s.Rotate(t.Context(), store.Rotation{Machine: b.ID, Presented: machine.Bearer(b.Secret.Digest()), Generation: 2, Digest: two.Digest(), At: Base.Add(time.Hour + 3*time.Minute)})
	if err != nil || !did.Staged {
		t.Fatal(did, err)
	}
	want("staged", store.Rotations{Requested: 1, Staged: 1})
	b.send(t, s, b.Secret, Base.Add(time.Hour+6*time.Minute))
	want("checks with the current one on and on", store.Rotations{Requested: 1, Staged: 1, Stuck: 1})
	b.Body.Echo.Rotate = &asked
	b.send(t, s, two, Base.Add(time.Hour+7*time.Minute))
	want("used", store.Rotations{})
	// A clock that was set back makes no value that was answered before.
	if at := ask(Base.Add(-time.Hour), 0); !at.After(Base.Add(time.Hour + 7*time.Minute)) {
		t.Fatal("the value may have been answered before:", at)
	}
	b.Body.Echo.Rotate = nil
	if _, err := s.Edit(t.Context(), b.ID, store.Change{By: Owner, At: Base, Delete: true}); err != nil {
		t.Fatal(err)
	}
	want("deleted", store.Rotations{})
	// An age that lies in the future is none.
	c := newBox(t, s, Owner)
	c.send(t, s, c.Secret, Base)
	r, err := s.Edit(t.Context(), c.ID, store.Change{By: Owner, At: Base.Add(-time.Hour), Ask: &machine.Wish{Kind: "rotate", OlderThan: time.Hour}})
	if err != nil || r.Asked.Rotate.IsZero() {
		t.Fatal("a clock that was set back keeps a credential from rotating:", r, err)
	}
}

// askedAtOnce has many ask for a rotation in the same moment, each with a time
// of its own: they have asked once, and one answer is all that they wait for.
func askedAtOnce(t *testing.T, f Fixture) { // R16
	s := f.Open(t)
	defer s.Close()
	b := newBox(t, s, Owner)
	b.send(t, s, b.Secret, Base)
	const many = 32
	got := make([]time.Time, many)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			r, err := s.Edit(t.Context(), b.ID, store.Change{By: Owner, At: Base.Add(time.Duration(i+1) * time.Second), Ask: &machine.Wish{Kind: "rotate"}})
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = r.Asked.Rotate
		})
	}
	all.Wait()
	for _, at := range got {
		if at.IsZero() || !at.Equal(got[0]) {
			t.Fatal("not all wait for the same request:", got)
		}
	}
	b.Body.Echo.Rotate = &got[0]
	if out := b.send(t, s, b.Secret, Base.Add(time.Hour)); !out.Asked.Rotate.IsZero() {
		t.Fatal("one answer left another request:", out.Asked)
	}
}

func requests(t *testing.T, f Fixture) { // R16
	s := f.Open(t)
	defer s.Close()
	b := newBox(t, s, Owner)
	b.send(t, s, b.Secret, Base)
	ask := func(kind string, at time.Time) {
		t.Helper()
		if _, err := s.Edit(t.Context(), b.ID, store.Change{By: Owner, At: at, Ask: &machine.Wish{Kind: kind}}); err != nil {
			t.Fatal(err)
		}
	}
	ask("logs", Base)
	ask("logs", Base.Add(time.Second)) // joins the first
	out := b.send(t, s, b.Secret, Base)
	if !out.Asked.Logs.Equal(Base) || !out.Asked.Rotate.IsZero() {
		t.Fatal(out.Asked)
	}
	wrong := Base.Add(-time.Second)
	b.Body.Echo.Logs = &wrong
	if out = b.send(t, s, b.Secret, Base); !out.Asked.Logs.Equal(Base) {
		t.Fatal("another value cleared it")
	}
	right := Base
	b.Body.Echo.Logs = &right
	if out = b.send(t, s, b.Secret, Base); !out.Asked.Logs.IsZero() {
		t.Fatal(out.Asked)
	}
	ask("logs", Base.Add(time.Minute))
	if out = b.send(t, s, b.Secret, Base); out.Asked.Logs.IsZero() {
		t.Fatal("a newer request was cleared by an older answer")
	}
}
