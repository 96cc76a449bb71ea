// Package spool keeps a session's output on disk: both streams in one order,
// in segments that can be dropped from the old end. A shim writes it, any
// number of cursors read it, and after the shim is gone whoever finds the
// directory reads it still.
//
// Offsets count payload bytes of both streams together. The spool holds the
// contiguous range [Oldest, End). A segment file is named by the offset of its
// first byte and holds records: one stream byte, a four-byte big-endian
// length, the bytes.
//
// What holds: a byte below End is on disk whole, for End moves only after the
// write. A record that a crash or a full disk tore is behind End, and a reader
// that finds it there stops before it. Nothing is synced record by record: the
// spool must outlive processes, and a power cut ends the session anyway.
//
// The package knows nothing of sockets, clients or processes.
package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"syscall"
	"time"
)

// Streams as records name them.
const (
	Stdout byte = 1
	Stderr byte = 2
)

const (
	headerLen = 5
	maxRecord = 32 << 10
	suffix    = ".out"
	retryGap  = time.Second
)

// MinLimit is the smallest limit that a spool takes, in bytes. A client
// acknowledges 32 KiB at a time, of which each byte may be a record of its own:
// so much and two segments fit, else the command and its client would wait for
// each other.
const MinLimit = 512 << 10

// brokenPatience is how long a command waits for a disk that takes nothing for
// another reason than being full, before its old output is given up for it.
const brokenPatience = 10 * time.Second

type segment struct {
	start int64 // offset of its first byte
	end   int64 // one past its last
	disk  int64 // length of the file
}

// Spool is a spool that is being written.
type Spool struct {
	dir     string
	limit   int64
	segSize int64
	drop    bool

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	segs    []segment
	file    *os.File // the last segment, open for writing
	end     int64
	acked   int64
	lost    int64
	waiting int // Appends that wait for room
	closed  bool
	stop    chan struct{}
}

// Create makes an empty spool in dir, which must not exist. With drop the
// oldest output makes room at the limit; without, Append waits for Ack.
func Create(dir string, limit int64, drop bool) (*Spool, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	limit = max(limit, MinLimit)
	return &Spool{dir: dir, limit: limit, segSize: min(max(limit/8, 8<<10), 4<<20), drop: drop,
		changed: make(chan struct{}), stop: make(chan struct{})}, nil
}

// Append writes data of one stream. It waits while the limit is reached and
// nothing may be dropped, and while the disk is full; Close ends the wait.
func (s *Spool) Append(stream byte, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), maxRecord)
		if err := s.append(stream, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// ErrClosed is returned by Append after Close.
var ErrClosed = errors.New("spool is closed")

func (s *Spool) append(stream byte, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var broken time.Time
	for {
		if s.closed {
			return ErrClosed
		}
		if !s.makeRoom(int64(len(data) + headerLen)) {
			s.wait(0)
			continue
		}
		err := s.write(stream, data)
		if err == nil {
			s.signal()
			return nil
		}
		// The disk is full or broken. Under drop the old output goes first and
		// then, nothing being left, this output; else the command waits.
		full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
		if broken.IsZero() {
			broken = time.Now()
		}
		switch {
		case s.drop && !full && time.Since(broken) < brokenPatience: // dropping makes no room for it
			s.wait(retryGap)
		case s.drop && len(s.segs) > 0:
			s.dropOldest()
		case s.drop:
			s.lost += int64(len(data))
			s.end += int64(len(data))
			s.signal()
			return nil
		default:
			s.wait(retryGap)
		}
	}
}

// wait releases the lock until something changes, or for d.
func (s *Spool) wait(d time.Duration) {
	ch := s.changed
	s.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
	}()
	var timer <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ch:
	case <-timer:
	case <-s.stop:
	}
}

func (s *Spool) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Spool) onDisk() (n int64) {
	for _, g := range s.segs {
		n += g.disk
	}
	return n
}

func (s *Spool) makeRoom(n int64) bool {
	for s.onDisk()+n > s.limit && len(s.segs) > 0 {
		if !s.drop && s.segs[0].end > s.acked {
			return false
		}
		s.dropOldest()
	}
	return true
}

func (s *Spool) dropOldest() {
	g := s.segs[0]
	if len(s.segs) == 1 {
		s.closeFile()
	}
	s.segs = s.segs[1:]
	s.lost += g.end - max(g.start, min(s.acked, g.end))
	os.Remove(s.path(g.start))
}

func (s *Spool) closeFile() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
}

func (s *Spool) path(start int64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%016x%s", start, suffix))
}

func (s *Spool) write(stream byte, data []byte) error {
	if s.file == nil || s.segs[len(s.segs)-1].disk >= s.segSize {
		f, err := os.OpenFile(s.path(s.end), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		s.closeFile()
		s.file = f
		if n := len(s.segs); n == 0 || s.segs[n-1].start != s.end {
			s.segs = append(s.segs, segment{start: s.end, end: s.end})
		}
	}
	g := &s.segs[len(s.segs)-1]
	rec := make([]byte, 0, headerLen+len(data))
	rec = append(rec, stream)
	rec = binary.BigEndian.AppendUint32(rec, uint32(len(data)))
	rec = append(rec, data...)
	if _, err := s.file.WriteAt(rec, g.disk); err != nil {
		// What part was written is overwritten or cut off by the next record.
		s.file.Truncate(g.disk)
		if g.end == g.start {
			s.closeFile()
			os.Remove(s.path(g.start))
			s.segs = s.segs[:len(s.segs)-1]
		}
		return err
	}
	g.disk += int64(len(rec))
	g.end += int64(len(data))
	s.end = g.end
	return nil
}

// Drop lets the oldest output make room from now on, also for an Append that
// waits.
func (s *Spool) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop = true
	s.signal()
}

// Waiting reports whether an Append waits for room or for the disk.
func (s *Spool) Waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting > 0
}

// Ack says that clients have everything below offset.
func (s *Spool) Ack(offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset = min(offset, s.end); offset > s.acked {
		s.acked = offset
		s.signal()
	}
}

// Close ends writing: cursors see the end, a waiting Append returns ErrClosed.
func (s *Spool) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.stop)
		s.closeFile()
		s.signal()
	}
}

// State is a spool's extent.
type State struct {
	Oldest, End, Lost int64
	Closed            bool
}

// State returns the extent now, and a channel that is closed at the next change.
func (s *Spool) State() (State, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := State{Oldest: s.end, End: s.end, Lost: s.lost, Closed: s.closed}
	if len(s.segs) > 0 {
		st.Oldest = s.segs[0].start
	}
	return st, s.changed
}

// Cursor reads from an offset on.
func (s *Spool) Cursor(from int64) *Cursor {
	return &Cursor{dir: s.dir, at: max(from, 0), bounds: func(at int64) (State, int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		st := State{Oldest: s.end, End: s.end, Closed: s.closed}
		if len(s.segs) > 0 {
			st.Oldest = s.segs[0].start
		}
		return st, holder(s.segs, at)
	}}
}

// holder is the start of the segment that holds the byte at offset at. The
// segments must not change meanwhile.
func holder(segs []segment, at int64) int64 {
	i := sort.Search(len(segs), func(i int) bool { return segs[i].end > at })
	if i == len(segs) {
		return -1
	}
	return segs[i].start
}
