package mux

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshconfig"
)

// Server is a fleet-host that listens, as its client sees it. Its methods may be
// used from several goroutines.
type Server struct {
	build  Build
	note   func(string)                            // nil: not verbose
	stderr io.Writer                               // nil: nobody hears what is said on the way
	again  func(context.Context) (net.Conn, error) // nil: there is no other

	mu     sync.Mutex
	socket string
	own    *private // nil: the server is shared
	ready  net.Conn // connected already, not used yet
}

// Shared reports whether other commands use the server too.
func (s *Server) Shared() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own == nil
}

func (s *Server) where() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.socket
}

// Close ends a private server and everything that goes through it. A shared
// one stays.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready != nil {
		s.ready.Close()
		s.ready = nil
	}
	if s.own != nil {
		return s.own.close()
	}
	return nil
}

func (s *Server) dial(ctx context.Context) (net.Conn, error) {
	s.mu.Lock()
	conn := s.ready
	s.ready = nil
	s.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	return connect(ctx, s.where())
}

func connect(ctx context.Context, socket string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", socket)
}

// Route gives the resolved way to a host, when the server asks for it.
type Route func() *sshconfig.Chain

// errGone says that the server ended before it took the request: nothing has
// been done, and another server may be asked.
var errGone = errors.New("fleet-host ended")

// Do sends a hello and returns the final answer, with the connection for
// OpStream and OpCopy. A refusal comes back as the fault that the server had. A shared
// server that has ended meanwhile, or that makes way for a newer one, is
// replaced, at most twice.
func (s *Server) Do(ctx context.Context, h Hello, route Route) (net.Conn, *Answer, error) {
	h.Build, h.Verbose, h.Hears = s.build, s.note != nil, s.stderr != nil
	conn, err := s.dial(ctx)
	for try := 0; ; try++ {
		var a *Answer
		if err == nil {
			a, err = s.ask(ctx, conn, h, route)
			if err == nil {
				return conn, a, nil
			}
			conn.Close()
			if !errors.Is(err, errGone) {
				return nil, nil, err
			}
		}
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if try > 1 || s.again == nil {
			return nil, nil, fault.New(fault.Unreachable, "mux", "cannot reach fleet-host: %w", err)
		}
		conn, err = s.again(ctx)
	}
}

// ask is one exchange. The context ends it at any point.
func (s *Server) ask(ctx context.Context, conn net.Conn, h Hello, route Route) (*Answer, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	a, err := s.exchange(conn, h, route)
	if !stop() {
		return nil, ctx.Err()
	}
	return a, err
}

func (s *Server) exchange(conn net.Conn, h Hello, route Route) (*Answer, error) {
	if WriteMessage(conn, h) != nil {
		return nil, errGone
	}
	for first := true; ; first = false {
		var a Answer
		err := ReadMessage(conn, &a)
		switch {
		case err != nil && first:
			return nil, errGone
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fault.New(fault.Unreachable, "mux", "fleet-host ended before it answered")
		case err != nil:
			return nil, fault.New(fault.Unreachable, "mux", "cannot understand fleet-host: %w", err)
		case a.Superseded:
			return nil, errGone
		case a.Note != "":
			if s.note != nil {
				s.note(a.Note)
			}
		case len(a.Said) > 0:
			if s.stderr != nil {
				s.stderr.Write(a.Said)
			}
		case a.Need:
			if route == nil {
				return nil, fault.New(fault.Failure, "mux", "fleet-host asks for what this command does not have")
			}
			if err := WriteMessage(conn, route()); err != nil {
				return nil, fault.New(fault.Unreachable, "mux", "fleet-host ended before it answered")
			}
		case a.Error != nil:
			e := a.Error
			return nil, &fault.Error{Code: e.Code, Exit: e.Exit, Msg: e.Message, Hint: e.Hint}
		default:
			return &a, nil
		}
	}
}

// Call is Do for what is answered at once, on a server that runs.
func (s *Server) Call(ctx context.Context, h Hello) (*Answer, error) {
	conn, a, err := s.Do(ctx, h, nil)
	if err != nil {
		return nil, err
	}
	return a, conn.Close()
}

// AskAsIs is Call that a newer fleet, too, makes of a server without having it
// give way. It is for a Server that is used for nothing else.
func (s *Server) AskAsIs(ctx context.Context, h Hello) (*Answer, error) {
	s.build, s.again = Build{}, nil
	return s.Call(ctx, h)
}
