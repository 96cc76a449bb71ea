// Package wan is a TCP proxy that behaves like a bad network: it delays, caps bandwidth, stalls, resets after so many
// bytes, and loses exactly one answer. It stands in for netem, which not every kernel has, and needs no privileges.
//
// It knows nothing of what it carries, except that it can tell a TLS stream apart, so that the one answer it loses is
// an application's and not a handshake's.
package wan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Profile is a distance. The zero value is none.
type Profile struct {
	// Delay is added in each direction: a round trip costs twice as much.
	Delay time.Duration
	// UpBytes and DownBytes cap the bytes a second from client to server and back, for each connection. 0: no cap.
	UpBytes, DownBytes int
	// DialTimeout bounds the connection to the target. Default: 10 s.
	DialTimeout time.Duration
	// Settle is how long the server must be quiet before an answer that is swallowed counts as complete; then the
	// client's connection is reset. Default: 300 ms.
	Settle time.Duration
}

// Direction is one way through the proxy.
type Direction int

const (
	Up   Direction = iota // from client to server
	Down                  // from server to client
)

// Proxy forwards connections to one target. Its methods may be called concurrently.
type Proxy struct {
	listener net.Listener
	target   string
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu        sync.Mutex
	profile   Profile
	flow      chan struct{} // closed while bytes flow; open while stalled
	conns     map[*pair]bool
	resets    [2]int64 // bytes after which the next connections are reset; 0: never
	swallow   *Swallow
	refuse    bool
	forwarded [2]int64
}

// Listen starts a proxy on addr ("127.0.0.1:0" takes a free port) in front of the TCP address target. It ends when
// the context does or at Close.
func Listen(ctx context.Context, addr, target string, p Profile) (*Proxy, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	x := &Proxy{
		listener: listener, target: target, ctx: ctx, cancel: cancel,
		profile: p, flow: make(chan struct{}), conns: map[*pair]bool{},
	}
	close(x.flow)
	x.wg.Add(2)
	go func() {
		defer x.wg.Done()
		<-ctx.Done()
		listener.Close()
		x.Reset()
	}()
	go func() {
		defer x.wg.Done()
		x.accept()
	}()
	return x, nil
}

// Addr is the address the proxy listens on.
func (x *Proxy) Addr() string { return x.listener.Addr().String() }

// Close resets all connections, and returns when everything the proxy started has ended.
func (x *Proxy) Close() error {
	x.cancel()
	x.wg.Wait()
	return nil
}

// SetProfile changes the distance, of open connections too.
func (x *Proxy) SetProfile(p Profile) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.profile = p
}

// Stall holds all bytes in both directions, of new connections too, until Flow: the network is there and silent.
func (x *Proxy) Stall() {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.flow:
		x.flow = make(chan struct{})
	default:
	}
}

// Flow undoes Stall; what was held arrives.
func (x *Proxy) Flow() {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.flow:
	default:
		close(x.flow)
	}
}

// ResetAfter resets each connection, opened from now on, after exactly n bytes in the given direction. 0: never.
func (x *Proxy) ResetAfter(d Direction, n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resets[d] = n
}

// Refuse makes the proxy reset every new connection before a byte passes, until it is called with false.
func (x *Proxy) Refuse(on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refuse = on
}

// Reset resets all open connections.
func (x *Proxy) Reset() {
	x.mu.Lock()
	var all []*pair
	for c := range x.conns {
		all = append(all, c)
	}
	x.mu.Unlock()
	for _, c := range all {
		c.reset()
	}
}

// Forget is a NAT that lost its table: the connections that are open now carry nothing more, and nobody is told. New
// ones are not affected.
func (x *Proxy) Forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c := range x.conns {
		c.forget.Do(func() { close(c.forgotten) })
	}
}

// Open is the number of open connections.
func (x *Proxy) Open() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.conns)
}

// Forwarded is how many bytes were delivered in a direction, over all connections.
func (x *Proxy) Forwarded(d Direction) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.forwarded[d]
}

// SwallowAnswer loses the answer to the next request, whichever connection sends it: the request is delivered, all
// that the server sends on that connection afterwards is thrown away, and once the server is quiet the client is
// reset. On a TLS connection the request is the client's first application data after this call. Other connections,
// and later ones, are not touched.
func (x *Proxy) SwallowAnswer() *Swallow {
	s := &Swallow{done: make(chan struct{})}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.swallow = s
	return s
}

// Swallow is one answer that is lost.
type Swallow struct {
	done  chan struct{}
	mu    sync.Mutex
	bytes int64
}

// Done is closed once the answer was thrown away and the client reset.
func (s *Swallow) Done() <-chan struct{} { return s.done }

// Bytes is how many bytes of the server were thrown away so far.
func (s *Swallow) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

func (s *Swallow) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += int64(n)
}

func (x *Proxy) accept() {
	for {
		client, err := x.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-x.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
				continue
			}
		}
		x.wg.Add(1)
		go func() {
			defer x.wg.Done()
			x.serve(client.(*net.TCPConn))
		}()
	}
}

// serve carries one connection until both directions have ended.
func (x *Proxy) serve(client *net.TCPConn) {
	x.mu.Lock()
	p, refuse := x.profile, x.refuse
	c := &pair{proxy: x, client: client, limits: x.resets, done: make(chan struct{}), forgotten: make(chan struct{})}
	x.mu.Unlock()
	if refuse {
		c.reset()
		return
	}
	if p.DialTimeout == 0 {
		p.DialTimeout = 10 * time.Second
	}
	dialer := net.Dialer{Timeout: p.DialTimeout}
	server, err := dialer.DialContext(x.ctx, "tcp", x.target)
	if err != nil {
		c.reset()
		return
	}
	c.server = server.(*net.TCPConn)
	x.mu.Lock()
	x.conns[c] = true
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		delete(x.conns, c)
		x.mu.Unlock()
		c.close()
	}()
	if x.ctx.Err() != nil {
		return
	}
	var wg sync.WaitGroup
	for _, d := range []Direction{Up, Down} {
		queue := make(chan chunk, 1024)
		wg.Add(2)
		go func() {
			defer wg.Done()
			c.read(d, queue)
		}()
		go func() {
			defer wg.Done()
			c.write(d, queue)
		}()
	}
	wg.Wait()
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
