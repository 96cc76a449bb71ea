package muxserver

import (
	"io"
	"net"
	"sync"
	"time"

	"fleet.example/fleet/core/splice"
)

const (
	// maxSpares is how many streams to an agent are kept ready.
	maxSpares = 2
	// spareAge is how long one is kept: less than the agent waits for a request.
	spareAge = 90 * time.Second
	// sparesFor is how long after its last use an agent has streams kept ready.
	sparesFor = 10 * time.Minute
)

// spares are streams that are open and unused. With one at hand a call costs
// one round trip, not two.
type spares struct {
	mu     sync.Mutex
	list   []*spare
	coming int
	ended  bool
}

// spare is a stream whose far end is being read, so that one that the agent
// closed is noticed before it is given out.
type spare struct {
	net.Conn
	since time.Time
	first chan chunk // what the first read brought
	begun bool
	left  []byte
	err   error
}

type chunk struct {
	b   []byte
	err error
}

func newSpare(far net.Conn) *spare {
	s := &spare{Conn: far, since: time.Now(), first: make(chan chunk, 1)}
	go func() { // ends with the first bytes, or with the stream
		b := make([]byte, 16<<10)
		n, err := far.Read(b)
		s.first <- chunk{b[:n], err}
	}()
	return s
}

// Read is for one reader.
func (s *spare) Read(p []byte) (int, error) {
	if !s.begun {
		c := <-s.first
		s.begun, s.left, s.err = true, c.b, c.err
	}
	if len(s.left) > 0 {
		n := copy(p, s.left)
		s.left = s.left[n:]
		return n, nil
	}
	if s.err != nil {
		return 0, s.err
	}
	return s.Conn.Read(p)
}

// WriteTo lets a copy give way to the stream's own reads after the first.
func (s *spare) WriteTo(w io.Writer) (int64, error) {
	if !s.begun {
		c := <-s.first
		s.begun, s.left, s.err = true, c.b, c.err
	}
	n, err := w.Write(s.left)
	s.left = nil
	if err != nil || s.err != nil {
		if err == nil && s.err != io.EOF {
			err = s.err
		}
		return int64(n), err
	}
	m, err := splice.Copy(w, s.Conn)
	return int64(n) + m, err
}

// CloseWrite passes a half-close on.
func (s *spare) CloseWrite() error { return closeWrite(s.Conn) }

// closeWrite ends what is sent; a connection that has no half ends whole.
func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}

// good reports whether nothing was heard of the stream yet.
func (s *spare) good() bool { return len(s.first) == 0 && time.Since(s.since) < spareAge }

// take returns a spare that is still good, or nil.
func (p *spares) take() net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.list) > 0 {
		s := p.list[len(p.list)-1]
		p.list = p.list[:len(p.list)-1]
		if s.good() {
			return s
		}
		s.Close()
	}
	return nil
}

// wanted says how many are to be opened, and counts on them.
func (p *spares) wanted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return 0
	}
	n := max(0, maxSpares-len(p.list)-p.coming)
	p.coming += n
	return n
}

// put adds one that was wanted, or takes note that it did not come.
func (p *spares) put(far net.Conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.coming--
	switch {
	case err != nil:
	case p.ended:
		far.Close()
	default:
		p.list = append(p.list, newSpare(far))
	}
}

func (p *spares) air() {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.list[:0]
	for _, s := range p.list {
		if s.good() {
			kept = append(kept, s)
		} else {
			s.Close()
		}
	}
	p.list = kept
}

func (p *spares) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, s := range p.list {
		s.Close()
	}
	p.list = nil
}
