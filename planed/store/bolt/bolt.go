package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// format is the version of the file's content that this package writes. A field
// that an older planed would drop or not heed raises it: since 2 a person may
// be locked, since 3 material rotates and a bearer may not be enough, since 4
// a plane may have moved by a person's statement. Files of
// every format from 1 on are taken and brought to this one
// when they are opened.
const format = 4

var (
	bucketMeta         = []byte("meta")
	bucketMachine      = []byte("machine")      // id → record
	bucketSeen         = []byte("seen")         // page number → times of last checks
	bucketInstallation = []byte("installation") // digest → id
	bucketPerson       = []byte("person")       // name → personRecord
	bucketKey          = []byte("key")          // fingerprint → keyRecord
	bucketSession      = []byte("session")      // digest → sessionRecord
	bucketInvitation   = []byte("invitation")   // digest → invitationRecord
	bucketToken        = []byte("token")        // digest → tokenRecord
	bucketAudit        = []byte("audit")        // sequence number → wire.AuditEntry
	bucketEnrolment    = []byte("enrolment")    // code's digest → enrolmentRecord
	bucketEnrolled     = []byte("enrolled")     // poll secret's digest → enrolledRecord
	bucketGuess        = []byte("guess")        // person → guessRecord
	bucketRotation     = []byte("rotation")     // kind of material → rotationRecord
	bucketUses         = []byte("uses")         // page number or path → uses of what retires

	buckets = [][]byte{bucketMeta, bucketMachine, bucketSeen, bucketInstallation, bucketPerson, bucketKey,
		bucketSession, bucketInvitation, bucketToken, bucketAudit, bucketEnrolment, bucketEnrolled, bucketGuess, bucketRotation, bucketUses}

	metaFormat = []byte("format")
	metaAlive  = []byte("alive") // when the store was last known to work
)

// Options for Open. The zero value is for a running plane.
type Options struct {
	Create bool // make the file if there is none
	// Offline opens the store for maintenance while no plane runs. Nothing is
	// flushed then: the time until which the plane worked must stay what it
	// was, or its outage would make machines absent.
	Offline    bool
	FlushEvery time.Duration // 0 means 5 s
	// TombstonesFor is how long after its credential was last presented a
	// tombstone is dropped; 0 means 400 days.
	TombstonesFor time.Duration
	Now           func() time.Time // nil means time.Now
	// Backup opens a backup's file, to restore it.
	Backup bool
}

// Store is a store.Store over one bbolt file.
type Store struct {
	path   string
	opts   Options
	db     *bbolt.DB
	epochs struct {
		sync.Mutex
		now  machine.Epoch
		seen time.Time // when now was looked at last
	}
	shards  [shards]shard
	people  people
	waiting waiting
	uses    [3]uses // one for each of kinds
	planes  replicas

	// Owned by the writer once it runs.
	head wire.AuditHead
	next uint32
	free []uint32

	// pages grows by replacement: only the writer does, and checks read on.
	pages atomic.Pointer[[]*page]

	sending sync.RWMutex // held to send on queue, locked to close it
	closing bool
	queue   chan *op
	written chan struct{} // closed when the writer has ended
	stop    context.CancelFunc
	// stopping makes the last flush record the very end.
	stopping atomic.Bool
	flushed  chan struct{} // closed when the flusher has ended

	auditMu      sync.Mutex
	auditChanged chan struct{}

	living, tombstones atomic.Int64
	status             struct {
		sync.Mutex
		writeError string
		lastFlush  time.Time
	}
}

var _ store.Store = (*Store)(nil)

// Open opens the store at path and starts its writer. Only one process at a
// time can have it open.
func Open(path string, opts Options) (*Store, error) {
	if opts.FlushEvery == 0 {
		opts.FlushEvery = 5 * time.Second
	}
	if opts.TombstonesFor == 0 {
		opts.TombstonesFor = 400 * 24 * time.Hour
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	// bbolt takes an empty file for a new store; an existing plane's must not
	// silently become one.
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && opts.Create:
	case err != nil:
		return nil, fmt.Errorf("cannot open the store: %w", err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("cannot open the store: %s is not a regular file", path)
	case st.Size() == 0 && !opts.Create:
		return nil, fmt.Errorf("cannot open the store: %s is empty, a plane's store never is; restore it from a backup", path)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      time.Second,
		FreelistType: bbolt.FreelistMapType,
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("cannot open the store: another process has %s open", path)
	case errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, &store.NewerError{Path: path, Has: format + 1, Max: format}
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum):
		return nil, fmt.Errorf("cannot open the store: %s is damaged (%s); restore it from a backup", path, err)
	case err != nil:
		return nil, fmt.Errorf("cannot open the store: %w", err)
	}
	s := &Store{path: path, opts: opts, db: db, head: audit.Genesis,
		queue: make(chan *op, queueMax), written: make(chan struct{}), flushed: make(chan struct{}),
		auditChanged: make(chan struct{})}
	for i := range s.shards {
		s.shards[i].at = map[key]uint32{}
	}
	if err := s.prepare(opts.Create); err != nil {
		db.Close()
		return nil, err
	}
	if at, err := s.BackupAt(); err != nil || !at.IsZero() && !opts.Backup {
		db.Close()
		if err == nil {
			err = &BackupError{path, at}
		}
		return nil, err
	}
	if err := s.load(); err != nil {
		db.Close()
		return nil, err
	}
	s.epochs.seen = opts.Now()
	s.epochs.now.Opened = s.epochs.seen.Round(0)
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.write()
	if opts.Offline {
		close(s.flushed)
	} else {
		go s.flushLoop(ctx)
	}
	return s, nil
}

// prepare checks the format and makes what is missing.
func (s *Store) prepare(create bool) error {
	has := 0
	err := s.db.View(func(t *bbolt.Tx) error {
		if b := t.Bucket(bucketMeta); b != nil {
			if v := b.Get(metaFormat); len(v) == 4 {
				has = int(binary.BigEndian.Uint32(v))
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case has > format:
		return &store.NewerError{Path: s.path, Has: has, Max: format}
	case has == format && s.hasBuckets():
		return nil
	case has == 0 && !create:
		return fmt.Errorf("cannot open the store: %s is no plane's store", s.path)
	}
	err = s.db.Update(func(t *bbolt.Tx) error {
		for _, b := range buckets {
			if _, err := t.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return t.Bucket(bucketMeta).Put(metaFormat, binary.BigEndian.AppendUint32(nil, format))
	})
	return storageError(err)
}

func (s *Store) hasBuckets() (all bool) {
	s.db.View(func(t *bbolt.Tx) error {
		all = !slices.ContainsFunc(buckets, func(b []byte) bool { return t.Bucket(b) == nil })
		return nil
	})
	return all
}

// load fills memory from the file.
func (s *Store) load() error {
	return s.db.View(func(t *bbolt.Tx) error {
		if v := t.Bucket(bucketMeta).Get(metaAlive); len(v) == 8 {
			s.epochs.now.Alive = time.UnixMicro(int64(binary.BigEndian.Uint64(v))).UTC()
		}
		if _, v := t.Bucket(bucketAudit).Cursor().Last(); v != nil {
			e, err := decodeEntry(v)
			if err != nil {
				return err
			}
			s.head = audit.Head(e)
		}
		used := map[uint32]bool{}
		proven := map[uint32]time.Time{} // when the credential was issued
		err := t.Bucket(bucketMachine).ForEach(func(k, v []byte) error {
			r, index, err := decode(string(k), v)
			if err != nil {
				return err
			}
			used[index] = true
			if r.Credential.Proven {
				proven[index] = r.IssuedAt
			}
			s.next = max(s.next, index+1)
			s.warm(r, index)
			s.count(r, 1)
			return nil
		})
		if err != nil {
			return err
		}
		pages := make([]*page, (s.next+perPage-1)/perPage)
		for i := range s.next {
			if !used[i] {
				s.free = append(s.free, i)
			}
		}
		for n := range pages {
			pages[n] = &page{}
			pages[n].decode(t.Bucket(bucketSeen).Get(pageKey(n)))
		}
		s.pages.Store(&pages)
		// Times of checks are written now and then, and the one group that a
		// crash loses may hold a machine's first. A proven credential says that
		// there was one, and its absence here that it came after the last group.
		for i, issued := range proven {
			if issued.Before(s.epochs.now.Alive) {
				issued = s.epochs.now.Alive
			}
			pages[i/perPage].at[i%perPage].CompareAndSwap(0, issued.UnixMicro())
		}
		// A free slot may hold the time of a row that is gone.
		for _, i := range s.free {
			pages[i/perPage].at[i%perPage].Store(0)
		}
		if err := s.waiting.load(t); err != nil {
			return err
		}
		s.initUses()
		for i := range s.uses {
			if err := s.uses[i].load(t); err != nil {
				return err
			}
		}
		return s.people.load(t)
	})
}

func (s *Store) count(r *machine.Row, n int64) {
	if r.Deleted != nil {
		s.tombstones.Add(n)
	} else {
		s.living.Add(n)
	}
}

// allocate takes an index for a new row, within the transaction.
func (t *tx) allocate() (index uint32) {
	if n := len(t.free); n > 0 {
		index, t.free = t.free[n-1], t.free[:n-1:n-1]
		return index
	}
	index = t.next
	t.next++
	return index
}

// grow makes pages for indexes below next.
func (s *Store) grow(next uint32) {
	pages := *s.pages.Load()
	for uint32(len(pages))*perPage < next {
		pages = append(pages[:len(pages):len(pages)], &page{})
	}
	s.pages.Store(&pages)
}

// Epoch says when the store was opened and until when the run before worked.
func (s *Store) Epoch() machine.Epoch {
	s.epochs.Lock()
	defer s.epochs.Unlock()
	now := s.opts.Now()
	s.epochs.now = s.epochs.now.After(s.epochs.seen, now)
	s.epochs.seen = now
	return s.epochs.now
}

func (s *Store) flushLoop(ctx context.Context) {
	defer close(s.flushed)
	tick := time.NewTicker(s.opts.FlushEvery)
	defer tick.Stop()
	prune := time.NewTicker(time.Hour)
	defer prune.Stop()
	s.prune(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.Epoch()    // looks at the clock, though nobody asks
			s.Flush(ctx) // an error stands in Stats; the pages stay dirty
		case <-prune.C:
			s.prune(ctx)
		}
	}
}

// aliveEvery is how often an idle plane says that it still works.
const aliveEvery = 30 * time.Second

// Flush writes the times that plain checks left in memory, and that the store
// was alive when it did.
func (s *Store) Flush(ctx context.Context) error {
	if s.opts.Offline {
		return nil
	}
	return s.do(ctx, func(t *tx) error {
		now := s.opts.Now()
		used := s.people.takeUsed()
		t.undo = append(t.undo, func() { s.people.returnUsed(used) })
		idle := len(used) == 0
		for n, p := range *s.pages.Load() {
			// Cleared before the values are read: a check that comes in
			// between makes the page dirty again.
			if !p.dirty.Swap(false) {
				continue
			}
			t.undo = append(t.undo, func() { p.dirty.Store(true) })
			idle = false
			if err := t.put(bucketSeen, pageKey(n), p.encode()); err != nil {
				return err
			}
		}
		if err := s.people.putUsed(t, used); err != nil {
			return err
		}
		for i := range s.uses {
			some, err := s.uses[i].flush(t)
			if err != nil {
				return err
			}
			idle = idle && !some
		}
		s.status.Lock()
		recent := now.Sub(s.status.lastFlush) < aliveEvery
		s.status.Unlock()
		if idle && recent && !s.stopping.Load() {
			return nil
		}
		t.after = append(t.after, func() {
			s.status.Lock()
			s.status.lastFlush = now
			s.status.Unlock()
		})
		return t.put(bucketMeta, metaAlive, binary.BigEndian.AppendUint64(nil, uint64(now.UnixMicro())))
	})
}

// Close flushes, ends the writer and closes the file.
func (s *Store) Close() error {
	s.sending.RLock()
	closing := s.closing
	s.sending.RUnlock()
	if closing {
		return nil
	}
	s.stopping.Store(true)
	s.stop()
	<-s.flushed
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	flushErr := s.Flush(ctx)
	s.sending.Lock()
	if s.closing {
		s.sending.Unlock()
		return nil
	}
	s.closing = true
	close(s.queue)
	s.sending.Unlock()
	<-s.written
	return errors.Join(flushErr, s.db.Close())
}

func (s *Store) setWriteError(err error) {
	s.status.Lock()
	defer s.status.Unlock()
	s.status.writeError = ""
	if err != nil {
		s.status.writeError = err.Error()
	}
}
