package bolt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/store"
)

// rotationRecord is a rotation.State in the file.
type rotationRecord struct {
	Version int64      `json:"version"`
	Digest  hexDigest  `json:"digest,omitzero"`
	Second  int64      `json:"second,omitempty"`
	SDigest hexDigest  `json:"second_digest,omitzero"`
	High    int64      `json:"high"`
	Run     *runRecord `json:"run,omitempty"`
	Signed  signed     `json:"signed,omitzero"`
}

// signed is a rotation.Signed in the file.
type signed struct {
	Statement string `json:"statement"`
	Signature string `json:"signature"`
}

type runRecord struct {
	From       int64     `json:"from"`
	To         int64     `json:"to"`
	FromDigest hexDigest `json:"from_digest,omitzero"`
	ToDigest   hexDigest `json:"to_digest,omitzero"`
	Step       string    `json:"step"`
	Back       bool      `json:"back,omitempty"`
	Aborted    bool      `json:"aborted,omitempty"`
	Drill      bool      `json:"drill,omitempty"`
	Until      time.Time `json:"until,omitzero"`
	By         string    `json:"by"`
	StartedAt  time.Time `json:"started_at"`
	StepAt     time.Time `json:"step_at"`
	ProvedAt   time.Time `json:"proved_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	Outcome    string    `json:"outcome,omitempty"`
	Leave      []string  `json:"leave,omitempty"`
	Missed     []string  `json:"missed,omitempty"`
	FromSigned signed    `json:"from_signed,omitzero"`
	ToSigned   signed    `json:"to_signed,omitzero"`
}

func encodeRotation(s *rotation.State) []byte {
	rec := rotationRecord{Version: s.Version, Digest: hexDigest(s.Digest), Second: s.Second, SDigest: hexDigest(s.SecondDigest), High: s.High,
		Signed: signed(s.Signed)}
	if r := s.Run; r != nil {
		rec.Run = &runRecord{From: r.From, To: r.To, FromDigest: hexDigest(r.FromDigest), ToDigest: hexDigest(r.ToDigest), Step: r.Step,
			Back: r.Back, Aborted: r.Aborted, Drill: r.Drill, Until: utc(r.Until), By: r.By, StartedAt: utc(r.StartedAt), StepAt: utc(r.StepAt),
			ProvedAt: utc(r.ProvedAt), EndedAt: utc(r.EndedAt), Outcome: r.Outcome, Leave: r.Leave, Missed: r.Missed,
			FromSigned: signed(r.FromSigned), ToSigned: signed(r.ToSigned)}
	}
	return mustJSON(rec)
}

// utc is the time as a record has it: without the process's monotonic reading.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0)
}

func decodeRotation(kind string, b []byte) (rotation.State, error) {
	s := rotation.State{Kind: kind}
	if b == nil {
		return s, nil
	}
	var rec rotationRecord
	if err := json.Unmarshal(b, &rec); err != nil {
		return s, fmt.Errorf("cannot read the rotation of the %s: %s", kind, err)
	}
	s.Version, s.Digest, s.High = rec.Version, secret.Digest(rec.Digest), rec.High
	s.Second, s.SecondDigest, s.Signed = rec.Second, secret.Digest(rec.SDigest), rotation.Signed(rec.Signed)
	if r := rec.Run; r != nil {
		s.Run = &rotation.Run{From: r.From, To: r.To, FromDigest: secret.Digest(r.FromDigest), ToDigest: secret.Digest(r.ToDigest), Step: r.Step,
			Back: r.Back, Aborted: r.Aborted, Drill: r.Drill, Until: r.Until, By: r.By, StartedAt: r.StartedAt, StepAt: r.StepAt,
			ProvedAt: r.ProvedAt, EndedAt: r.EndedAt, Outcome: r.Outcome, Leave: r.Leave, Missed: r.Missed,
			FromSigned: rotation.Signed(r.FromSigned), ToSigned: rotation.Signed(r.ToSigned)}
	}
	return s, nil
}

// RotationState reads the state of one kind.
func (s *Store) RotationState(_ context.Context, kind string) (st rotation.State, err error) {
	err = s.db.View(func(t *bbolt.Tx) error {
		st, err = decodeRotation(kind, t.Bucket(bucketRotation).Get([]byte(kind)))
		return err
	})
	return st, err
}

// Steer changes the state of one kind. Where another version retires from then
// on, its uses are counted from nothing.
func (s *Store) Steer(ctx context.Context, kind string, session secret.Digest, f func(*rotation.State) ([]audit.Event, error)) (rotation.State, error) {
	out := make(chan rotation.State, 1)
	err := s.do(ctx, func(t *tx) error {
		if err := t.live(session); err != nil {
			return err
		}
		old := t.Bucket(bucketRotation).Get([]byte(kind))
		st, err := decodeRotation(kind, old)
		if err != nil {
			return err
		}
		retiring := st.Retiring()
		events, err := f(&st)
		if err != nil {
			return err
		}
		select { // an operation may be run again, and the last run counts
		case <-out:
		default:
		}
		out <- st
		b := encodeRotation(&st)
		if string(b) == string(old) {
			return nil
		}
		if err := t.put(bucketRotation, []byte(kind), b); err != nil {
			return err
		}
		if now := st.Retiring(); now != retiring && now != 0 {
			if err := s.usesOf(kind).reset(t); err != nil {
				return err
			}
		}
		return t.append(events...)
	})
	if err != nil {
		return rotation.State{}, err
	}
	return <-out, nil
}

// Tally counts the living machines. One shard is locked at a time, for the
// microseconds that looking through it takes.
func (s *Store) Tally(kind string, here func(int64) bool, left func(string) bool) (n rotation.Tally) {
	uses := s.usesOf(kind)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for k, at := range sh.at {
			h := &sh.slabs[at/perSlab][at%perSlab]
			if h.cred.Deleted {
				continue
			}
			n.All++
			u := uses.of(h.index)
			n.Uses += u.Count
			moved := here(h.holds(kind))
			if moved {
				n.Moved++
			}
			if (!moved || u.Count > 0) && left(idOf(k)) {
				if !moved {
					n.Left++
				}
				continue
			}
			if !moved {
				n.Behind++
			}
			if u.Last.After(n.Last) {
				n.Last = u.Last
			}
		}
		sh.mu.Unlock()
	}
	return n
}

// Behind names those that have not moved.
func (s *Store) Behind(ctx context.Context, kind string, moved func(int64) bool, limit int) ([]string, error) {
	var names []string
	full := errors.New("enough")
	err := s.EachMachine(ctx, func(r *machine.Row) error {
		if moved(r.Holds(kind)) {
			return nil
		}
		if len(names) == limit {
			return full
		}
		names = append(names, r.ID)
		return nil
	})
	if err != nil && !errors.Is(err, full) {
		return nil, err
	}
	return names, nil
}

// Since is when the file was opened: what was in memory alone before is lost.
func (s *Store) Since() time.Time { return s.Epoch().Opened }

// Material judges a machine that fetches something.
func (s *Store) Material(ctx context.Context, id string, presented machine.Proof, now time.Time) (identity.Standing, error) {
	k, ok := keyOf(id)
	sh := s.shard(k)
	sh.mu.Lock()
	h := sh.find(k)
	if h == nil || !ok {
		sh.mu.Unlock()
		return presented.Judge(&identity.Nobody), nil
	}
	standing, index := presented.Judge(&h.cred), h.index
	switch standing {
	case identity.Behind:
		h.behind = milli(now)
	case identity.Barred:
		h.barred = milli(now)
	}
	proven := h.cred.Proven
	sh.mu.Unlock()
	switch {
	case standing == identity.Revoked:
		s.heard(index, now)
		return standing, nil
	case standing == identity.Current && proven, standing == identity.Behind, standing == identity.Unknown, standing == identity.Barred:
		return standing, nil // nothing would be written, and whoever asks may be anybody
	}
	out := make(chan identity.Standing, 1)
	err := s.do(ctx, func(t *tx) error {
		select {
		case <-out:
		default:
		}
		r, index, err := t.machine(id)
		if errors.Is(err, store.ErrNotFound) {
			out <- presented.Judge(&identity.Nobody)
			return nil
		}
		if err != nil {
			return err
		}
		standing, events, changed := r.Use(presented, now)
		out <- standing
		if !changed {
			return nil
		}
		if err := t.put(bucketMachine, []byte(id), encode(r, index)); err != nil {
			return err
		}
		t.after = append(t.after, func() { s.warm(r, index) })
		return t.append(events...)
	})
	if err != nil {
		return identity.Unknown, err
	}
	return <-out, nil
}

// replicas are the planes over this store. A file has one, so memory serves.
type replicas struct {
	mu sync.Mutex
	of map[string]rotation.Replica // kind → the one
}

// Report records what a running plane says of itself.
func (s *Store) Report(_ context.Context, r rotation.Replica) error {
	s.planes.mu.Lock()
	defer s.planes.mu.Unlock()
	if s.planes.of == nil {
		s.planes.of = map[string]rotation.Replica{}
	}
	s.planes.of[r.Kind] = r
	return nil
}

// Replicas returns those that were heard since.
func (s *Store) Replicas(_ context.Context, kind string, since time.Time) ([]rotation.Replica, error) {
	s.planes.mu.Lock()
	defer s.planes.mu.Unlock()
	if r, ok := s.planes.of[kind]; ok && !r.At.Before(since) {
		return []rotation.Replica{r}, nil
	}
	return nil, nil
}
