package storetest

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/enrol"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// applicant is a machine that waits, with the secrets that it keeps.
type applicant struct {
	code                     string
	installation, cred, poll secret.Text
}

func newApplicant() applicant {
	return applicant{enrol.NewCode(), secret.New(""), secret.New("fm_"), secret.New("fp_")}
}

func (a applicant) digest() secret.Digest {
	d, _, _ := enrol.Digest(a.code)
	return d
}

func (a applicant) ask(t testing.TB, s store.Store, at time.Time) error {
	return a.askFrom(t, s, at, enrol.Network{})
}

func (a applicant) askFrom(t testing.TB, s store.Store, at time.Time, from enrol.Network) error {
	return s.Enrol(t.Context(), a.digest(), enrol.Request{Installation: a.installation.Digest(), Credential: a.cred.Digest(), Poll: a.poll.Digest(),
		Report: wire.EnrollReport{Host: "box", Account: "ops", Scope: "user"}, At: at, ExpiresAt: at.Add(enrol.Life), From: from})
}

func apply(t testing.TB, s store.Store, at time.Time) applicant {
	t.Helper()
	a := newApplicant()
	if err := a.ask(t, s, at); err != nil {
		t.Fatal(err)
	}
	return a
}

// enrolments: a request is approved once and picked up once, by the machine
// that asked; nothing else that becomes of one can be told from a code that
// never was. // R7
func enrolments(t *testing.T, f Fixture) {
	s := f.Open(t)
	ctx := t.Context()
	decide := func(a applicant, by machine.By, approve bool) (store.Decided, error) {
		return s.Decide(ctx, store.Decision{By: by, At: Base, Code: a.digest(), Approve: approve})
	}
	poll := func(a applicant, at time.Time) (store.Polled, error) { return s.Poll(ctx, a.poll.Digest(), at) }

	a := apply(t, s, Base)
	if p, err := poll(a, Base); err != nil || p.Machine != "" {
		t.Fatal(p, err)
	}
	r, err := s.Look(ctx, a.digest(), Member, Base)
	if err != nil || r.Report.Host != "box" {
		t.Fatal(r, err)
	}
	// Requests outlive a crash, and so does an approval.
	f.Crash(t, s)
	s = f.Open(t)
	did, err := decide(a, Member, true)
	if err != nil || did.Outcome != identity.Made || did.Row.Owner != "mo" || did.Row.Credential.Current != a.cred.Digest() {
		t.Fatal(did, err)
	}
	f.Crash(t, s)
	s = f.Open(t)
	if _, err := s.Poll(ctx, a.cred.Digest(), Base); !errors.Is(err, store.ErrNotFound) {
		t.Fatal("the credential picks up:", err)
	}
	p, err := poll(a, Base)
	if err != nil || p.Machine != did.Row.ID || p.Generation != 1 || p.Owner != "mo" {
		t.Fatal(p, err)
	}
	used, denied, expired, replaced := a, apply(t, s, Base), apply(t, s, Base.Add(-enrol.Life)), apply(t, s, Base)
	if _, err := decide(denied, Member, false); err != nil {
		t.Fatal(err)
	}
	again := replaced
	again.code, again.poll = enrol.NewCode(), secret.New("fp_")
	if err := again.ask(t, s, Base); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]applicant{"used": used, "denied": denied, "expired": expired, "replaced": replaced, "unknown": newApplicant()} {
		_, lookErr := s.Look(ctx, x.digest(), Member, Base)
		_, approveErr := decide(x, Member, true)
		_, denyErr := decide(x, Member, false)
		for _, err := range []error{lookErr, approveErr, denyErr} {
			if err != store.ErrNoCode {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := poll(x, Base); err != store.ErrNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := s.Look(ctx, again.digest(), Owner, Base); err != nil || r.Credential != again.cred.Digest() {
		t.Fatal(r, err)
	}

	// An approval that nobody picks up runs out, and the machine asks again.
	if _, err := decide(again, Owner, true); err != nil {
		t.Fatal(err)
	}
	if _, err := poll(again, Base.Add(enrol.Life)); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	retry := again
	retry.code, retry.poll, retry.cred = enrol.NewCode(), secret.New("fp_"), secret.New("fm_")
	if err := retry.ask(t, s, Base); err != nil {
		t.Fatal(err)
	}
	if did, err := decide(retry, Owner, true); err != nil || did.Outcome != identity.Replaced {
		t.Fatal(did, err)
	}
	// One whose credential has worked is not admitted over it, and waits on. // R23
	if c, err := s.Check(ctx, store.Check{Machine: did.Row.ID, Check: machine.Check{Presented: machine.Bearer(a.cred.Digest()), Mark: wire.CheckMark{Instance: "i", Seq: 1}, At: Base},
		Body: func() (*wire.CheckBody, error) { b := Running(); return &b, nil }}); err != nil || c.Standing != identity.Current {
		t.Fatal(c, err)
	}
	thief := newApplicant()
	thief.installation = a.installation
	if err := thief.ask(t, s, Base); err != nil {
		t.Fatal(err)
	}
	var living *store.LivingError
	if _, err := decide(thief, Owner, true); !errors.As(err, &living) || living.Machine != did.Row.ID {
		t.Fatal(err)
	}
	if p, err := poll(thief, Base); err != nil || p.Machine != "" {
		t.Fatal(p, err)
	}
	if problems, err := s.Verify(ctx); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	doc, err := s.Audit(ctx, store.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"person:mo enroll.approve machine:" + did.Row.ID, "person:mo enroll.deny enrollment", "person:mo person.wrong_code person:mo"} {
		if !slices.ContainsFunc(doc.Entries, func(e wire.AuditEntry) bool { return e.Actor+" "+e.Action+" "+e.Subject == want }) {
			t.Errorf("not audited: %s", want)
		}
	}
	s.Close()
}

// guesses: however a person tries, no more wrong codes than the limit are
// looked up within an hour, across sessions, crashes and requests side by side;
// others are not touched by it. // R7
func guesses(t *testing.T, f Fixture) {
	s := f.Open(t)
	ctx := t.Context()
	real := apply(t, s, Base)
	var looked atomic.Int64
	var wg sync.WaitGroup
	for range 3 * enrol.MaxWrong {
		wg.Go(func() {
			var blocked *store.BlockedError
			switch _, err := s.Look(ctx, newApplicant().digest(), Member, Base); {
			case errors.Is(err, store.ErrNoCode):
				looked.Add(1)
			case !errors.As(err, &blocked) || blocked.Wait != enrol.Window:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := looked.Load(); n != enrol.MaxWrong {
		t.Fatalf("%d codes were looked up", n)
	}
	f.Crash(t, s)
	s = f.Open(t)
	defer func() { s.Close() }()
	var blocked *store.BlockedError
	_, lookErr := s.Look(ctx, real.digest(), Member, Base)
	_, decideErr := s.Decide(ctx, store.Decision{By: Member, At: Base, Code: real.digest(), Approve: true})
	if !errors.As(lookErr, &blocked) || !errors.As(decideErr, &blocked) {
		t.Fatal("a person over the limit learns what a right code is:", lookErr, decideErr)
	}
	if _, err := s.Look(ctx, real.digest(), Other, Base); err != nil {
		t.Fatal("another person pays for it:", err)
	}
	late := apply(t, s, Base.Add(enrol.Window))
	if _, err := s.Look(ctx, late.digest(), Member, Base.Add(enrol.Window)); err != nil {
		t.Fatal("the limit does not end:", err)
	}
}

// tableIsBounded: strangers fill the table and nothing else, also all at once.
// What runs out makes room.
func tableIsBounded(t *testing.T, f Fixture) {
	s := f.Open(t)
	defer s.Close()
	var full, in atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range enrol.MaxPending/16 + 10 {
				switch err := newApplicant().ask(t, s, Base); {
				case err == nil:
					in.Add(1)
				case errors.Is(err, store.ErrFull):
					full.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if in.Load() != enrol.MaxPending || full.Load() != 160 {
		t.Fatalf("%d wait, %d were refused", in.Load(), full.Load())
	}
	// A machine of another network gets in, also several at once, and the flood
	// goes on against itself alone. What a person has looked at stays, whatever
	// its own network does.
	elsewhere := enrol.Network{1}
	machines := make([]applicant, 8)
	for i := range machines {
		machines[i] = newApplicant()
		wg.Go(func() {
			if err := machines[i].askFrom(t, s, Base, elsewhere); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := s.Look(t.Context(), machines[0].digest(), Member, Base); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := newApplicant().ask(t, s, Base); err != nil && !errors.Is(err, store.ErrFull) {
			t.Error(err)
		}
	}
	for i, a := range machines {
		if _, err := s.Poll(t.Context(), a.poll.Digest(), Base); err != nil {
			t.Errorf("machine %d of a network that floods nothing lost its place: %v", i, err)
		}
	}
	if d, err := s.Decide(t.Context(), store.Decision{By: Member, At: Base, Code: machines[0].digest(), Approve: true}); err != nil || d.Row == nil {
		t.Errorf("%+v, %v", d, err)
	}
	if err := newApplicant().ask(t, s, Base.Add(enrol.Life)); err != nil {
		t.Fatal(err)
	}
}
