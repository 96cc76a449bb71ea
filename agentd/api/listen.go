package api

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"fleet.example/fleet/agentd/locate"
	"fleet.example/fleet/core/loopback"
	"fleet.example/fleet/core/peer"
	"fleet.example/fleet/core/place"
)

// maxSockPath is what sun_path holds on every system, without its final zero.
const maxSockPath = 103

// Listen makes a UNIX socket that only this account reaches: in a directory
// that is private, with mode 0600, and accepting peers of this account (and
// root) alone. What stands there is replaced: the caller holds the lock that
// says that no other agentd serves it. What the program before left of the
// socket is taken over instead, if its file is still there.
func Listen(path string, left Left) (*Listener, error) {
	defer left.Close() // of what is not taken over
	if len(path) > maxSockPath {
		return nil, fmt.Errorf("socket path %s is %d bytes long, at most %d work on every system", path, len(path), maxSockPath)
	}
	if err := locate.Prepare(filepath.Dir(path)); err != nil {
		return nil, err
	}
	st, err := os.Lstat(path)
	if err == nil && st.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("%s is there and is not a socket", path)
	}
	l := &Listener{own: func(c net.Conn) bool { u, ok := c.(*net.UnixConn); return ok && peer.Own(u) }}
	if kept, ok := left.listener().(*net.UnixListener); ok && err == nil {
		kept.SetUnlinkOnClose(true)
		return l.over(kept, left.conns()), nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	made, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	made.SetUnlinkOnClose(true)
	if err := os.Chmod(path, 0o600); err != nil {
		made.Close()
		return nil, err
	}
	return l.over(made, nil), nil
}

// ListenLoopback listens on the loopback interface. Whoever has an account on
// the machine, or a process in it, reaches it, so that the token is all that
// guards it.
func ListenLoopback(addr string, left Left) (*Listener, error) {
	defer left.Close()
	a, err := place.Loopback(addr)
	if err != nil {
		return nil, err
	}
	l := &Listener{strict: true}
	if kept, ok := left.listener().(*net.TCPListener); ok {
		if at, ok := kept.Addr().(*net.TCPAddr); ok && at.AddrPort().Addr().Unmap() == a.Addr() && (a.Port() == 0 || at.AddrPort().Port() == a.Port()) {
			return l.over(kept, left.conns()), nil
		}
		kept.Close()
	}
	made, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
	if err != nil {
		return nil, err
	}
	// What the system made of the address counts, not what was asked for.
	if at, ok := made.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		made.Close()
		return nil, fmt.Errorf("the system listens at %s, which is not a loopback address", made.Addr())
	}
	return l.over(made, nil), nil
}

// maxConns bounds the connections of one socket; more wait to be accepted.
const maxConns = 1024

// Listener accepts only peers of this account where it can tell, and not too
// many.
type Listener struct {
	socket
	own    func(net.Conn) bool // nil: it cannot be told
	strict bool                // its connections are guarded
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}

	mu     sync.Mutex
	left   []net.Conn // accepted by the program before
	passed *Left      // what the next program gets; nil until it is to get anything
	open   map[*slotConn]struct{}
}

type socket interface {
	net.Listener
	File() (*os.File, error)
}

func (l *Listener) over(s socket, left []net.Conn) *Listener {
	l.socket, l.left = s, left
	l.slots, l.closed, l.open = make(chan struct{}, maxConns), make(chan struct{}), map[*slotConn]struct{}{}
	return l
}

// Close ends Accept also while it waits for a place.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	l.mu.Lock()
	if l.passed == nil {
		for _, c := range l.left {
			c.Close()
		}
		l.left = nil
	}
	l.mu.Unlock()
	return l.socket.Close()
}

func (l *Listener) Accept() (net.Conn, error) {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.closed:
			return nil, net.ErrClosed
		}
		c := l.waiting()
		if c == nil {
			var err error
			if c, err = l.socket.Accept(); err != nil {
				<-l.slots
				return nil, err
			}
		}
		s, ok := c.(stream)
		if !ok || l.own != nil && !l.own(c) {
			c.Close()
			<-l.slots
			continue
		}
		out := &slotConn{stream: s, listener: l}
		l.mu.Lock()
		l.open[out] = struct{}{}
		l.mu.Unlock()
		if l.strict {
			return loopback.Guard(out), nil
		}
		return out, nil
	}
}

// waiting is a connection that was accepted before this program began.
func (l *Listener) waiting() net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.left) == 0 {
		return nil
	}
	c := l.left[0]
	l.left = l.left[1:]
	return c
}

// stream is what a connection of either kind of socket can do.
type stream interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	File() (*os.File, error)
}

// slotConn gives its place back once, when it is closed. Until something was
// read from it, it can be left to the next program.
type slotConn struct {
	stream
	listener *Listener
	once     sync.Once

	mu       sync.Mutex
	used     bool
	state    http.ConnState
	leaving  bool
	deadline time.Time
}

func (c *slotConn) Read(p []byte) (int, error) {
	n, err := c.stream.Read(p)
	if n > 0 {
		c.mu.Lock()
		if c.leaving && !c.used { // it was read just then, so this program answers it
			c.stream.SetReadDeadline(c.deadline)
		}
		c.used = true
		c.mu.Unlock()
	}
	return n, err
}

// leave ends whatever waits for the connection's first byte. With a deadline
// in the past nothing is read any more, so that what comes is the next
// program's.
func (c *slotConn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.used {
		c.leaving = true
		c.stream.SetReadDeadline(time.Unix(1, 0))
	}
}

func (c *slotConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline = t; c.leaving && !c.used {
		return nil
	}
	return c.stream.SetReadDeadline(t)
}

func (c *slotConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.stream.SetWriteDeadline(t)
}

func (c *slotConn) Close() error {
	c.once.Do(func() {
		c.mu.Lock()
		if c.leaving && !c.used {
			if f, err := c.stream.File(); err == nil {
				c.listener.pass(f)
			}
		}
		c.mu.Unlock()
		c.listener.mu.Lock()
		delete(c.listener.open, c)
		c.listener.mu.Unlock()
		<-c.listener.slots
	})
	return c.stream.Close()
}

// noteState keeps with a connection what its server does with it.
func noteState(conn net.Conn, state http.ConnState) {
	if guarded, ok := conn.(*loopback.Conn); ok {
		conn = guarded.Stream
	}
	if c, ok := conn.(*slotConn); ok {
		c.mu.Lock()
		c.state = state
		c.mu.Unlock()
	}
}

// busy reports whether a request is being read or answered. What is left to the
// next program is so until it is closed here: its first bytes may just have come.
func (c *slotConn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == http.StateNew || c.state == http.StateActive
}

// quiet waits until no request is being read or answered, for a while.
func (l *Listener) quiet(within time.Duration) {
	busy := func() bool { return slices.ContainsFunc(l.conns(), (*slotConn).busy) }
	for end := time.Now().Add(within); busy() && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
	}
}

// Left is what one program leaves of a socket to the next in the same process:
// the socket itself, in whose queue nobody is refused meanwhile, and the
// connections on which nothing has been read.
type Left []*os.File

// Close gives up what nobody takes over.
func (l Left) Close() {
	for i, f := range l {
		if f != nil {
			f.Close()
			l[i] = nil
		}
	}
}

func (l Left) listener() net.Listener {
	if len(l) == 0 || l[0] == nil {
		return nil
	}
	s, err := net.FileListener(l[0])
	l[0].Close()
	l[0] = nil
	if err != nil {
		return nil
	}
	return s
}

func (l Left) conns() (out []net.Conn) {
	for i := 1; i < len(l); i++ {
		if c, err := net.FileConn(l[i]); err == nil {
			out = append(out, c)
		}
		l[i].Close()
		l[i] = nil
	}
	return out
}

func (l *Listener) pass(f *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*l.passed = append(*l.passed, f)
}

// handOver stops accepting, and keeps the socket for the next program.
func (l *Listener) handOver() {
	f, err := l.File()
	if err != nil {
		l.Close()
		return
	}
	if u, ok := l.socket.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	l.mu.Lock()
	l.passed = &Left{f}
	l.mu.Unlock()
	l.Close()
}

// leave has what has asked for nothing yet answered by the next program. It is
// called when nothing is accepted any more.
func (l *Listener) leave() {
	l.mu.Lock()
	if l.passed == nil {
		l.mu.Unlock()
		return
	}
	for _, c := range l.left { // it was not even accepted
		if s, ok := c.(stream); ok {
			if f, err := s.File(); err == nil {
				*l.passed = append(*l.passed, f)
			}
		}
		c.Close()
	}
	l.left = nil
	l.mu.Unlock()
	for _, c := range l.conns() {
		c.leave()
	}
}

// conns are the connections that are open. A connection's lock is taken before
// the listener's, so none is asked anything under that.
func (l *Listener) conns() []*slotConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.open))
}

// Left is what was kept for the next program, once Serve has returned.
func (l *Listener) Left() Left {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.passed == nil {
		return nil
	}
	return *l.passed
}

// Numbers are the descriptors, as Inherited reads them.
func (l Left) Numbers() string {
	out := ""
	for i, f := range l {
		if i > 0 {
			out += ","
		}
		out += strconv.Itoa(int(f.Fd()))
	}
	return out
}
