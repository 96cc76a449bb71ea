package tree

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Type is a frame's first byte. A frame is its type, a four-byte big-endian
// length, and that many bytes of payload, MaxPayload at most. Numbers are
// big-endian, times are Unix nanoseconds, modes are the nine bits of chmod(2). A sum
// has 32 bytes; both ends know which one it is (see Sum).
type Type byte

// Frames of the sender. Directories and large files are numbered from one, in
// order; the directory 0 is where the copy goes, and the one entry in it has no
// name: the receiver knows it.
const (
	Dir   Type = 'D' // u32 number, u32 directory, u32 mode, i64 time, name
	DirUp Type = 'X' // u32 number: no more in it
	Link  Type = 'L' // u32 directory, i64 time, u16 length, name, target
	Small Type = 'F' // u32 directory, u32 mode, i64 time, sum, u16 length, name, content
	Large Type = 'Q' // u32 number, u32 directory, u32 mode, i64 time, u64 size, u8 sparse, name
	Ask   Type = 'R' // u32 number, u64 block: the hashes of what is there of it, from there on
	Block Type = 'B' // u32 number, u64 block, sum, content
	Keep  Type = 'K' // u32 number, u64 block, u64 count: these are right as they are
	Hole  Type = 'Z' // u32 number, u64 block, u64 count: these are zeros
	End   Type = 'E' // u32 number: all of its blocks were sent
	Drop  Type = 'A' // u32 number: it is not to be
	Over  Type = 'T' // all was sent
)

// Frames of the receiver.
const (
	Go   Type = 'g' // u32 number, u8 verdict, u64 blocks that may be there; the answer to Large
	Have Type = 'h' // u32 number, u64 block, SHA-256 of each from there on; the answer to Ask
	Ack  Type = 'k' // u64 files, u64 bytes that are in place
	Done Type = 'd' // JSON Result; the last frame
)

// Frames of both.
const (
	Trouble Type = 'P' // JSON Problem: an entry that is not copied
	Noop    Type = 'N' // nothing, lest silence be taken for a loss
)

// Verdicts of Go.
const (
	Send    = 0
	There   = 1 // the file is in place already
	Refused = 2 // it cannot be; a Problem says why
)

const (
	// BlockSize is what a large file is sent, hashed and compared by, in bytes.
	BlockSize = 256 << 10
	// MaxSmall is the most that a file of one frame has, in bytes.
	MaxSmall = 128 << 10
	// MaxPayload bounds a frame's payload, in bytes.
	MaxPayload = BlockSize + 64
	// haveAtOnce is how many hashes one Have carries.
	haveAtOnce = 4096
	maxName    = 255
	maxSize    = 1 << 60
	maxTarget  = 4096
	maxDoc     = 64 << 10
	headerLen  = 5
	hashLen    = sha256.Size
)

// ErrMalformed is in the chain of every complaint about a peer's frames.
var ErrMalformed = errors.New("the other side breaks the protocol")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// Reader reads frames. A payload is valid until the next call.
type Reader struct {
	r    io.Reader
	head [headerLen]byte
	buf  []byte
}

// NewReader reads frames from r, in few system calls only if r is buffered.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next returns the next frame. At a clean end between two frames it returns
// io.EOF, within one io.ErrUnexpectedEOF.
func (r *Reader) Next() (Type, []byte, error) {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(r.head[1:])
	if n > MaxPayload {
		return 0, nil, malformed("a frame of %d bytes", n)
	}
	if cap(r.buf) < int(n) {
		r.buf = make([]byte, max(int(n), 4<<10))
	}
	p := r.buf[:n]
	if _, err := io.ReadFull(r.r, p); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Type(r.head[0]), p, nil
}

// swap lets go of the last frame's payload, so that it stays valid; buf takes
// the next ones.
func (r *Reader) swap(buf []byte) { r.buf = buf }

// begin appends a frame's head; finish says how long it became.
func begin(b []byte, t Type) []byte { return append(b, byte(t), 0, 0, 0, 0) }

func finish(b []byte, at int) []byte {
	n := len(b) - at - headerLen
	if n > MaxPayload {
		panic("tree: payload too long")
	}
	binary.BigEndian.PutUint32(b[at+1:], uint32(n))
	return b
}

// AppendRaw appends a frame as it was read.
func AppendRaw(b []byte, t Type, payload []byte) []byte {
	at := len(b)
	return finish(append(begin(b, t), payload...), at)
}

func u32(b []byte, n uint32) []byte { return binary.BigEndian.AppendUint32(b, n) }
func u64(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }

// dirFrame is Dir's payload.
type dirFrame struct {
	id, parent uint32
	mode       uint32
	mtime      int64
	name       string
}

func (f dirFrame) append(b []byte) []byte {
	at := len(b)
	b = u64(u32(u32(u32(begin(b, Dir), f.id), f.parent), f.mode), uint64(f.mtime))
	return finish(append(b, f.name...), at)
}

// linkFrame is Link's payload.
type linkFrame struct {
	dir          uint32
	mtime        int64
	name, target string
}

func (f linkFrame) append(b []byte) []byte {
	at := len(b)
	b = u64(u32(begin(b, Link), f.dir), uint64(f.mtime))
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.name)))
	return finish(append(append(b, f.name...), f.target...), at)
}

// smallFrame is Small's payload. content is valid until the next frame.
type smallFrame struct {
	dir     uint32
	mode    uint32
	mtime   int64
	sum     [hashLen]byte
	name    string
	content []byte
}

func (f smallFrame) append(b []byte) []byte {
	at := len(b)
	b = u64(u32(u32(begin(b, Small), f.dir), f.mode), uint64(f.mtime))
	b = append(b, f.sum[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.name)))
	return finish(append(append(b, f.name...), f.content...), at)
}

// largeFrame is Large's payload.
type largeFrame struct {
	id, dir uint32
	mode    uint32
	mtime   int64
	size    int64
	sparse  bool
	name    string
}

func (f largeFrame) append(b []byte) []byte {
	at := len(b)
	b = u64(u64(u32(u32(u32(begin(b, Large), f.id), f.dir), f.mode), uint64(f.mtime)), uint64(f.size))
	sparse := byte(0)
	if f.sparse {
		sparse = 1
	}
	return finish(append(append(b, sparse), f.name...), at)
}

// blocks is how many there are in size bytes.
func blocks(size int64) int64 { return (size + BlockSize - 1) / BlockSize }

// appendBlock appends a Block.
func appendBlock(b []byte, id uint32, index int64, sum [hashLen]byte, data []byte) []byte {
	at := len(b)
	b = u64(u32(begin(b, Block), id), uint64(index))
	return finish(append(append(b, sum[:]...), data...), at)
}

// appendRange appends a Keep or Hole, or without a count an Ask.
func appendRange(b []byte, t Type, id uint32, first, count int64) []byte {
	at := len(b)
	b = u64(u32(begin(b, t), id), uint64(first))
	if t != Ask {
		b = u64(b, uint64(count))
	}
	return finish(b, at)
}

// appendID appends a frame that is a number alone.
func appendID(b []byte, t Type, id uint32) []byte {
	at := len(b)
	return finish(u32(begin(b, t), id), at)
}

func appendGo(b []byte, id uint32, verdict byte, there int64) []byte {
	at := len(b)
	return finish(u64(append(u32(begin(b, Go), id), verdict), uint64(there)), at)
}

func appendHave(b []byte, id uint32, first int64, sums []byte) []byte {
	at := len(b)
	return finish(append(u64(u32(begin(b, Have), id), uint64(first)), sums...), at)
}

func appendAck(b []byte, files, bytes int64) []byte {
	at := len(b)
	return finish(u64(u64(begin(b, Ack), uint64(files)), uint64(bytes)), at)
}

func appendJSON(b []byte, t Type, v any) []byte {
	doc, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return AppendRaw(b, t, doc)
}

// fields takes a payload apart. The first that is missing makes all that follow
// zero, and err.
type fields struct {
	p   []byte
	err error
}

func (f *fields) take(n int) []byte {
	if f.err != nil || len(f.p) < n {
		if f.err == nil {
			f.err = malformed("a frame ends too early")
		}
		return nil
	}
	b := f.p[:n]
	f.p = f.p[n:]
	return b
}

func (f *fields) u8() byte {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) u16() int {
	if b := f.take(2); b != nil {
		return int(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (f *fields) u32() uint32 {
	if b := f.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (f *fields) i64() int64 {
	if b := f.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// count is a number that is not negative.
func (f *fields) count() int64 {
	n := f.i64()
	if n < 0 && f.err == nil {
		f.err = malformed("a negative number")
		return 0
	}
	return n
}

func (f *fields) hash() (h [hashLen]byte) {
	copy(h[:], f.take(hashLen))
	return h
}

func (f *fields) rest() []byte {
	b := f.p
	f.p = nil
	return b
}

// end returns the error, if any; bytes that are left over are one.
func (f *fields) end() error {
	if f.err == nil && len(f.p) > 0 {
		f.err = malformed("a frame has %d bytes too many", len(f.p))
	}
	return f.err
}

func parseDir(p []byte) (d dirFrame, err error) {
	f := fields{p: p}
	d = dirFrame{id: f.u32(), parent: f.u32(), mode: f.u32() & 0o777, mtime: f.i64(), name: string(f.rest())}
	return d, errors.Join(f.end(), checkName(d.parent, d.name))
}

func parseLink(p []byte) (l linkFrame, err error) {
	f := fields{p: p}
	l.dir, l.mtime = f.u32(), f.i64()
	l.name = string(f.take(f.u16()))
	l.target = string(f.rest())
	if err := errors.Join(f.end(), checkName(l.dir, l.name)); err != nil {
		return l, err
	}
	if l.target == "" || len(l.target) > maxTarget || strings.ContainsRune(l.target, 0) {
		return l, malformed("a symbolic link leads to %q", l.target)
	}
	return l, nil
}

func parseSmall(p []byte) (s smallFrame, err error) {
	f := fields{p: p}
	s.dir, s.mode, s.mtime, s.sum = f.u32(), f.u32()&0o777, f.i64(), f.hash()
	s.name = string(f.take(f.u16()))
	s.content = f.rest()
	if err := errors.Join(f.end(), checkName(s.dir, s.name)); err != nil {
		return s, err
	}
	if len(s.content) > MaxSmall {
		return s, malformed("a small file of %d bytes", len(s.content))
	}
	return s, nil
}

func parseLarge(p []byte) (l largeFrame, err error) {
	f := fields{p: p}
	l = largeFrame{id: f.u32(), dir: f.u32(), mode: f.u32() & 0o777, mtime: f.i64(), size: f.count(), sparse: f.u8() != 0, name: string(f.rest())}
	if l.size > maxSize {
		return l, malformed("a file of %d bytes", l.size)
	}
	return l, errors.Join(f.end(), checkName(l.dir, l.name))
}

// parseRange reads Ask, Keep and Hole of a file with that many blocks.
func parseRange(t Type, p []byte) (id uint32, first, count int64, err error) {
	f := fields{p: p}
	id, first = f.u32(), f.count()
	if t != Ask {
		count = f.count()
	}
	return id, first, count, f.end()
}

func parseID(p []byte) (uint32, error) {
	f := fields{p: p}
	id := f.u32()
	return id, f.end()
}

// checkName takes what is one name and no more: an entry of the directory is
// all that it can be. The entry of directory 0 has none.
func checkName(dir uint32, name string) error {
	switch {
	case dir == 0 && name == "":
		return nil
	case dir == 0:
		return malformed("what is copied brings a name of its own, %q", name)
	case name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsAny(name, "/\x00"):
		return malformed("%q is not the name of a file", name)
	}
	return nil
}
