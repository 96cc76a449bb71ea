package bolt

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// Check authenticates and records a check. A plain one touches memory alone.
func (s *Store) Check(ctx context.Context, c store.Check) (store.Checked, error) {
	k, ok := keyOf(c.Machine)
	instance := padded(c.Mark.Instance)
	sh := s.shard(k)

	sh.mu.Lock()
	h := sh.find(k)
	if h == nil || !ok {
		sh.mu.Unlock()
		return store.Checked{Standing: c.Presented.Judge(&identity.Nobody)}, nil
	}
	out := store.Checked{Standing: c.Presented.Judge(&h.cred), Generation: h.cred.Generation, Asked: h.asked(), Toward: h.cred.Keys.Toward}
	index := h.index
	counted := h.said && h.cred.Proven && h.instance == instance
	switch {
	case out.Standing == identity.Revoked:
		sh.mu.Unlock()
		s.heard(index, c.At)
		return out, nil
	case out.Standing == identity.Behind:
		h.behind = milli(c.At)
		sh.mu.Unlock()
		if c.Retiring {
			s.uses[0].used(index, c.At)
		}
		return out, nil
	case out.Standing == identity.Barred:
		h.barred = milli(c.At)
		sh.mu.Unlock()
		return out, nil
	case out.Standing != identity.Current && out.Standing != identity.Next:
		sh.mu.Unlock()
		return out, nil
	}
	if c.Retiring {
		s.uses[0].used(index, c.At)
	}
	two := h.lines.Heard(c.Mark.Instance, c.Mark.Mark, c.Given[:]) && !h.two
	if out.Standing == identity.Current && counted && c.Mark.Seq < h.seq {
		// One is a check that arrived late. Two that follow each other are a
		// machine that was taken back to an earlier state, memory and all.
		if c.Mark.Seq <= h.stale || h.stale == 0 {
			h.stale = c.Mark.Seq
			sh.mu.Unlock()
			return out, nil
		}
		h.seq = c.Mark.Seq
	}
	h.stale = 0
	switch {
	case two:
		c.Two = true
	case out.Standing == identity.Current && counted && h.body == c.Digest && h.gate == c.Gate:
		h.seq = c.Mark.Seq
		out.Held = machine.Held{URL: int64(h.url), Trust: int64(h.trust)}
		sh.mu.Unlock()
		s.usedHeld(index, out.Held, c)
		s.heard(index, c.At)
		return out, nil
	}
	sh.mu.Unlock()

	body, err := c.Body()
	if err != nil {
		return out, err
	}
	// A value of its own for the writer: when ctx ends first, out is returned
	// while the operation may still run.
	var did store.Checked
	err = s.do(ctx, func(t *tx) error {
		r, index, err := t.machine(c.Machine)
		if err != nil {
			return err
		}
		r.LastCheck = s.lastHeard(index)
		s.catchUp(r)
		heard := r.Hear(c.Check, body)
		did = store.Checked{Standing: heard.Standing, Generation: r.Credential.Generation, Asked: r.Asked, Toward: r.Credential.Keys.Toward, Held: r.Held}
		if heard.Standing != identity.Current && heard.Standing != identity.Next {
			return nil
		}
		t.after = append(t.after, func() {
			s.warm(r, index)
			if !heard.Stale {
				s.heard(index, c.At)
				s.usedHeld(index, r.Held, c)
			}
		})
		if !heard.Changed {
			return nil
		}
		if err := t.put(bucketMachine, []byte(c.Machine), encode(r, index)); err != nil {
			return err
		}
		return t.append(heard.Events...)
	})
	if err != nil {
		// The machine was heard, whatever became of what it said: a plane that
		// cannot write must not make it look absent (R19).
		if errors.Is(err, store.ErrStorage) || errors.Is(err, store.ErrBusy) {
			s.heard(index, c.At)
		}
		return out, err
	}
	return did, nil
}

// usedHeld counts a check of a machine that holds another version of something
// than it is to hold.
func (s *Store) usedHeld(index uint32, held machine.Held, c store.Check) {
	if c.Wanted.URL != 0 && held.URL != c.Wanted.URL && held.URL >= c.Spared.URL {
		s.uses[1].used(index, c.At)
	}
	if c.Wanted.Trust != 0 && held.Trust != c.Wanted.Trust && held.Trust >= c.Spared.Trust {
		s.uses[2].used(index, c.At)
	}
}

// catchUp gives the row the sequence number that plain checks left in memory.
func (s *Store) catchUp(r *machine.Row) {
	k, _ := keyOf(r.ID)
	instance := padded(r.Told.Instance)
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if h := sh.find(k); h != nil && h.instance == instance {
		r.Told.Seq = h.seq
	}
}

// recall gives a row that is shown what only memory knows.
func (s *Store) recall(r *machine.Row, index uint32) {
	r.LastCheck = s.lastHeard(index)
	r.GateUses, r.URLUses, r.TrustUses = s.uses[0].of(index), s.uses[1].of(index), s.uses[2].of(index)
	k, _ := keyOf(r.ID)
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h := sh.find(k)
	if h != nil && h.behind != 0 {
		r.BehindAt = time.UnixMilli(h.behind).UTC()
	}
	if h != nil && h.barred != 0 {
		r.BarredAt = time.UnixMilli(h.barred).UTC()
	}
}

// machine reads a row within the transaction.
func (t *tx) machine(id string) (*machine.Row, uint32, error) {
	v := t.Bucket(bucketMachine).Get([]byte(id))
	if v == nil {
		return nil, 0, store.ErrNotFound
	}
	return decode(id, v)
}

// Rotate stages the next generation of the machine that presents a secret, or a
// certificate.
func (s *Store) Rotate(ctx context.Context, rot store.Rotation) (machine.Rotated, error) {
	did, err := s.advance(ctx, rot.Machine, rot.At, rot.Presented, func(r *machine.Row) (machine.Rotated, []audit.Event, error) {
		return r.Rotate(rot.Presented, rot.Generation, rot.Digest, rot.At)
	})
	return did.Rotated, err
}

// Certify takes note of a key that is to be certified.
func (s *Store) Certify(ctx context.Context, c store.Certification) (store.Certified, error) {
	// Whoever is refused may be anybody, and nothing would be written.
	if did, refused := s.wouldRefuse(c); refused {
		return did, nil
	}
	return s.advance(ctx, c.Machine, c.At, machine.Proof{Digest: c.Bearer}, func(r *machine.Row) (machine.Rotated, []audit.Event, error) {
		return r.Certify(c.Certification)
	})
}

// wouldRefuse judges a request for a certificate by what memory knows.
func (s *Store) wouldRefuse(c store.Certification) (did store.Certified, refused bool) {
	k, ok := keyOf(c.Machine)
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h := sh.find(k)
	if h == nil || !ok {
		did.Standing = machine.Bearer(c.Bearer).Judge(&identity.Nobody)
		return did, true
	}
	row := h.cred
	did.Standing, _, _ = row.Certify(c.Bearer, c.Held, c.Key)
	switch did.Standing {
	case identity.Revoked:
		s.heard(h.index, c.At)
	case identity.Behind:
		h.behind = milli(c.At)
	case identity.Barred:
		h.barred = milli(c.At)
	}
	return did, did.Standing != identity.Current && did.Standing != identity.Next
}

// advance lets the row of a machine decide about its credential, and writes
// what became of it. by is what a row that does not exist is asked about, so
// that the price is the same.
func (s *Store) advance(ctx context.Context, id string, at time.Time, by machine.Proof,
	decide func(*machine.Row) (machine.Rotated, []audit.Event, error)) (store.Certified, error) {
	// Values of its own for the writer: when ctx ends first, the operation may
	// still run.
	type outcome struct {
		did     store.Certified
		refused error // of the request; presenting the next generation promoted it all the same
	}
	out := make(chan outcome, 1)
	err := s.do(ctx, func(t *tx) error {
		var o outcome
		defer func() {
			select { // an operation may be run again, and the last run counts
			case <-out:
			default:
			}
			out <- o
		}()
		r, index, err := t.machine(id)
		if errors.Is(err, store.ErrNotFound) {
			o.did.Standing = by.Judge(&identity.Nobody)
			return nil
		}
		if err != nil {
			return err
		}
		var events []audit.Event
		o.did.Rotated, events, o.refused = decide(r)
		o.did.Generation = r.Credential.Generation
		switch o.did.Standing {
		case identity.Revoked:
			t.after = append(t.after, func() { s.heard(index, at) })
		case identity.Behind, identity.Barred:
			t.after = append(t.after, func() { s.refused(id, o.did.Standing, at) })
		}
		if !o.did.Changed {
			return nil
		}
		if err := t.put(bucketMachine, []byte(id), encode(r, index)); err != nil {
			return err
		}
		t.after = append(t.after, func() { s.warm(r, index) })
		return t.append(events...)
	})
	if err != nil {
		return store.Certified{}, err
	}
	o := <-out
	return o.did, o.refused
}

// Admit admits an installation.
func (s *Store) Admit(ctx context.Context, a machine.Admission, now time.Time) (store.Admitted, error) {
	var out store.Admitted
	err := s.do(ctx, func(t *tx) (err error) {
		if err := t.live(a.By.Session); err != nil {
			return err
		}
		out, err = s.admit(t, a, now)
		return err
	})
	if err != nil {
		return store.Admitted{}, err
	}
	return out, nil
}

// admit admits within a transaction.
func (s *Store) admit(t *tx, a machine.Admission, now time.Time) (out store.Admitted, err error) {
	inst := []byte(a.Installation.Hex())
	if id := t.Bucket(bucketInstallation).Get(inst); id != nil {
		r, index, err := t.machine(string(id))
		if err != nil {
			return out, err
		}
		outcome, events, err := r.Admit(a, now)
		if err != nil {
			return out, err
		}
		out = store.Admitted{Row: r, Outcome: outcome}
		if outcome != identity.Replaced {
			return out, nil
		}
		if err := t.put(bucketMachine, id, encode(r, index)); err != nil {
			return out, err
		}
		t.after = append(t.after, func() { s.warm(r, index) })
		return out, t.append(events...)
	}
	r, events := machine.New(wire.NewMachineID(), a, now)
	out = store.Admitted{Row: r, Outcome: identity.Made}
	index := t.allocate()
	if err := t.put(bucketMachine, []byte(r.ID), encode(r, index)); err != nil {
		return out, err
	}
	if err := t.put(bucketInstallation, inst, []byte(r.ID)); err != nil {
		return out, err
	}
	t.after = append(t.after, func() {
		for i := range s.uses {
			s.uses[i].forget(index)
		}
		s.warm(r, index)
		s.count(r, 1)
	})
	return out, t.append(events...)
}

// Edit applies a person's change to one row.
func (s *Store) Edit(ctx context.Context, id string, ch store.Change) (*machine.Row, error) {
	var out *machine.Row
	err := s.do(ctx, func(t *tx) error {
		if err := t.live(ch.By.Session); err != nil {
			return err
		}
		r, index, err := t.machine(id)
		if err != nil {
			return err
		}
		if ch.Transfer != nil {
			if err := t.receives(*ch.Transfer); err != nil {
				return err
			}
		}
		s.recall(r, index)
		if r.Deleted != nil {
			return &store.GoneError{Deleted: r.Gone()}
		}
		installation := r.Installation
		events, err := ch.Apply(r)
		if err != nil {
			return err
		}
		out = r
		if len(events) == 0 {
			return nil
		}
		if err := t.put(bucketMachine, []byte(id), encode(r, index)); err != nil {
			return err
		}
		if ch.Delete {
			if err := t.del(bucketInstallation, []byte(installation.Hex())); err != nil {
				return err
			}
		}
		t.after = append(t.after, func() {
			s.warm(r, index)
			if ch.Delete {
				s.living.Add(-1)
				s.tombstones.Add(1)
			}
		})
		return t.append(events...)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Machine reads one row.
func (s *Store) Machine(_ context.Context, id string) (*machine.Row, error) {
	var r *machine.Row
	err := s.db.View(func(t *bbolt.Tx) error {
		v := t.Bucket(bucketMachine).Get([]byte(id))
		if v == nil {
			return store.ErrNotFound
		}
		var err error
		var index uint32
		if r, index, err = decode(id, v); err == nil {
			s.recall(r, index)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.Deleted != nil {
		return nil, &store.GoneError{Deleted: r.Gone()}
	}
	return r, nil
}

// chunk is how many rows EachMachine reads in one transaction. A read
// transaction that stays open keeps the file from reusing its pages, so none
// is held while rows go to a slow client.
const chunk = 256

// EachMachine calls f for every living machine.
func (s *Store) EachMachine(ctx context.Context, f func(*machine.Row) error) error {
	var from []byte
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		rows := make([]*machine.Row, 0, chunk)
		more := false
		err := s.db.View(func(t *bbolt.Tx) error {
			c := t.Bucket(bucketMachine).Cursor()
			k, v := c.First()
			if from != nil {
				k, v = c.Seek(from)
			}
			for n := 0; k != nil; k, v = c.Next() {
				if n == chunk {
					from, more = append([]byte(nil), k...), true
					return nil
				}
				n++
				r, index, err := decode(string(k), v)
				if err != nil {
					return err
				}
				if r.Deleted == nil {
					s.recall(r, index)
					rows = append(rows, r)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := f(r); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}
