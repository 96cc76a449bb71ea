package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/store"
)

const (
	gatherFor = 2 * time.Millisecond
	gatherMax = 256
	queueMax  = 1024
	// waitFor bounds how long a request waits for its commit, so that a disk
	// that hangs does not take every place a plain check could use.
	waitFor = 10 * time.Second
)

// op is one durable operation. run decides first and writes then; see tx.
type op struct {
	run  func(t *tx) error
	done chan error
}

// tx is a write transaction that operations share.
type tx struct {
	*bbolt.Tx
	wrote bool     // since the running operation began
	after []func() // what memory has to learn once this is durable
	undo  []func() // what memory gets back if it never will be
	head  wire.AuditHead
	next  uint32   // first index that was never used
	free  []uint32 // indexes whose tombstones were dropped

	enrols  int                    // waiting machines that it adds
	evicted map[secret.Digest]bool // and that make room for them
}

func (t *tx) evict(poll secret.Digest) {
	if t.evicted == nil {
		t.evicted = map[secret.Digest]bool{}
	}
	t.evicted[poll] = true
}

func (t *tx) put(bucket, k, v []byte) error {
	t.wrote = true
	return t.Bucket(bucket).Put(k, v)
}

func (t *tx) del(bucket, k []byte) error {
	t.wrote = true
	return t.Bucket(bucket).Delete(k)
}

func (t *tx) append(events ...audit.Event) error {
	// Entries only ever come at the end, so a full page stays full.
	t.Bucket(bucketAudit).FillPercent = 1
	for _, e := range events {
		entry := audit.Link(t.head, e)
		if err := t.put(bucketAudit, seqKey(entry.Seq), mustJSON(entry)); err != nil {
			return err
		}
		t.head = audit.Head(entry)
	}
	return nil
}

func seqKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// do hands an operation to the writer and waits, but not for ever, until it is
// durable or refused. When the wait ends first the operation may still happen.
func (s *Store) do(ctx context.Context, run func(t *tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	return s.submit(ctx, run)
}

func (s *Store) submit(ctx context.Context, run func(t *tx) error) error {
	o := &op{run: run, done: make(chan error, 1)}
	s.sending.RLock()
	if s.closing {
		s.sending.RUnlock()
		return store.ErrClosed
	}
	select {
	case s.queue <- o:
		s.sending.RUnlock()
	default:
		s.sending.RUnlock()
		return store.ErrBusy
	}
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrBusy, ctx.Err())
	}
}

// write is the writer. It ends when the queue is closed and empty.
func (s *Store) write() {
	defer close(s.written)
	batch := make([]*op, 0, gatherMax)
	for o := range s.queue {
		batch = append(batch[:0], o)
		timer := time.NewTimer(gatherFor)
	gather:
		for len(batch) < gatherMax {
			select {
			case o, ok := <-s.queue:
				if !ok {
					break gather
				}
				batch = append(batch, o)
			case <-timer.C:
				break gather
			}
		}
		timer.Stop()
		s.commit(batch)
	}
}

// commit runs a batch in one transaction and answers every operation.
func (s *Store) commit(batch []*op) {
	answers := make([]error, len(batch))
	failed := make([]bool, len(batch)) // after writing: they are out of the next attempt
	for {
		again, err := s.attempt(batch, answers, failed)
		if again {
			continue
		}
		s.setWriteError(err)
		for i, o := range batch {
			if err != nil && !failed[i] {
				answers[i] = err
			}
			o.done <- answers[i]
		}
		return
	}
}

func (s *Store) attempt(batch []*op, answers []error, failed []bool) (again bool, err error) {
	raw, err := s.db.Begin(true)
	if err != nil {
		return false, storageError(err)
	}
	t := &tx{Tx: raw, head: s.head, next: s.next, free: s.free}
	for i, o := range batch {
		if failed[i] {
			continue
		}
		t.wrote = false
		answers[i] = o.run(t)
		if answers[i] != nil && t.wrote {
			failed[i] = true
			answers[i] = storageError(answers[i])
			t.abandon()
			return true, nil
		}
	}
	if err := raw.Commit(); err != nil {
		t.abandon()
		return false, storageError(err)
	}
	changed := t.head != s.head
	if t.next > s.next {
		s.grow(t.next)
	}
	s.next, s.free = t.next, t.free
	for _, f := range t.after {
		f()
	}
	if changed {
		s.announce(t.head)
	}
	return false, nil
}

func (t *tx) abandon() {
	t.Rollback()
	for _, f := range t.undo {
		f()
	}
}

func storageError(err error) error {
	if err == nil || errors.Is(err, store.ErrStorage) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrStorage, err)
}

// announce publishes a new head of the audit chain. s.head itself is the
// writer's own.
func (s *Store) announce(head wire.AuditHead) {
	s.head = head
	s.auditMu.Lock()
	close(s.auditChanged)
	s.auditChanged = make(chan struct{})
	s.auditMu.Unlock()
}
