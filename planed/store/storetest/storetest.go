// Package storetest is the suite that every implementation of store.Store
// passes. It knows the interface alone.
package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// Fixture is one store that can be reopened.
type Fixture interface {
	// Open opens the store; what was durable before is there.
	Open(t *testing.T) store.Store
	// Crash forgets what was not durable, without closing in good order.
	Crash(t *testing.T, s store.Store)
}

// Owner and the others are who acts in the suite.
var (
	Owner  = machine.By{Actor: "person:dana", Person: "dana", Owner: true}
	Member = machine.By{Actor: "person:mo", Person: "mo"}
	Other  = machine.By{Actor: "person:ola", Person: "ola"}
)

// Run runs the suite. fresh makes a new, empty store's fixture.
func Run(t *testing.T, fresh func(t *testing.T) Fixture) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Fixture)
	}{
		{"Life", life},
		{"Admission", admission},
		{"AdmissionRace", admissionRace},
		{"Sequence", sequence},
		{"Ownership", ownership},
		{"Rotation", rotation},
		{"Rungs", rungs},
		{"RotationsUnderWay", rotationsUnderWay},
		{"AskedByManyAtOnce", askedAtOnce},
		{"RequestsClearOnlyByTheirValue", requests},
		{"NameAdoption", names},
		{"Reopen", reopen},
		{"FirstCheckLostInACrash", firstCheckLost},
		{"Persons", persons},
		{"Tokens", tokens},
		{"PersonChanges", personChanges},
		{"SomeOwnerCanLogIn", someOwnerCanLogIn},
		{"Enrolments", enrolments},
		{"Guesses", guesses},
		{"TableIsBounded", tableIsBounded},
		{"AuditChain", auditChain},
		{"ManyAtOnce", manyAtOnce},
		{"Backup", backup},
		{"GateUses", gateUses},
		{"Steering", steering},
		{"Material", materialStandings},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, fresh(t)) })
	}
	t.Run("Model", func(t *testing.T) { model(t, fresh) })
}

// Box is a machine as the suite plays one.
type Box struct {
	ID       string
	Secret   secret.Text
	Instance string
	Seq      uint64
	Body     wire.CheckBody
}

// Running is a body that says so.
func Running(blockers ...string) wire.CheckBody {
	b := wire.CheckBody{Name: "box", Lifecycle: wire.Lifecycle{State: wire.SaidRunning}, Readiness: &wire.CheckReadiness{}}
	for _, code := range blockers {
		b.Readiness.Blockers = append(b.Readiness.Blockers, wire.Finding{Code: code})
	}
	return b
}

// Stopping is a body that says so.
func Stopping(reason string) wire.CheckBody {
	return wire.CheckBody{Lifecycle: wire.Lifecycle{State: wire.SaidStopping, Reason: &reason}}
}

// Base is the time at which the suite plays. A fixture's store must not take it for
// long past.
var Base = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newBox(t *testing.T, s store.Store, by machine.By) *Box {
	t.Helper()
	return admitBox(t, s, by, Base)
}

func admitBox(t *testing.T, s store.Store, by machine.By, at time.Time) *Box {
	t.Helper()
	b := &Box{Secret: secret.New("fm_"), Instance: "a", Body: Running()}
	a, err := s.Admit(t.Context(), machine.Admission{By: by, Installation: secret.New("").Digest(), Credential: b.Secret.Digest()}, at)
	if err != nil || a.Outcome != identity.Made {
		t.Fatal(a, err)
	}
	b.ID = a.Row.ID
	return b
}

// send checks with a secret and the box's body.
func (b *Box) send(t *testing.T, s store.Store, sec secret.Text, at time.Time) store.Checked {
	t.Helper()
	b.Seq++
	out, err := b.raw(t, s, sec, b.Seq, at)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (b *Box) raw(t *testing.T, s store.Store, sec secret.Text, seq uint64, at time.Time) (store.Checked, error) {
	t.Helper()
	digest := secret.Of(fmt.Sprintf("%+v %v", b.Body, b.Body.Readiness)).Digest()
	return s.Check(t.Context(), store.Check{
		Machine: b.ID,
		Check:   machine.Check{Presented: machine.Bearer(sec.Digest()), Mark: wire.CheckMark{Instance: b.Instance, Seq: seq}, Digest: [16]byte(digest[:16]), At: at},
		Body:    func() (*wire.CheckBody, error) { c := b.Body; return &c, nil },
	})
}

func row(t *testing.T, s store.Store, id string) *machine.Row {
	t.Helper()
	r, err := s.Machine(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func life(t *testing.T, f Fixture) { // R23
	s := f.Open(t)
	defer s.Close()
	b := newBox(t, s, Owner)
	if r := row(t, s, b.ID); !r.LastCheck.IsZero() || r.Owner != "dana" {
		t.Fatalf("%+v", r)
	}
	at := Base.Add(time.Minute)
	for i := range 3 {
		if out := b.send(t, s, b.Secret, at.Add(time.Duration(i)*time.Second)); out.Standing != identity.Current || out.Generation != 1 {
			t.Fatalf("%+v", out)
		}
	}
	if r := row(t, s, b.ID); !r.LastCheck.Equal(at.Add(2*time.Second)) || r.Told.Said != wire.SaidRunning {
		t.Fatalf("%+v", r)
	}
	if out := b.send(t, s, secret.New("fm_"), at); out.Standing != identity.Unknown {
		t.Fatalf("%+v", out)
	}
	stranger := &Box{ID: wire.NewMachineID(), Instance: "a", Body: Running()}
	if out := stranger.send(t, s, b.Secret, at); out.Standing != identity.Unknown {
		t.Fatalf("%+v", out)
	}
	stranger.ID = "no id at all"
	if out := stranger.send(t, s, b.Secret, at); out.Standing != identity.Unknown {
		t.Fatalf("%+v", out)
	}

	gone, err := s.Edit(t.Context(), b.ID, store.Change{By: Owner, At: at.Add(time.Hour), Delete: true})
	if err != nil || gone.Deleted == nil {
		t.Fatal(err)
	}
	late := at.Add(2 * time.Hour)
	if out := b.send(t, s, b.Secret, late); out.Standing != identity.Revoked {
		t.Fatalf("%+v", out)
	}
	_, err = s.Machine(t.Context(), b.ID)
	var ge *store.GoneError
	if !errors.As(err, &ge) || ge.Deleted.By != "person:dana" || ge.Deleted.LastPresented == nil || !ge.Deleted.LastPresented.Equal(late) {
		t.Fatalf("%v", err)
	}
	if _, err := s.Edit(t.Context(), b.ID, store.Change{By: Owner, At: at, Delete: true}); !errors.As(err, &ge) {
		t.Fatal(err)
	}
	if _, err := s.Machine(t.Context(), wire.NewMachineID()); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	clean(t, s)
}

func clean(t *testing.T, s store.Store) {
	t.Helper()
	problems, err := s.Verify(t.Context())
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
}

func admission(t *testing.T, f Fixture) { // R6, R23
	s := f.Open(t)
	defer s.Close()
	inst := secret.New("").Digest()
	admit := func(by machine.By, sec secret.Text) (store.Admitted, error) {
		return s.Admit(t.Context(), machine.Admission{By: by, Installation: inst, Credential: sec.Digest(), Name: "web"}, Base)
	}
	first, second, third := secret.New("fm_"), secret.New("fm_"), secret.New("fm_")
	a, err := admit(Member, first)
	if err != nil || a.Outcome != identity.Made {
		t.Fatal(a, err)
	}
	id := a.Row.ID
	if a, err = admit(Member, first); err != nil || a.Outcome != identity.Same || a.Row.ID != id {
		t.Fatal(a, err)
	}
	if _, err = admit(Other, second); !errors.Is(err, machine.ErrNotYours) {
		t.Fatal(err)
	}
	if a, err = admit(Member, second); err != nil || a.Outcome != identity.Replaced || a.Row.ID != id {
		t.Fatal(a, err)
	}
	b := &Box{ID: id, Instance: "a", Body: Running()}
	if out := b.send(t, s, first, Base); out.Standing != identity.Unknown {
		t.Fatal(out)
	}
	if out := b.send(t, s, second, Base); out.Standing != identity.Current {
		t.Fatal(out)
	}
	if a, err = admit(Owner, third); err != nil || a.Outcome != identity.Living || a.Row.ID != id {
		t.Fatal(a, err)
	}
	if out := b.send(t, s, third, Base); out.Standing != identity.Unknown {
		t.Fatal(out)
	}
	if _, err := s.Edit(t.Context(), id, store.Change{By: Member, At: Base, Delete: true}); err != nil {
		t.Fatal(err)
	}
	if a, err = admit(Other, third); err != nil || a.Outcome != identity.Made || a.Row.ID == id || a.Row.Owner != "ola" {
		t.Fatal(a, err)
	}
	clean(t, s)
}

func admissionRace(t *testing.T, f Fixture) { // R6: never a second machine for one installation
	s := f.Open(t)
	defer s.Close()
	inst := secret.New("").Digest()
	ids := make([]string, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			a, err := s.Admit(t.Context(), machine.Admission{By: Owner, Installation: inst, Credential: secret.New("fm_").Digest()}, Base)
			if err == nil {
				ids[i] = a.Row.ID
			}
		})
	}
	wg.Wait()
	slices.Sort(ids)
	if u := slices.Compact(ids); len(u) != 1 || u[0] == "" {
		t.Fatal(u)
	}
	clean(t, s)
}

func sequence(t *testing.T, f Fixture) { // R12
	s := f.Open(t)
	defer s.Close()
	b := newBox(t, s, Owner)
	at := func(n int) time.Time { return Base.Add(time.Duration(n) * time.Second) }
	say := func(seq uint64, body wire.CheckBody, n int) *machine.Row {
		t.Helper()
		b.Body = body
		if _, err := b.raw(t, s, b.Secret, seq, at(n)); err != nil {
			t.Fatal(err)
		}
		return row(t, s, b.ID)
	}
	say(1, Running(), 1)
	say(2, Running(), 2)
	say(5, Running(), 5) // plain: the number lives in memory
	if r := say(3, Stopping(wire.ReasonPerson), 6); r.Told.Said != wire.SaidRunning || !r.LastCheck.Equal(at(5)) {
		t.Fatalf("an earlier check changed something: %+v", r)
	}
	if r := say(6, Stopping(wire.ReasonPerson), 7); r.Told.Said != wire.SaidStopping || r.Told.Reason != wire.ReasonPerson {
		t.Fatalf("%+v", r)
	}
	if r := say(4, Running(), 8); r.Told.Said != wire.SaidStopping {
		t.Fatalf("%+v", r)
	}
	b.Instance = "b"
	if r := say(1, Running(), 9); r.Told.Said != wire.SaidRunning || !r.LastCheck.Equal(at(9)) {
		t.Fatalf("%+v", r)
	}
}

func ownership(t *testing.T, f Fixture) { // R8, R13
	s := f.Open(t)
	defer s.Close()
	b := newBox(t, s, Member)
	name, kind := "x", "rotate"
	for _, ch := range []store.Change{{Rename: &name}, {Label: &store.LabelChange{Set: map[string]string{"a": "b"}}}, {Ask: &machine.Wish{Kind: kind}}, {Delete: true}} {
		ch.At = Base
		for _, by := range []machine.By{Other, {Actor: "person:"}} {
			ch.By = by
			if _, err := s.Edit(t.Context(), b.ID, ch); !errors.Is(err, machine.ErrNotYours) {
				t.Errorf("%+v by %s: %v", ch, by.Actor, err)
			}
		}
	}
	for _, by := range []machine.By{Member, Owner} {
		n := "of-" + by.Person
		if r, err := s.Edit(t.Context(), b.ID, store.Change{By: by, At: Base, Rename: &n}); err != nil || r.Name != n {
			t.Error(err)
		}
	}
}

func names(t *testing.T, f Fixture) { // R14
	s := f.Open(t)
	defer s.Close()
	b := newBox(t, s, Owner)
	for _, step := range []struct{ says, name string }{
		{"", ""}, {"192.0.2.7", ""}, {"ip-10-0-0-7", ""}, {"Web-1.Example.ORG", "web-1"}, {"other", "web-1"},
	} {
		b.Body.Name = step.says
		b.send(t, s, b.Secret, Base)
		if r := row(t, s, b.ID); r.Name != step.name {
			t.Errorf("after %q the name is %q", step.says, r.Name)
		}
	}
	c := newBox(t, s, Owner)
	mine := "mine"
	if _, err := s.Edit(t.Context(), c.ID, store.Change{By: Owner, At: Base, Rename: &mine}); err != nil {
		t.Fatal(err)
	}
	c.send(t, s, c.Secret, Base)
	if r := row(t, s, c.ID); r.Name != "mine" {
		t.Error(r.Name)
	}
}

// firstCheckLost admits a machine, writes the times of checks, and crashes
// before its first check is among them.
func firstCheckLost(t *testing.T, f Fixture) { // R19
	s := f.Open(t)
	b := admitBox(t, s, Owner, Base.Add(-time.Hour))
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.send(t, s, b.Secret, Base.Add(time.Second))
	f.Crash(t, s)
	s = f.Open(t)
	defer s.Close()
	p := machine.Policy{Interval: time.Minute}
	if word, _ := p.Presence(row(t, s, b.ID).LastCheck, Base.Add(2*time.Second), s.Epoch()); word != wire.Present {
		t.Errorf("the plane's own outage made the machine %s: last check %v, %+v", word, row(t, s, b.ID).LastCheck, s.Epoch())
	}
}

func reopen(t *testing.T, f Fixture) {
	s := f.Open(t)
	b := newBox(t, s, Owner)
	b.Body = Running("disk_floor")
	b.send(t, s, b.Secret, Base)
	b.send(t, s, b.Secret, Base.Add(time.Minute))
	two := secret.New("fm_")
	if _, err := s.Rotate(t.Context(), store.Rotation{Machine: b.ID, Presented: machine.Bearer(b.Secret.Digest()), Generation: 2, Digest: two.Digest(), At: Base}); err != nil {
		t.Fatal(err)
	}
	dead := newBox(t, s, Owner)
	dead.send(t, s, dead.Secret, Base)
	if _, err := s.Edit(t.Context(), dead.ID, store.Change{By: Owner, At: Base, Delete: true}); err != nil {
		t.Fatal(err)
	}
	before := row(t, s, b.ID)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = f.Open(t)
	if s.Epoch().Alive.IsZero() || s.Epoch().Opened.Before(s.Epoch().Alive) {
		t.Errorf("%+v", s.Epoch())
	}
	if after := row(t, s, b.ID); fmt.Sprintf("%+v", after) != fmt.Sprintf("%+v", before) {
		t.Errorf("\n%+v\n%+v", before, after)
	}
	if out := dead.send(t, s, dead.Secret, Base); out.Standing != identity.Revoked {
		t.Error(out)
	}
	if out := b.send(t, s, two, Base); out.Standing != identity.Next {
		t.Error(out)
	}
	// Durable before it was answered: a crash right after keeps it.
	f.Crash(t, s)
	s = f.Open(t)
	defer s.Close()
	if out := b.send(t, s, b.Secret, Base); out.Standing != identity.Behind {
		t.Error("the promotion was lost:", out)
	}
	if out := b.send(t, s, two, Base); out.Standing != identity.Current {
		t.Error(out)
	}
	clean(t, s)
}

func auditChain(t *testing.T, f Fixture) {
	s := f.Open(t)
	defer s.Close()
	changed := s.AuditChanged()
	b := newBox(t, s, Owner)
	select {
	case <-changed:
	default:
		t.Error("an append was not announced")
	}
	c := newBox(t, s, Owner)
	for _, x := range []*Box{b, c} {
		x.send(t, s, x.Secret, Base)
	}
	s.Edit(t.Context(), b.ID, store.Change{By: Owner, At: Base.Add(time.Hour), Delete: true})
	all, err := s.Audit(t.Context(), store.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	head := audit.Genesis
	var actions []string
	for _, e := range all.Entries {
		if head, err = audit.Next(head, e); err != nil {
			t.Fatal(err)
		}
		actions = append(actions, e.Action)
	}
	want := []string{"machine.admit", "machine.admit", "machine.name", "machine.name", "machine.delete"}
	if head != all.Head || !slices.Equal(actions, want) {
		t.Fatal(head, all.Head, actions)
	}
	if got, err := s.AuditHead(t.Context()); err != nil || got != head {
		t.Fatal(got, err)
	}
	for _, q := range []struct {
		f store.AuditFilter
		n int
	}{{store.AuditFilter{Machine: b.ID}, 3}, {store.AuditFilter{After: 3}, 2}, {store.AuditFilter{Limit: 2}, 2}, {store.AuditFilter{Since: Base.Add(time.Minute)}, 1}} {
		if got, err := s.Audit(t.Context(), q.f); err != nil || len(got.Entries) != q.n || got.Head != head {
			t.Errorf("%+v: %d entries, %v", q.f, len(got.Entries), err)
		}
	}
}

func manyAtOnce(t *testing.T, f Fixture) {
	s := f.Open(t)
	defer s.Close()
	const n = 700 // more than one page of times
	boxes := make([]*Box, n)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < n; i += 16 {
				b := newBox(t, s, Owner)
				b.Body.Name = ""
				for range 3 {
					b.send(t, s, b.Secret, Base.Add(time.Duration(i)*time.Second))
				}
				boxes[i] = b
			}
		})
	}
	wg.Wait()
	got := map[string]time.Time{}
	err := s.EachMachine(t.Context(), func(r *machine.Row) error {
		got[r.ID] = r.LastCheck
		return nil
	})
	if err != nil || len(got) != n {
		t.Fatal(len(got), err)
	}
	for i, b := range boxes {
		if !got[b.ID].Equal(Base.Add(time.Duration(i) * time.Second)) {
			t.Fatalf("machine %d was heard at %s", i, got[b.ID])
		}
	}
	if st := s.Stats(); st.Machines != n {
		t.Error(st)
	}
	clean(t, s)
}

func backup(t *testing.T, f Fixture) {
	s := f.Open(t)
	defer s.Close()
	newBox(t, s, Owner)
	var b bytes.Buffer
	if err := s.Backup(t.Context(), &b); err != nil || b.Len() == 0 {
		t.Fatal(b.Len(), err)
	}
}
