package muxserver

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
)

// Own is the server as a client in its own process sees it.
type Own struct {
	Server *Server
	Stderr io.Writer // takes what programs on the way to a host write on theirs
	// MayDial reports whether a connection may be made. Otherwise only one that
	// is there is used.
	MayDial func() bool
}

// errDown says that there is no connection.
var errDown = errors.New("there is no connection")

// Do is what a client's is. The route is the one that the hello's key is of. The
// connection of OpStream counts as a client until it is closed.
func (o *Own) Do(ctx context.Context, h mux.Hello, route mux.Route) (net.Conn, *mux.Answer, error) {
	if h.Op != mux.OpStream && h.Op != mux.OpToken {
		return nil, nil, fault.Usagef("unknown request %q", h.Op)
	}
	s := o.Server
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, nil, fault.New(fault.Unreachable, "mux", "fleet-host ends")
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	w, err := s.way(h)
	if err != nil {
		return nil, nil, err
	}
	s.enter(1)
	leave := sync.OnceFunc(func() { w.leave(); s.enter(-1) })
	a := &asker{server: s, own: o, given: route, hello: h}
	if h.Op == mux.OpToken {
		defer leave()
		g, err := a.open(ctx, w)
		if err != nil {
			return nil, nil, err
		}
		tok, warning, err := g.tokenOf(ctx, h.Renew)
		return nil, &mux.Answer{Token: tok.Reveal(), Warning: warning}, err
	}
	far, tok, warning, err := a.reachAgent(ctx, w)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return &ownStream{far, leave}, &mux.Answer{Token: tok.Reveal(), Warning: warning}, nil
}

// ownStream is a stream of this process's.
type ownStream struct {
	net.Conn
	leave func()
}

// CloseWrite passes a half-close on.
func (o *ownStream) CloseWrite() error { return closeWrite(o.Conn) }

func (o *ownStream) Close() error {
	defer o.leave()
	return o.Conn.Close()
}
