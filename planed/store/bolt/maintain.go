package bolt

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/store"
)

// Stats counts what there is.
func (s *Store) Stats() store.Stats {
	st := store.Stats{Machines: int(s.living.Load()), Tombstones: int(s.tombstones.Load()), Queued: len(s.queue)}
	s.people.mu.RLock()
	st.Persons, st.Tokens = len(s.people.persons), len(s.people.tokens)
	s.people.mu.RUnlock()
	s.db.View(func(t *bbolt.Tx) error { st.SizeBytes = t.Size(); return nil })
	s.status.Lock()
	st.WriteError, st.LastFlush = s.status.writeError, s.status.lastFlush
	s.status.Unlock()
	return st
}

// Backup writes one consistent copy of the file.
func (s *Store) Backup(ctx context.Context, w io.Writer) error {
	if err := s.Flush(ctx); err != nil {
		return err
	}
	return s.db.View(func(t *bbolt.Tx) error {
		_, err := t.WriteTo(w)
		return err
	})
}

// maxProblems bounds what Verify reports.
const maxProblems = 100

// Verify reads the whole file. bbolt's own check looks at what a writer
// changes, so the writer does it and changes wait meanwhile: seconds, with a
// hundred thousand machines. Plain checks do not.
func (s *Store) Verify(ctx context.Context) ([]string, error) {
	var problems []string
	say := func(format string, args ...any) {
		if len(problems) < maxProblems {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	err := s.submit(ctx, func(t *tx) error {
		problems = nil
		// The channel must be read to its end.
		for err := range t.Check() {
			say("file: %s", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = s.db.View(func(t *bbolt.Tx) error {
		head := audit.Genesis
		err := t.Bucket(bucketAudit).ForEach(func(k, v []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			e, err := decodeEntry(v)
			if err != nil {
				say("audit: %s", err)
				return nil
			}
			next, err := audit.Next(head, e)
			if err != nil {
				say("%s", err)
				next = audit.Head(e)
			}
			head = next
			return nil
		})
		if err != nil {
			return err
		}
		return verifyMachines(ctx, t, say)
	})
	return problems, err
}

func verifyMachines(ctx context.Context, t *bbolt.Tx, say func(string, ...any)) error {
	indexes := map[uint32]string{}
	installed := 0
	err := t.Bucket(bucketMachine).ForEach(func(k, v []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		id := string(k)
		r, index, err := decode(id, v)
		if err != nil {
			say("machine: %s", err)
			return nil
		}
		if other, ok := indexes[index]; ok {
			say("machine %s shares index %d with %s", id, index, other)
		}
		indexes[index] = id
		if r.Credential.Current.IsZero() {
			say("machine %s has no credential", id)
		}
		if r.Deleted != nil {
			return nil
		}
		installed++
		if got := t.Bucket(bucketInstallation).Get([]byte(r.Installation.Hex())); string(got) != id {
			say("machine %s is not found by its installation", id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n := t.Bucket(bucketInstallation).Stats().KeyN; n != installed {
		say("%d installations for %d machines", n, installed)
	}
	return nil
}

// prune drops what has expired: sessions, invitations, and tombstones whose
// credential has not been presented for a long time.
func (s *Store) prune(ctx context.Context) {
	now := s.opts.Now()
	s.do(ctx, func(t *tx) error { // an error stands in Stats; the next hour tries again
		var sessions, invitations []string
		err := each(t.Tx, bucketSession, func(k string, r sessionRecord) error {
			if !now.Before(r.ExpiresAt) {
				sessions = append(sessions, k)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = each(t.Tx, bucketInvitation, func(k string, r invitationRecord) error {
			if !now.Before(r.ExpiresAt) {
				invitations = append(invitations, k)
			}
			return nil
		})
		if err != nil {
			return err
		}
		gone, err := s.forgotten(t, now)
		if err != nil {
			return err
		}
		if err := s.pruneEnrolments(t, now); err != nil {
			return err
		}
		for _, k := range sessions {
			if err := t.del(bucketSession, []byte(k)); err != nil {
				return err
			}
		}
		for _, k := range invitations {
			if err := t.del(bucketInvitation, []byte(k)); err != nil {
				return err
			}
		}
		for _, id := range gone {
			if err := t.del(bucketMachine, []byte(id)); err != nil {
				return err
			}
			// The index is used again after the next opening: until then a
			// check that is under way may still write its slot.
			t.after = append(t.after, func() { s.cool(id); s.tombstones.Add(-1) })
		}
		t.after = append(t.after, func() { s.people.expire(now) })
		return nil
	})
}

func (s *Store) forgotten(t *tx, now time.Time) ([]string, error) {
	var gone []string
	err := t.Bucket(bucketMachine).ForEach(func(k, v []byte) error {
		// Most rows live, and decoding them all would cost the writer too much.
		if !bytes.Contains(v, []byte(`"deleted_at"`)) {
			return nil
		}
		r, index, err := decode(string(k), v)
		if err != nil || r.Deleted == nil {
			return err
		}
		last := r.Deleted.At
		if seen := s.lastHeard(index); seen.After(last) {
			last = seen
		}
		if now.Sub(last) > s.opts.TombstonesFor {
			gone = append(gone, r.ID)
		}
		return nil
	})
	return gone, err
}
