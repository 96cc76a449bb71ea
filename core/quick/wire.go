package quick

import (
	"errors"
	"io"
	"slices"
)

const (
	magic = "fleetq/2"
	// maxRequest bounds a request, in bytes. Who has a larger environment goes
	// the long way.
	maxRequest = 512 << 10
	// MaxFrame bounds a frame's payload, in bytes.
	MaxFrame = 64 << 10
)

// Request is a command that is handed over.
type Request struct {
	Session string // the id of the session that it is to be
	Args    []string
	Environ []string
	Dir     string // the working directory
	Program string // the front's file
}

// ErrRequest says that bytes are no request.
var ErrRequest = errors.New("malformed request")

func (r Request) append(b []byte) ([]byte, error) {
	n := 4 + len(r.Session) + listSize(r.Args) + listSize(r.Environ) + 4 + len(r.Dir) + 4 + len(r.Program)
	if n > maxRequest {
		return nil, ErrRequest
	}
	b = slices.Grow(b, len(magic)+4+n)
	b = appendSize(append(b, magic...), n)
	b = appendList(appendList(appendText(b, r.Session), r.Args), r.Environ)
	return appendText(appendText(b, r.Dir), r.Program), nil
}

func listSize(list []string) int {
	n := 4 + 4*len(list)
	for _, s := range list {
		n += len(s)
	}
	return n
}

// ReadRequest reads a request.
func ReadRequest(r io.Reader) (*Request, error) {
	var head [len(magic) + 4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := size(head[len(magic):])
	if string(head[:len(magic)]) != magic || n < 0 || n > maxRequest {
		return nil, ErrRequest
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	d := decoder{b: b}
	req := &Request{Session: d.text(), Args: d.list(), Environ: d.list(), Dir: d.text(), Program: d.text()}
	if d.bad || len(d.b) > 0 {
		return nil, ErrRequest
	}
	return req, nil
}

// Getenv is os.Getenv of the front.
func (r *Request) Getenv(name string) string {
	for i := len(r.Environ) - 1; i >= 0; i-- {
		if kv := r.Environ[i]; len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name {
			return kv[len(name)+1:]
		}
	}
	return ""
}

func appendSize(b []byte, n int) []byte {
	return append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func size(b []byte) int {
	return int(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]))
}

func appendText(b []byte, s string) []byte { return append(appendSize(b, len(s)), s...) }

func appendList(b []byte, list []string) []byte {
	b = appendSize(b, len(list))
	for _, s := range list {
		b = appendText(b, s)
	}
	return b
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) number() int {
	if len(d.b) < 4 {
		d.bad = true
		return 0
	}
	n := size(d.b)
	d.b = d.b[4:]
	return n
}

func (d *decoder) text() string {
	n := d.number()
	if d.bad || n < 0 || n > len(d.b) {
		d.bad = true
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) list() []string {
	n := d.number()
	if d.bad || n < 0 || n > len(d.b)/4 {
		d.bad = true
		return nil
	}
	out := make([]string, 0, n)
	for range n {
		out = append(out, d.text())
	}
	return out
}

// AppendFrame appends one frame.
func AppendFrame(b []byte, kind byte, p []byte) ([]byte, error) {
	if len(p) > MaxFrame {
		return b, errFrame
	}
	return append(appendSize(append(b, kind), len(p)), p...), nil
}

// ReadFrame reads one frame, its payload into buf if there is room.
func ReadFrame(r io.Reader, buf []byte) (kind byte, p []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, buf, err
	}
	n := size(head[1:])
	if n < 0 || n > MaxFrame {
		return 0, buf, errFrame
	}
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return 0, buf, err
	}
	return head[0], buf, nil
}
