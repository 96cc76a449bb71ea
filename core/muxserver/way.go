package muxserver

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/reach"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// dialTimeout bounds a whole dial: every hop, and a person who touches a key.
const dialTimeout = 3 * time.Minute

// way is one connection, over as many dials as it takes.
type way struct {
	server *Server
	key    string
	host   string // as a person wrote it

	mu      sync.Mutex
	route   *sshconfig.Chain // nil until a client has given it
	conn    *sshconn.Conn
	dead    <-chan struct{}
	trust   string // Trusted's mark of conn
	attempt *attempt
	said    *speech   // of conn, of which nobody has heard what came after its dial
	failed  error     // why it is down, for the status
	since   time.Time // of the state
	used    time.Time
	clients int
	busy    int // what goes on over it besides
	agents  map[agentKey]*agent
}

// agentKey tells apart the agents that one connection leads to.
type agentKey struct{ plane, machine, data, runtime string }

// attempt is one dial and those who wait for it.
type attempt struct {
	done    chan struct{}
	conn    *sshconn.Conn
	err     error
	waiting int
	cancel  context.CancelFunc
	dropped string // why it was ended although somebody waits
	said    *speech
}

// way finds or makes the way of a hello.
func (s *Server) way(h mux.Hello) (*way, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.ways[h.Key]
	if w == nil {
		if len(s.ways) >= maxWays {
			return nil, fault.New(fault.Refused, "mux_full", "%d connections are open, which is the most that are shared", maxWays).WithHint("--no-mux goes without; fleet mux stop ends them")
		}
		now := time.Now()
		w = &way{server: s, key: h.Key, host: h.Host, since: now, used: now, agents: map[agentKey]*agent{}}
		s.ways[h.Key] = w
	}
	w.mu.Lock()
	w.clients++
	w.used = time.Now()
	w.mu.Unlock()
	return w, nil
}

// leave is the end of a client's use of the way.
func (w *way) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clients--
	w.used = time.Now()
}

// live returns the connection if it is up.
func (w *way) live() *sshconn.Conn {
	if w.conn == nil {
		return nil
	}
	select {
	case <-w.dead:
		return nil
	default:
		return w.conn
	}
}

// up returns a live connection, dialling if there is none.
func (s *Server) up(ctx context.Context, w *way, a *asker) (*sshconn.Conn, error) {
	w.mu.Lock()
	if conn := w.live(); conn != nil {
		if mark, ok := s.trusted(conn, w.route, w.trust); ok {
			w.trust = mark
			w.mu.Unlock()
			return conn, nil
		}
		a.note("what is pinned for %s has changed; closing the connection", conn.Config)
	}
	w.discard()
	if a.own != nil && !a.own.MayDial() {
		w.mu.Unlock()
		return nil, errDown
	}
	if w.route == nil {
		w.mu.Unlock()
		route, err := a.route()
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		if w.route == nil {
			w.route = route
		}
	}
	t := w.attempt
	if t == nil {
		t = s.dial(w, a)
	}
	t.waiting++
	w.mu.Unlock()
	ctx, present := a.watch(ctx)
	err := a.await(ctx, t)
	present()
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.waiting--; t.waiting == 0 {
		t.cancel()
		if w.attempt == t {
			w.attempt = nil // it ends for nobody; whoever comes next is not to hear of that
		}
	}
	return t.conn, err
}

func (s *Server) trusted(conn *sshconn.Conn, route *sshconfig.Chain, seen string) (string, bool) {
	if s.Trusted == nil {
		return "", true
	}
	return s.Trusted(conn, route, seen)
}

// dial starts an attempt. The caller holds w.mu.
func (s *Server) dial(w *way, a *asker) *attempt {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	t := &attempt{done: make(chan struct{}), cancel: cancel, said: newSpeech()}
	if w.said != nil {
		t.said.Write(w.said.unheard()) // the last words of the connection that is replaced
		w.said = nil
	}
	w.attempt, w.since = t, time.Now()
	route := w.route
	s.wg.Go(func() { // ends when its dial does, which the last waiter's leaving cancels
		defer close(t.done)
		conn, err := s.Dial(ctx, route, a.note, t.said)
		if s.Outcome != nil {
			s.Outcome(a.hello, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		current := w.attempt == t
		if current {
			w.attempt, w.failed, w.since = nil, err, time.Now()
		}
		switch {
		case err != nil:
			t.err = err
		case !current:
			t.err = context.Canceled
			s.wg.Go(func() { conn.Close() })
		}
		if t.dropped != "" && t.err != nil {
			t.err = fault.New(fault.Unreachable, "mux", "the connection is not made: %s", t.dropped)
		}
		if t.err != nil {
			if current && errors.Is(err, context.Canceled) {
				w.failed = nil // nobody's failure to share
			}
			return
		}
		t.said.settle()
		t.conn, w.conn, w.dead, w.said = conn, conn, conn.Done(), t.said
		w.trust, _ = s.trusted(conn, route, "")
		w.agents = map[agentKey]*agent{}
	})
	return t
}

// discard closes what is left of a connection. The caller holds w.mu. The
// connection comes first: to close a stream of one whose host is gone takes as
// long as any other write to it.
func (w *way) discard() {
	conn, agents := w.conn, w.agents
	if conn == nil && len(agents) == 0 {
		return
	}
	if conn != nil {
		w.conn, w.dead, w.since = nil, nil, time.Now()
	}
	w.agents = map[agentKey]*agent{}
	w.server.wg.Go(func() {
		if conn != nil {
			conn.Close() // waits for the end of what the connection goes through
		}
		for _, g := range agents {
			g.end()
		}
	})
}

// drop closes the connection; why is shown in the status.
func (w *way) drop(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.attempt != nil {
		w.attempt.dropped = why
		w.attempt.cancel()
		w.attempt = nil
	}
	w.discard()
	if why != "" {
		w.failed = errors.New(why)
	}
}

// agent finds or makes an agent behind a live connection.
func (s *Server) agent(w *way, conn *sshconn.Conn, h mux.Hello, note func(string, ...any)) *agent {
	k := agentKey{h.Plane, h.Machine, h.DataDir, h.Runtime}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.agents[k]
	if g == nil || g.conn != conn {
		g = &agent{server: s, conn: conn, machine: h.Machine, way: w, hello: h,
			reach: reach.New(conn, place.Dirs{Data: h.DataDir, Runtime: h.Runtime}, note)}
		w.agents[k] = g
	}
	return g
}

// forget closes the connections that were used for a plane.
func (s *Server) forget(plane string) {
	s.mu.Lock()
	ways := s.list()
	s.mu.Unlock()
	for _, w := range ways {
		w.mu.Lock()
		used := false
		for k := range w.agents {
			used = used || k.plane == plane
		}
		w.mu.Unlock()
		if used {
			w.drop("the session at the plane ended")
		}
	}
}

// list returns the ways in the order of their hosts. The caller holds s.mu.
func (s *Server) list() []*way {
	out := make([]*way, 0, len(s.ways))
	for _, w := range s.ways {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *way) int {
		return cmp.Or(strings.Compare(a.host, b.host), strings.Compare(a.key, b.key))
	})
	return out
}

// status says what is open.
func (s *Server) status() *wire.Mux {
	s.mu.Lock()
	ways := s.list()
	s.mu.Unlock()
	m := s.Config.Status
	m.Schema, m.Running, m.Connections = wire.SchemaMux, true, []wire.MuxConnection{}
	for _, w := range ways {
		m.Connections = append(m.Connections, w.status())
	}
	return &m
}

func (w *way) status() wire.MuxConnection {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := wire.MuxConnection{Host: w.host, State: wire.MuxDown, Since: wire.Time{Time: w.since.UTC()}, Clients: w.clients, Machines: []string{}}
	if w.route != nil {
		c.Destination = w.route.Target.String()
	}
	switch {
	case w.attempt != nil:
		c.State = wire.MuxReconnecting
	case w.live() != nil:
		c.State = wire.MuxConnected
	case w.failed != nil:
		c.Error = fault.Of(w.failed).Msg
	}
	for k, g := range w.agents {
		c.Machines = append(c.Machines, k.machine)
		g.mu.Lock()
		if g.update != nil {
			c.Updates = append(c.Updates, *g.update)
		}
		g.mu.Unlock()
	}
	slices.SortFunc(c.Updates, func(a, b wire.MuxUpdate) int { return strings.Compare(a.Machine, b.Machine) })
	slices.Sort(c.Machines)
	c.Machines = slices.Compact(c.Machines)
	return c
}
