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
)

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
	end  int64 // the spool's end, as it was last seen
	seen int64 // and as it was when buf was read: what lies beyond it may have been torn, and written anew
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
		c.end = st.End
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
		if c.off >= c.seen {
			c.buf = c.buf[:0]
		}
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
	c.seen = c.end
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
