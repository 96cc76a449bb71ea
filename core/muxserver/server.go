// Package muxserver is the side of package mux that owns SSH connections.
//
// What it holds to:
//   - One connection per route (mux.KeyOf). It is dialled when the first
//     command needs it; those that come meanwhile wait for that dial and share
//     what comes of it, a failure too. A dial belongs to no client: it ends
//     when the last one that waits for it has gone.
//   - A connection that ended is dialled again for whoever asks next, so that
//     one dial brings back all commands that were attached over it.
//   - Before the first stream to a machine over a connection the three-way match
//     is made: the account that SSH authenticated, the pinned host key, and the
//     row that the plane gave the agent's credential (R5). It is made again when
//     a token is minted anew, and beside the work once it is a minute old.
//   - Tokens are in memory only and go with the connection (R31).
//   - A connection whose pins changed, or whose person logged out, is closed.
//   - Everything that waits has a deadline, everything that is kept a bound.
//
// It must not know how a host is dialled, what is pinned, nor where its socket
// stands: Config has what it is given of these.
package muxserver

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/peer"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// Config is what a server is made of.
type Config struct {
	// Dial connects to a destination whose host key is pinned. note takes what a
	// person sees under -v, output what programs on the way write on standard
	// error, which they always see.
	Dial func(ctx context.Context, route *sshconfig.Chain, note func(string, ...any), output io.Writer) (*sshconn.Conn, error)
	// Trusted reports whether everything that a route's pins said when it was
	// dialled still stands. It returns a mark of what it saw; the same mark means
	// that nothing changed since.
	Trusted func(conn *sshconn.Conn, route *sshconfig.Chain, seen string) (mark string, ok bool)
	// Upkeep attends to a machine once it was matched over a new connection, beside
	// whatever that is used for. It may be nil.
	Upkeep func(ctx context.Context, m Upkept)
	// Outcome is told how a dial ended. It may be nil.
	Outcome func(h mux.Hello, err error)

	Build  mux.Build
	Status wire.Mux // what the server says of itself
	// Idle is how long a connection that nobody uses stays, and then the server
	// itself. 0 means for ever.
	Idle time.Duration
	// Retire takes the server's socket away, so that no further client comes. It
	// is false if a client is about to come all the same. It may be nil.
	Retire func() bool
	// Reachable reports whether the server's socket still stands where clients
	// look for it. A server whose socket is gone, or another's, retires. It may
	// be nil.
	Reachable func() bool
}

const (
	// messageTimeout bounds how long one message may take, either way.
	messageTimeout = 10 * time.Second
	// acceptAgain is the time between two tries to accept a client when the
	// first failed.
	acceptAgain = 50 * time.Millisecond
	// maxClients bounds how many clients are served at once.
	maxClients = 1024
	// maxWays bounds how many connections there are.
	maxWays = 256
	// tickEvery is how often the server looks at its connections.
	tickEvery = 5 * time.Second
)

// Server answers clients. Make one with New.
type Server struct {
	Config

	mu       sync.Mutex
	ways     map[string]*way
	clients  int
	lastUsed time.Time
	copies   int // that this process makes
	retired  bool
	ended    bool // nothing is begun any more
	stop     context.CancelFunc
	deaf     func() error  // stops accepting
	quiet    chan struct{} // closed when a retired server's last client has gone
	wg       sync.WaitGroup
}

// New makes a server.
func New(c Config) *Server {
	return &Server{Config: c, ways: map[string]*way{}, lastUsed: time.Now(), quiet: make(chan struct{})}
}

// Serve answers clients until the context ends, the server has been idle, or a
// newer one takes its place; then it closes every connection and waits for what
// it started.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.stop = cancel
	s.deaf = sync.OnceValue(l.Close)
	stop := context.AfterFunc(ctx, func() { s.deaf() })
	defer stop()
	s.wg.Go(func() { s.look(ctx) })
	slots := make(chan struct{}, maxClients)
	var err error
	for {
		var c net.Conn
		if c, err = l.Accept(); err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) && s.pause(ctx) {
				continue // out of descriptors: those who are served go on, and the next may come in
			}
			break
		}
		if u, ok := c.(*net.UnixConn); ok && !peer.Own(u) {
			c.Close()
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		s.enter(1)
		s.wg.Go(func() {
			defer func() { c.Close(); s.enter(-1); <-slots }()
			end := context.AfterFunc(ctx, func() { c.Close() })
			defer end()
			s.client(ctx, c)
		})
	}
	if s.isRetired() {
		// Its socket is gone; those that came in time are served to their end.
		select {
		case <-s.quiet:
		case <-ctx.Done():
		}
		err = nil
	}
	if ctx.Err() != nil {
		err = nil
	}
	cancel()
	s.mu.Lock()
	ways := s.ways
	s.ways, s.ended = map[string]*way{}, true
	s.mu.Unlock()
	for _, w := range ways {
		w.drop("")
	}
	s.end()
	return err
}

// endWait bounds how long connections may take to close: one to a host that has
// gone would keep a server that was told to end.
const endWait = 10 * time.Second

// end waits for what still runs; the process that ends next takes the rest along.
func (s *Server) end() {
	over := make(chan struct{})
	go func() { // ends with the process at the latest
		s.wg.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(endWait):
	}
}

// pause waits a moment, or less when ctx ends.
func (s *Server) pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(acceptAgain):
		return true
	}
}

func (s *Server) enter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients += n
	s.lastUsed = time.Now()
	if s.retired && s.clients == 0 {
		s.endQuiet()
	}
}

func (s *Server) endQuiet() {
	select {
	case <-s.quiet:
	default:
		close(s.quiet)
	}
}

func (s *Server) isRetired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retired
}

// retire takes the socket away and stops accepting. Clients that are served
// stay until they end by themselves. One that has connected and was not heard
// yet is closed; it knows that nothing was done and asks another server.
func (s *Server) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return true
	}
	if s.Retire == nil || !s.Retire() {
		return false
	}
	s.retired = true
	s.deaf()
	if s.clients == 0 {
		s.endQuiet()
	}
	return true
}

// client serves one client.
func (s *Server) client(ctx context.Context, c net.Conn) {
	c.SetDeadline(time.Now().Add(messageTimeout))
	var h mux.Hello
	if err := mux.ReadMessage(c, &h); err != nil {
		if errors.Is(err, mux.ErrMalformed) {
			mux.WriteMessage(c, mux.Answer{Error: mux.Exit(fault.Usagef("garbled hello"))})
		}
		return
	}
	c.SetDeadline(time.Time{})
	if h.Build.Supersedes(s.Build) && s.retire() {
		mux.WriteMessage(c, mux.Answer{Superseded: true})
		return
	}
	a := &asker{server: s, conn: c, hello: h}
	switch h.Op {
	case mux.OpStream:
		a.stream(ctx)
	case mux.OpCopy:
		a.copy(ctx)
	case mux.OpToken:
		a.token(ctx)
	case mux.OpControl:
		a.control(ctx)
	case mux.OpStatus:
		a.answer(mux.Answer{Mux: s.status()})
	case mux.OpForget:
		s.forget(h.Plane)
		a.answer(mux.Answer{})
	case mux.OpStop:
		s.retire()
		a.answer(mux.Answer{Mux: s.status()})
		s.stop()
	default:
		a.answer(mux.Answer{Error: mux.Exit(fault.Usagef("unknown request %q", h.Op))})
	}
}
