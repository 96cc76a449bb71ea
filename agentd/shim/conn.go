package shim

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"fleet.example/fleet/agentd/spool"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

const (
	// maxClients bounds the attached clients, maxConns them and those that did not
	// say yet what they want: a session that all of its clients forgot can be
	// asked about, and ended, as well.
	maxClients   = 64
	maxConns     = 2 * maxClients
	helloTimeout = 10 * time.Second
)

// conn is one connection: agentd's own short request, or a client that agentd
// spliced through.
type conn struct {
	s        *shim
	nc       net.Conn
	attached atomic.Bool
	client   string        // the name that it gave itself, under the shim's mutex
	left     chan struct{} // closed when the client has left
	acked    atomic.Int64  // output that the client needs no more
	wake     chan struct{}

	mu      sync.Mutex
	out     []byte // control frames that wait to be sent
	taken   int64  // of this client's input
	ackIn   bool   // taken is to be sent
	failure *frame.ErrorDetail
}

func (s *shim) serve(nc net.Conn) {
	c := &conn{s: s, nc: nc, left: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.mu.Lock()
	full := len(s.conns) >= maxConns
	if !full {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		nc.Close()
		return
	}
	s.wg.Go(func() {
		defer func() {
			nc.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
			select {
			case s.left <- struct{}{}:
			default:
			}
			s.ack()
		}()
		c.run()
	})
}

// run checks the Hello, then is either a request or a client.
func (c *conn) run() {
	r := frame.NewReader(bufio.NewReaderSize(c.nc, 8<<10))
	c.nc.SetDeadline(time.Now().Add(helloTimeout))
	t, p, err := r.Next()
	if err != nil || t != frame.Hello || secret.Match(secret.Of(string(p)).Digest(), c.s.digest) < 0 {
		return
	}
	t, p, err = r.Next()
	if err != nil {
		return
	}
	switch t {
	case frame.Query:
		c.nc.Write(frame.AppendJSON(nil, frame.Info, c.s.info()))
	case frame.Signal:
		err := errEnded
		if c.s.cmd != nil {
			err = c.s.cmd.signal(string(p))
		}
		if err != nil {
			code := wire.CodeBadRequest
			if errors.Is(err, errEnded) {
				code = wire.CodeConflict
			}
			c.nc.Write(frame.AppendJSON(nil, frame.Error, frame.ErrorDetail{Code: code, Message: err.Error()}))
			return
		}
		c.nc.Write(frame.Append(nil, frame.Done, nil))
	case frame.Attach:
		var a frame.AttachRequest
		if err := frame.ParseJSON(p, &a); err != nil {
			c.refuse(wire.CodeBadRequest, err)
			return
		}
		c.nc.SetDeadline(time.Time{})
		c.follow(r, a)
	default:
		c.refuse(wire.CodeBadRequest, frame.ErrMalformed)
	}
}

func (c *conn) refuse(code string, err error) {
	c.nc.SetWriteDeadline(time.Now().Add(helloTimeout))
	c.nc.Write(frame.AppendJSON(nil, frame.Error, frame.ErrorDetail{Code: code, Message: err.Error()}))
}

var errCrowd = fmt.Errorf("%d clients are attached to this session, which is the most", maxClients)

// attach makes c the client of that name, from an output offset on. What was
// that client before is let go of: it may be a connection of which nothing but
// the silence tells that it is dead, and would hold the output back until then.
func (c *conn) attach(name string, from int64) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for old := range s.conns {
		if old != c && name != "" && old.client == name {
			old.attached.Store(false)
			old.nc.Close()
		}
	}
	if s.attached() >= maxClients {
		return errCrowd
	}
	c.client = name
	c.acked.Store(from)
	c.attached.Store(true)
	return nil
}

// follow serves one attached client: this goroutine sends, another receives.
func (c *conn) follow(r *frame.Reader, a frame.AttachRequest) {
	st, _ := c.s.spool.State()
	if a.From < 0 || a.From > st.End {
		a.From = st.End
	}
	if err := c.attach(a.Client, a.From); err != nil {
		c.refuse(wire.CodeBusy, err)
		return
	}
	answer := frame.AttachedAnswer{Session: c.s.cfg.ID, State: c.s.info().State, Oldest: st.Oldest, End: st.End, PTY: c.s.cfg.PTY != nil}
	var w *writer
	if c.s.input != nil {
		answer.Input = c.s.input.w != nil
		if a.Writer != "" {
			var err error
			if w, answer.Stdin, err = c.s.input.claim(a.Writer, c); err != nil {
				c.refuse(wire.CodeBusy, err)
				return
			}
			defer c.s.input.release(w, c)
		}
		c.s.cmd.resize(a.Rows, a.Cols)
	}
	c.push(frame.AppendJSON(nil, frame.Attached, answer))
	received := make(chan struct{})
	go func() { // ends when the connection is closed, as it is below
		defer close(received)
		if err := c.receive(r, w); err != nil {
			c.fail(err)
		} else {
			close(c.left)
			c.nc.Close()
		}
	}()
	c.send(a.From)
	c.nc.Close()
	<-received
}

// receive reads what the client sends. A nil error is the client's leaving.
func (c *conn) receive(r *frame.Reader, w *writer) error {
	for {
		t, p, err := r.Next()
		if err != nil {
			if errors.Is(err, frame.ErrMalformed) {
				return err
			}
			return nil
		}
		switch t {
		case frame.Stdin, frame.StdinEOF:
			offset, data, err := frame.ParseData(p)
			if err != nil {
				return err
			}
			if w == nil {
				if c.s.input == nil {
					c.acknowledge(offset + int64(len(data))) // the command never started
					continue
				}
				return errors.New("input from a client that attached without a writer")
			}
			if err := c.s.input.offer(w, c, offset, data, t == frame.StdinEOF); err != nil {
				return err
			}
		case frame.Signal:
			if c.s.cmd != nil {
				c.s.cmd.signal(string(p)) // too late or unknown: nobody is to be told
			}
		case frame.Resize:
			rows, cols, err := frame.ParseResize(p)
			if err != nil {
				return err
			}
			if c.s.cmd != nil {
				c.s.cmd.resize(rows, cols)
			}
		case frame.Ack:
			offset, err := frame.ParseOffset(p)
			if err != nil {
				return err
			}
			if offset > c.acked.Load() {
				c.acked.Store(offset)
				c.s.touched.Store(time.Now().UnixNano())
				c.s.ack()
			}
		case frame.Ping:
			if len(p) <= 64 {
				c.push(frame.Append(nil, frame.Pong, p))
			}
		case frame.Hello, frame.Attach, frame.Query:
			return frame.ErrMalformed
		}
	}
}

// ack tells the spool what no attached client needs any more.
func (s *shim) ack() {
	s.mu.Lock()
	least := int64(-1)
	for c := range s.conns {
		if c.attached.Load() {
			if a := c.acked.Load(); least < 0 || a < least {
				least = a
			}
		}
	}
	s.mu.Unlock()
	if least >= 0 {
		s.spool.Ack(least)
	}
}

// send writes frames until the client has left or has all of an ended session.
func (c *conn) send(from int64) {
	cur := c.s.spool.Cursor(from)
	defer cur.Close()
	var buf []byte
	for {
		_, changed := c.s.spool.State()
		var failure *frame.ErrorDetail
		if buf, failure = c.control(buf[:0]); failure != nil {
			c.nc.Write(frame.AppendJSON(buf, frame.Error, *failure))
			return
		}
		more := false
		for len(buf) < frame.MaxData { // several small records make one write
			chunk, ok, err := cur.Next(frame.MaxData)
			if err != nil {
				c.nc.Write(frame.AppendJSON(buf, frame.Error, frame.ErrorDetail{Code: wire.CodeInternal, Message: "cannot read spool: " + err.Error()}))
				return
			}
			if more = ok; !ok {
				break
			}
			buf = appendChunk(buf, chunk)
		}
		if len(buf) > 0 {
			if _, err := c.nc.Write(buf); err != nil {
				return
			}
			c.s.touched.Store(time.Now().UnixNano())
			continue
		}
		if more {
			continue
		}
		select {
		case <-c.s.exited:
			if st, _ := c.s.spool.State(); cur.At() >= st.End {
				buf, _ = c.control(buf[:0])
				c.nc.Write(frame.AppendJSON(buf, frame.Exit, *c.s.exit))
				return
			}
			continue
		default:
		}
		select {
		case <-changed:
		case <-c.wake:
		case <-c.s.exited:
		case <-c.left:
			return
		}
	}
}

func appendChunk(b []byte, chunk spool.Chunk) []byte {
	switch {
	case chunk.Data == nil:
		return frame.AppendLost(b, chunk.Offset, chunk.To)
	case chunk.Stream == spool.Stderr:
		return frame.AppendData(b, frame.Stderr, chunk.Offset, chunk.Data)
	default:
		return frame.AppendData(b, frame.Stdout, chunk.Offset, chunk.Data)
	}
}

// control takes the control frames that wait, after b, and why the client is
// to be turned away, if it is.
func (c *conn) control(b []byte) ([]byte, *frame.ErrorDetail) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b = append(b, c.out...)
	c.out = c.out[:0]
	if c.ackIn {
		b = frame.AppendOffset(b, frame.StdinAck, c.taken)
		c.ackIn = false
	}
	return b, c.failure
}

// push queues a control frame. A client that pings without reading loses the
// answers, not the session's memory.
func (c *conn) push(b []byte) {
	c.mu.Lock()
	if len(c.out) < 4<<10 {
		c.out = append(c.out, b...)
	}
	c.mu.Unlock()
	c.nudge()
}

func (c *conn) acknowledge(taken int64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.taken, c.ackIn = taken, true
	c.mu.Unlock()
	c.nudge()
}

func (c *conn) fail(err error) {
	c.mu.Lock()
	c.failure = &frame.ErrorDetail{Code: wire.CodeBadRequest, Message: err.Error()}
	c.mu.Unlock()
	c.nudge()
}

func (c *conn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Replay serves a client of a session whose shim is gone, from what is on
// disk. The exit record may be missing: then the end is not known. What cannot
// be read is told the client, which would come back for it otherwise.
func Replay(nc net.Conn, r *frame.Reader, id, dir string) error {
	buf, err := replay(nc, r, id, dir)
	nc.SetDeadline(time.Now().Add(drainIdle))
	if err != nil {
		buf = frame.AppendJSON(buf, frame.Error, frame.ErrorDetail{Code: wire.CodeInternal, Message: "cannot read what is kept of the session: " + err.Error()})
	}
	_, gone := nc.Write(buf)
	return errors.Join(err, gone)
}

// replay is Replay but for the last frames, which it returns.
func replay(nc net.Conn, r *frame.Reader, id, dir string) (last []byte, err error) {
	nc.SetDeadline(time.Now().Add(helloTimeout))
	t, p, err := r.Next()
	if err != nil {
		return nil, err
	}
	var a frame.AttachRequest
	if t != frame.Attach || frame.ParseJSON(p, &a) != nil {
		return nil, frame.ErrMalformed
	}
	exit := frame.ExitStatus{Gone: true}
	if e, err := ReadExit(dir); err == nil {
		exit = frame.ExitStatus{End: e.End, SessionExit: e.SessionExit}
	}
	st, err := spool.Open(dir + "/" + SpoolDir)
	if err != nil {
		return nil, err
	}
	state := st.State()
	exit.End = max(exit.End, state.End)
	if a.From < 0 || a.From > state.End {
		a.From = state.End
	}
	cur := st.Cursor(a.From)
	defer cur.Close()
	buf := frame.AppendJSON(nil, frame.Attached, frame.AttachedAnswer{Session: id, State: wire.SessionExited, Oldest: state.Oldest, End: state.End})
	for {
		chunk, ok, err := cur.Next(frame.MaxData)
		if err != nil {
			return buf, err
		}
		if !ok {
			break
		}
		if buf = appendChunk(buf, chunk); len(buf) >= frame.MaxData {
			nc.SetDeadline(time.Now().Add(drainIdle))
			if _, err := nc.Write(buf); err != nil {
				return nil, err
			}
			buf = buf[:0]
		}
	}
	return frame.AppendJSON(buf, frame.Exit, exit), nil
}
