package bolt

import (
	"context"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/enrol"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

type enrolmentRecord struct {
	Installation hexDigest         `json:"installation"`
	Credential   hexDigest         `json:"credential"`
	Poll         hexDigest         `json:"poll"`
	Report       wire.EnrollReport `json:"report"`
	At           time.Time         `json:"at"`
	ExpiresAt    time.Time         `json:"expires_at"`
}

func (r enrolmentRecord) request() enrol.Request {
	return enrol.Request{Installation: secret.Digest(r.Installation), Credential: secret.Digest(r.Credential), Poll: secret.Digest(r.Poll),
		Report: r.Report, At: r.At, ExpiresAt: r.ExpiresAt}
}

type enrolledRecord struct {
	Machine    string    `json:"machine"`
	Generation int64     `json:"generation"`
	Name       string    `json:"name,omitempty"`
	Owner      string    `json:"owner"`
	ExpiresAt  time.Time `json:"expires_at"`
}

type guessRecord struct {
	At enrol.Guesses `json:"at"`
}

// waiting is memory's copy of who polls, so that polls, which anybody may send,
// touch no disk unless there is something to pick up. The writer changes it.
type waiting struct {
	mu       sync.RWMutex
	pending  map[secret.Digest]pending   // by the poll secret's digest
	approved map[secret.Digest]time.Time // the same, once approved: when it runs out
}

type pending struct {
	code         string // the digest's hex
	installation secret.Digest
	enrol.Held
}

func (w *waiting) load(t *bbolt.Tx) error {
	w.pending, w.approved = map[secret.Digest]pending{}, map[secret.Digest]time.Time{}
	err := each(t, bucketEnrolment, func(k string, r enrolmentRecord) error {
		w.pending[secret.Digest(r.Poll)] = pending{k, secret.Digest(r.Installation), enrol.Held{Until: r.ExpiresAt}}
		return nil
	})
	if err != nil {
		return err
	}
	return each(t, bucketEnrolled, func(k string, r enrolledRecord) error { return putDigest(w.approved, k, r.ExpiresAt) })
}

// Enrol adds a waiting machine.
func (s *Store) Enrol(ctx context.Context, code secret.Digest, r enrol.Request) error {
	return s.do(ctx, func(t *tx) error {
		if _, taken, err := get[enrolmentRecord](t.Tx, bucketEnrolment, code.Hex()); err != nil || taken {
			if err == nil {
				err = store.ErrExists
			}
			return err
		}
		var gone []string
		var polls []secret.Digest
		held := map[secret.Digest]enrol.Held{}
		drop := func(poll secret.Digest, have pending) { gone, polls = append(gone, have.code), append(polls, poll) }
		s.waiting.mu.RLock()
		for poll, have := range s.waiting.pending {
			switch {
			case !r.At.Before(have.Until) || have.installation == r.Installation:
				drop(poll, have)
			case !t.evicted[poll]: // by an operation of this very transaction
				held[poll] = have.Held
			}
		}
		room := len(held)+t.enrols < enrol.MaxPending // what this transaction adds counts, so that the bound is one
		if !room {
			var poll secret.Digest
			if poll, room = enrol.Evict(held, r.From); room {
				drop(poll, s.waiting.pending[poll])
				t.evict(poll)
			}
		}
		s.waiting.mu.RUnlock()
		if !room {
			return store.ErrFull
		}
		t.enrols++
		for _, k := range gone {
			if err := t.del(bucketEnrolment, []byte(k)); err != nil {
				return err
			}
		}
		rec := enrolmentRecord{Installation: hexDigest(r.Installation), Credential: hexDigest(r.Credential), Poll: hexDigest(r.Poll),
			Report: r.Report, At: r.At.UTC(), ExpiresAt: r.ExpiresAt.UTC()}
		t.after = append(t.after, func() {
			s.waiting.mu.Lock()
			defer s.waiting.mu.Unlock()
			for _, p := range polls {
				delete(s.waiting.pending, p)
			}
			s.waiting.pending[r.Poll] = pending{code.Hex(), r.Installation, enrol.Held{From: r.From, Until: rec.ExpiresAt}}
		})
		return t.put(bucketEnrolment, []byte(code.Hex()), mustJSON(rec))
	})
}

// find looks a code up for a person. A wrong one is counted, which is a write:
// refusal is what the operation answers then, and not its error.
func (t *tx) find(code secret.Digest, by machine.By, now time.Time) (r enrol.Request, refusal, err error) {
	if err := t.live(by.Session); err != nil {
		return r, nil, err
	}
	g, _, err := get[guessRecord](t.Tx, bucketGuess, by.Person)
	if err != nil {
		return r, nil, err
	}
	if wait := g.At.Blocked(now); wait > 0 {
		return r, &store.BlockedError{Wait: wait}, nil
	}
	rec, ok, err := get[enrolmentRecord](t.Tx, bucketEnrolment, code.Hex())
	if err != nil {
		return r, nil, err
	}
	if r = rec.request(); ok && r.Waits(now) {
		return r, nil, nil
	}
	g.At = g.At.Wrong(now.UTC())
	if err := t.put(bucketGuess, []byte(by.Person), mustJSON(g)); err != nil {
		return r, nil, err
	}
	return enrol.Request{}, store.ErrNoCode, t.append(audit.Event{At: now, Actor: by.Actor, Action: "person.wrong_code", Subject: "person:" + by.Person,
		Detail: map[string]string{"within_an_hour": strconv.Itoa(len(g.At))}})
}

// Look finds a waiting machine.
func (s *Store) Look(ctx context.Context, code secret.Digest, by machine.By, now time.Time) (enrol.Request, error) {
	var out enrol.Request
	var refusal error
	err := s.do(ctx, func(t *tx) (err error) {
		out, refusal, err = t.find(code, by, now)
		if err != nil || refusal != nil {
			return err
		}
		t.after = append(t.after, func() { // it stays until it is decided
			s.waiting.mu.Lock()
			defer s.waiting.mu.Unlock()
			if have, ok := s.waiting.pending[out.Poll]; ok {
				have.Looked = true
				s.waiting.pending[out.Poll] = have
			}
		})
		return nil
	})
	if err == nil {
		err = refusal
	}
	return out, err
}

// Decide approves or denies a waiting machine.
func (s *Store) Decide(ctx context.Context, d store.Decision) (store.Decided, error) {
	var out store.Decided
	var refusal error
	err := s.do(ctx, func(t *tx) error {
		out = store.Decided{}
		r, refused, err := t.find(d.Code, d.By, d.At)
		if refusal = refused; err != nil || refused != nil {
			return err
		}
		out.Request = r
		detail := map[string]string{}
		for k, v := range map[string]string{"said_host": r.Report.Host, "said_account": r.Report.Account} {
			if v != "" {
				detail[k] = v
			}
		}
		if !d.Approve {
			if err := s.drop(t, d.Code, r); err != nil {
				return err
			}
			return t.append(audit.Event{At: d.At, Actor: d.By.Actor, Action: "enroll.deny", Subject: "enrollment", Detail: detail})
		}
		did, err := s.admit(t, machine.Admission{By: d.By, Installation: r.Installation, Credential: r.Credential, Name: d.Name, Labels: d.Labels,
			Scope: r.Report.Scope, ServiceManager: r.Report.ServiceManager}, d.At)
		if err != nil {
			return err
		}
		if did.Outcome == identity.Living {
			refusal = &store.LivingError{Machine: did.Row.ID}
			return nil // nothing was written
		}
		out.Admitted = did
		if err := s.drop(t, d.Code, r); err != nil {
			return err
		}
		rec := enrolledRecord{Machine: did.Row.ID, Generation: did.Row.Credential.Generation, Name: did.Row.Name, Owner: did.Row.Owner, ExpiresAt: d.At.Add(enrol.Life).UTC()}
		if err := t.put(bucketEnrolled, []byte(r.Poll.Hex()), mustJSON(rec)); err != nil {
			return err
		}
		t.after = append(t.after, func() {
			s.waiting.mu.Lock()
			s.waiting.approved[r.Poll] = rec.ExpiresAt
			s.waiting.mu.Unlock()
		})
		return t.append(audit.Event{At: d.At, Actor: d.By.Actor, Action: "enroll.approve", Subject: "machine:" + did.Row.ID, Detail: detail})
	})
	if err == nil {
		err = refusal
	}
	return out, err
}

// drop takes a request off the table.
func (s *Store) drop(t *tx, code secret.Digest, r enrol.Request) error {
	t.after = append(t.after, func() {
		s.waiting.mu.Lock()
		delete(s.waiting.pending, r.Poll)
		s.waiting.mu.Unlock()
	})
	return t.del(bucketEnrolment, []byte(code.Hex()))
}

// Poll tells a waiting machine what became of it.
func (s *Store) Poll(ctx context.Context, poll secret.Digest, now time.Time) (store.Polled, error) {
	s.waiting.mu.RLock()
	have, waits := s.waiting.pending[poll]
	ready, approved := s.waiting.approved[poll]
	s.waiting.mu.RUnlock()
	switch {
	case approved && now.Before(ready):
	case waits && now.Before(have.Until):
		return store.Polled{}, nil
	default:
		return store.Polled{}, store.ErrNotFound
	}
	var out store.Polled
	err := s.do(ctx, func(t *tx) error {
		r, ok, err := get[enrolledRecord](t.Tx, bucketEnrolled, poll.Hex())
		if err != nil {
			return err
		}
		if !ok || !now.Before(r.ExpiresAt) {
			return store.ErrNotFound // another poll was faster
		}
		out = store.Polled{Machine: r.Machine, Generation: r.Generation, Name: r.Name, Owner: r.Owner}
		t.after = append(t.after, func() {
			s.waiting.mu.Lock()
			delete(s.waiting.approved, poll)
			s.waiting.mu.Unlock()
		})
		return t.del(bucketEnrolled, []byte(poll.Hex()))
	})
	if err != nil {
		return store.Polled{}, err
	}
	return out, nil
}

// pruneEnrolments drops what has run out, within prune's transaction.
func (s *Store) pruneEnrolments(t *tx, now time.Time) error {
	var codes, polls, guessers []string
	err := each(t.Tx, bucketEnrolment, func(k string, r enrolmentRecord) error {
		if !now.Before(r.ExpiresAt) {
			codes = append(codes, k)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = each(t.Tx, bucketEnrolled, func(k string, r enrolledRecord) error {
		if !now.Before(r.ExpiresAt) {
			polls = append(polls, k)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = each(t.Tx, bucketGuess, func(k string, r guessRecord) error {
		if n := len(r.At); n == 0 || now.Sub(r.At[n-1]) >= enrol.Window {
			guessers = append(guessers, k)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, part := range []struct {
		bucket []byte
		keys   []string
	}{{bucketEnrolment, codes}, {bucketEnrolled, polls}, {bucketGuess, guessers}} {
		for _, k := range part.keys {
			if err := t.del(part.bucket, []byte(k)); err != nil {
				return err
			}
		}
	}
	t.after = append(t.after, func() {
		s.waiting.mu.Lock()
		defer s.waiting.mu.Unlock()
		for p, have := range s.waiting.pending {
			if !now.Before(have.Until) {
				delete(s.waiting.pending, p)
			}
		}
		for p, until := range s.waiting.approved {
			if !now.Before(until) {
				delete(s.waiting.approved, p)
			}
		}
	})
	return nil
}
