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
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
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

// MinLimit is the smallest limit that a spool takes.
const MinLimit = 64 << 10

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
		switch {
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

// Stored is a spool that nobody writes any more.
type Stored struct {
	dir  string
	segs []segment
}

// Open reads the extent of the spool in dir. A torn record at the end is left out.
func Open(dir string) (*Stored, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	st := &Stored{dir: dir}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		start, err := strconv.ParseInt(name, 16, 64)
		if err != nil || start < 0 {
			continue
		}
		st.segs = append(st.segs, segment{start: start, end: start})
	}
	sort.Slice(st.segs, func(i, j int) bool { return st.segs[i].start < st.segs[j].start })
	for i := range st.segs {
		g := &st.segs[i]
		if i+1 < len(st.segs) {
			g.end = st.segs[i+1].start
			continue
		}
		if g.end, err = lastOffset(filepath.Join(dir, fmt.Sprintf("%016x%s", g.start, suffix)), g.start); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// lastOffset walks a segment's records.
func lastOffset(path string, start int64) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var head [headerLen]byte
	end := start
	for pos := int64(0); ; {
		if _, err := f.ReadAt(head[:], pos); err != nil {
			return end, nil
		}
		n := int64(binary.BigEndian.Uint32(head[1:]))
		if n == 0 || n > maxRecord || pos+headerLen+n > info.Size() {
			return end, nil
		}
		pos += headerLen + n
		end += n
	}
}

// State returns the extent.
func (s *Stored) State() State {
	st := State{Closed: true}
	if n := len(s.segs); n > 0 {
		st.Oldest, st.End = s.segs[0].start, s.segs[n-1].end
	}
	return st
}

// Cursor reads from an offset on.
func (s *Stored) Cursor(from int64) *Cursor {
	return &Cursor{dir: s.dir, at: max(from, 0), bounds: func(at int64) (State, int64) { return s.State(), holder(s.segs, at) }}
}

// Cursor reads a spool forward. It is used by one goroutine.
type Cursor struct {
	dir    string
	at     int64
	bounds func(at int64) (State, int64) // and the start of the segment that holds at

	file *os.File
	seg  int64 // start of the open segment
	pos  int64 // where the next record starts in it
	off  int64 // that record's offset
	buf  []byte
}

// Chunk is what a cursor found. With To > Offset and no Data, the output in
// [Offset, To) is no longer kept.
type Chunk struct {
	Stream byte
	Offset int64
	Data   []byte // valid until the next call
	To     int64
}

// ErrTorn says that a stored segment does not hold what its name promises.
var ErrTorn = errors.New("spool segment is damaged")

// At is the offset of the next byte.
func (c *Cursor) At() int64 { return c.at }

// Next returns the next chunk, at most max bytes of data. ok is false when
// there is nothing (yet) beyond At.
func (c *Cursor) Next(limit int) (chunk Chunk, ok bool, err error) {
	for {
		st, start := c.bounds(c.at)
		if c.at >= st.End {
			return Chunk{}, false, nil
		}
		if c.at < st.Oldest {
			chunk = Chunk{Offset: c.at, To: st.Oldest}
			c.at = st.Oldest
			return chunk, true, nil
		}
		if c.file == nil || c.seg != start {
			if err := c.open(start); err != nil {
				if errors.Is(err, os.ErrNotExist) {
					if now, _ := c.bounds(c.at); now.Oldest > c.at {
						continue // dropped between the look and the open
					}
				}
				return Chunk{}, false, err
			}
		}
		return c.record(limit)
	}
}

func (c *Cursor) open(start int64) error {
	c.Close()
	f, err := os.Open(filepath.Join(c.dir, fmt.Sprintf("%016x%s", start, suffix)))
	if err != nil {
		return err
	}
	c.file, c.seg, c.pos, c.off, c.buf = f, start, 0, start, c.buf[:0]
	return nil
}

// record returns the rest of the record that holds at.
func (c *Cursor) record(limit int) (Chunk, bool, error) {
	for {
		head, err := c.peek(headerLen)
		if err != nil {
			return Chunk{}, false, err
		}
		stream, n := head[0], int64(binary.BigEndian.Uint32(head[1:]))
		if n == 0 || n > maxRecord {
			return Chunk{}, false, ErrTorn
		}
		if c.off+n <= c.at {
			c.skip(headerLen + n)
			c.off += n
			continue
		}
		rec, err := c.peek(int(headerLen + n))
		if err != nil {
			return Chunk{}, false, err
		}
		data := rec[headerLen:][c.at-c.off:]
		chunk := Chunk{Stream: stream, Offset: c.at, Data: data[:min(len(data), limit)]}
		c.at += int64(len(chunk.Data))
		return chunk, true, nil
	}
}

// peek returns n bytes at pos, reading ahead.
func (c *Cursor) peek(n int) ([]byte, error) {
	if len(c.buf) >= n {
		return c.buf[:n], nil
	}
	if cap(c.buf) < maxRecord+headerLen {
		c.buf = append(make([]byte, 0, 2*maxRecord), c.buf...)
	}
	full := c.buf[:cap(c.buf)]
	m, err := c.file.ReadAt(full, c.pos)
	c.buf = full[:m]
	if m >= n {
		return c.buf[:n], nil
	}
	if err == nil || err == io.EOF {
		err = ErrTorn
	}
	return nil, err
}

func (c *Cursor) skip(n int64) {
	c.pos += n
	if n >= int64(len(c.buf)) {
		c.buf = c.buf[:0]
		return
	}
	// Keeping the array's start means that reading ahead keeps its room.
	c.buf = c.buf[:copy(c.buf, c.buf[n:])]
}

// Close releases the open segment.
func (c *Cursor) Close() {
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}
