// Package quickserver is the side of package quick that does the commands. For
// each client it has the command run with the client's words, environment and
// output, as if the client's own process did: see there for what both hold to.
//
// It must not know what the commands are.
package quickserver

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fleet.example/fleet/core/peer"
	"fleet.example/fleet/core/quick"
)

const (
	// maxCalls bounds how many commands run at once; further clients do their
	// commands themselves.
	maxCalls = 256
	// requestTime bounds how long a client may take to say what it wants.
	requestTime = 10 * time.Second
	// sendTime bounds how long a client may take to take a frame. There is at
	// most one under way, for which its socket has room.
	sendTime = 10 * time.Second
	// maxEarly bounds what is kept of notices until the command begins, in bytes.
	maxEarly = 32 << 10
	// maxWaiting bounds how many signals wait for the command to ask for them.
	maxWaiting = 4
	// acceptAgain is the time between two tries to accept a client.
	acceptAgain = 50 * time.Millisecond
)

// Run does a client's command and returns its exit code.
type Run func(ctx context.Context, c *Call) int

// Serve does the commands of clients until the context ends or the listener is
// closed, and waits for those that run. It owns the listener.
func Serve(ctx context.Context, l net.Listener, run Run) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxCalls)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(acceptAgain): // out of descriptors
			}
			continue
		}
		if u, ok := conn.(*net.UnixConn); ok && !peer.Own(u) {
			conn.Close()
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		wg.Go(func() {
			defer func() { conn.Close(); <-slots }()
			serve(ctx, conn, run)
		})
	}
}

func serve(ctx context.Context, conn net.Conn, run Run) {
	conn.SetReadDeadline(time.Now().Add(requestTime))
	req, err := quick.ReadRequest(conn)
	if err != nil {
		return
	}
	conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &Call{Request: req, conn: conn, acks: make(chan syscall.Errno, 1), goOn: make(chan struct{}), gone: make(chan struct{})}
	end := context.AfterFunc(ctx, func() { conn.Close() })
	defer end()
	var wg sync.WaitGroup
	defer func() { conn.Close(); wg.Wait() }()
	wg.Go(func() {
		c.read()
		cancel()
	})
	exit := run(ctx, c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun.Load() {
		c.send(quick.Decline, nil)
		return
	}
	c.send(quick.Exit, []byte{byte(exit)})
}

// Call is one client's command.
type Call struct {
	*quick.Request
	conn net.Conn

	acks chan syscall.Errno
	goOn chan struct{} // closed when the client says so
	gone chan struct{} // closed when the client has gone

	mu    sync.Mutex // of what is sent, and of a write until it is answered
	early []byte     // notices from before Begin
	begun atomic.Bool

	sigMu   sync.Mutex
	sigs    map[chan<- os.Signal][]os.Signal
	waiting []os.Signal // they came before anybody asked for any
	hung    bool        // the client has gone, and who asks for signals hears so
}

// ErrDeclined is what the command ends with when it is to be done by the client
// itself.
var ErrDeclined = errors.New("the command is done by the one who gave it")

// read takes the client's frames until it has gone.
func (c *Call) read() {
	defer func() {
		close(c.gone)
		c.hangUp()
	}()
	began := false
	var buf []byte
	for {
		kind, p, err := quick.ReadFrame(c.conn, buf)
		if err != nil {
			return
		}
		buf = p
		switch {
		case kind == quick.Go && !began:
			began = true
			close(c.goOn)
		case kind == quick.Done && len(p) == 2:
			select {
			case c.acks <- syscall.Errno(binary.BigEndian.Uint16(p)):
			default:
				return // an answer to what was not asked
			}
		case kind == quick.Signal && len(p) == 2:
			c.deliver(syscall.Signal(binary.BigEndian.Uint16(p)))
		default:
			return
		}
	}
}

// deliver passes a signal on to those who asked for it, as package signal does.
func (c *Call) deliver(s os.Signal) {
	c.sigMu.Lock()
	defer c.sigMu.Unlock()
	if c.sigs == nil {
		if len(c.waiting) < maxWaiting {
			c.waiting = append(c.waiting, s)
		}
		return
	}
	for to, wanted := range c.sigs {
		pass(s, to, wanted)
	}
}

func pass(s os.Signal, to chan<- os.Signal, wanted []os.Signal) {
	if slices.Contains(wanted, s) {
		select {
		case to <- s:
		default:
		}
	}
}

// hangUp tells everybody who asked for any signal that the client has gone.
func (c *Call) hangUp() {
	c.sigMu.Lock()
	defer c.sigMu.Unlock()
	c.hung = true
	for to := range c.sigs {
		hangUp(to)
	}
}

func hangUp(to chan<- os.Signal) {
	select {
	case to <- syscall.SIGHUP:
	default:
	}
}

// Notify relays the client's signals until stop is called, and SIGHUP when the
// client has gone, which it cannot catch itself.
func (c *Call) Notify(to chan<- os.Signal, sigs ...os.Signal) (stop func()) {
	c.sigMu.Lock()
	defer c.sigMu.Unlock()
	if c.sigs == nil {
		c.sigs = map[chan<- os.Signal][]os.Signal{}
	}
	c.sigs[to] = sigs
	for _, s := range c.waiting {
		pass(s, to, sigs)
	}
	c.waiting = nil
	if c.hung {
		hangUp(to)
	}
	return func() {
		c.sigMu.Lock()
		defer c.sigMu.Unlock()
		delete(c.sigs, to)
	}
}

// Begin waits until the session may be started and says that it is about to be.
// With an error, nothing may be started.
func (c *Call) Begin(ctx context.Context) error {
	select {
	case <-c.goOn:
	case <-c.gone:
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	err := c.send(quick.Begin, nil)
	early := c.early
	c.early = nil
	c.begun.Store(err == nil)
	c.mu.Unlock()
	if err == nil && len(early) > 0 {
		c.Writer(quick.Notice).Write(early)
	}
	return err
}

// Begun reports whether Begin has succeeded.
func (c *Call) Begun() bool { return c.begun.Load() }

// Jump says at which offset the session's next output is.
func (c *Call) Jump(to int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send(quick.Jump, binary.BigEndian.AppendUint64(nil, uint64(to)))
}

// send sends one frame. The caller holds c.mu.
func (c *Call) send(kind byte, p []byte) error {
	b, err := quick.AppendFrame(make([]byte, 0, 5+len(p)), kind, p)
	if err != nil {
		return err
	}
	c.conn.SetWriteDeadline(time.Now().Add(sendTime))
	_, err = c.conn.Write(b)
	return err
}

// Writer returns a writer to one of the client's streams: quick.Stdout,
// quick.Stderr or quick.Notice. A write is over when the client's is, with the
// same error. Before Begin only notices are taken, and written once it succeeds:
// without it, the client will find out the same again.
func (c *Call) Writer(kind byte) *Writer { return &Writer{c, kind} }

// Writer writes to a stream of the client's.
type Writer struct {
	call *Call
	kind byte
}

func (w *Writer) Write(p []byte) (n int, err error) {
	c := w.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun.Load() {
		if w.kind == quick.Notice && len(c.early)+len(p) <= maxEarly {
			c.early = append(c.early, p...)
			return len(p), nil
		}
		return 0, ErrDeclined
	}
	for n < len(p) {
		piece := p[n:min(len(p), n+quick.MaxFrame)]
		if c.send(w.kind, piece) != nil {
			return n, net.ErrClosed // EPIPE is for what the client could not write
		}
		select {
		case no := <-c.acks:
			if no != 0 {
				return n, no
			}
		case <-c.gone:
			return n, net.ErrClosed
		}
		n += len(piece)
	}
	return n, nil
}
