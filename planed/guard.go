package planed

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// guard ends connections that stay in one state for too long: a handshake or
// first request that does not come, a request that is sent or an answer that is
// taken too slowly, a kept connection that asks for nothing. net/http's own
// time-outs would set four deadlines for every check, each a timer of the
// runtime, together about a twentieth of what a check costs. Here a change of
// state stores the number of the round that it happened in, and a round over all
// connections runs every few seconds, so that a limit is kept to within two of
// them, whatever the clocks do.
//
// net/http reports a connection as active when a request's headers have been
// read, so that slow headers fall under limits.idle, or under limits.first
// before the first request.
//
// It also bounds how many there are. When there is no room for another, those
// that are longest in their state are closed: whoever has just come is served,
// and a machine whose kept connection went opens another, while somebody who
// only holds connections loses them again. So neither the store nor the admin
// socket is left without descriptors.
//
// A write of an active connection that got through begins its time anew: a long
// list may take as long as its reader keeps up. Whoever has no session gets
// short answers only and gains nothing by it.
type guard struct {
	limits limits
	most   int // connections; 0: any number
	rounds atomic.Int64
	mu     sync.Mutex
	conns  map[*guarded]struct{}
}

// limits say how long a connection may stay in a state.
type limits struct {
	first  time.Duration // from accept to the end of the first request's headers, the handshake included
	active time.Duration // from there, and from each write, until the answer has been written
	idle   time.Duration // between an answer and the end of the next request's headers
}

const guardEvery = 5 * time.Second

func newGuard(l limits) *guard {
	return &guard{limits: l, conns: map[*guarded]struct{}{}}
}

// guarded is one connection and since when it is in its state.
type guarded struct {
	net.Conn
	g     *guard
	state atomic.Int32 // a http.ConnState
	since atomic.Int64 // the round it entered the state in
}

// listen has the guard look after what l accepts.
func (g *guard) listen(l net.Listener) net.Listener { return guardListener{l, g} }

type guardListener struct {
	net.Listener
	g *guard
}

func (l guardListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d := &guarded{Conn: c, g: l.g}
	d.enter(http.StateNew)
	l.g.mu.Lock()
	l.g.conns[d] = struct{}{}
	over := l.g.relieve(d)
	l.g.mu.Unlock()
	for _, c := range over {
		c.Close()
	}
	return d, nil
}

// relieve returns what is to be closed to make room again, some at once, since
// it looks at all there are. The caller holds g.mu.
func (g *guard) relieve(latest *guarded) []*guarded {
	if g.most == 0 || len(g.conns) <= g.most {
		return nil
	}
	all := make([]*guarded, 0, len(g.conns))
	for d := range g.conns {
		if d != latest {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b *guarded) int { return cmp.Compare(a.since.Load(), b.since.Load()) })
	over := all[:min(len(all), len(g.conns)-g.most+g.most/16)]
	for _, d := range over {
		delete(g.conns, d)
	}
	return over
}

// room is how many connections there may be: keep are kept, and as many again
// come and go; some descriptors are left to everything else.
func room(keep int64) int {
	most := 2*keep + 4096
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		most = min(most, int64(min(files.Cur, 1<<40))-spareFiles)
	}
	return int(max(most, 16))
}

// spareFiles are left to the store, backups, the audit sink and the sockets of
// the administrator and of metrics.
const spareFiles = 64

// Close may be called any number of times.
func (d *guarded) Close() error {
	d.g.mu.Lock()
	delete(d.g.conns, d)
	d.g.mu.Unlock()
	return d.Conn.Close()
}

// Write counts as a sign of life once the other side made room for it.
func (d *guarded) Write(b []byte) (int, error) {
	n, err := d.Conn.Write(b)
	if err == nil && d.state.Load() == int32(http.StateActive) {
		d.since.Store(d.g.rounds.Load())
	}
	return n, err
}

func (d *guarded) enter(st http.ConnState) {
	d.state.Store(int32(st))
	d.since.Store(d.g.rounds.Load())
}

// changed is told of every change of state, as http.Server.ConnState says.
func (g *guard) changed(c net.Conn, st http.ConnState) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if d, ok := c.(*guarded); ok {
		d.enter(st)
	}
}

// run looks after the connections until ctx ends.
func (g *guard) run(ctx context.Context) {
	t := time.NewTicker(guardEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			g.round()
		}
	}
}

// round closes what is over its limit.
func (g *guard) round() {
	n := g.rounds.Add(1)
	var over []*guarded
	g.mu.Lock()
	for d := range g.conns {
		// One round less is certain to have passed in whole.
		if time.Duration(n-d.since.Load()-1)*guardEvery >= g.limits.of(http.ConnState(d.state.Load())) {
			over = append(over, d)
		}
	}
	g.mu.Unlock()
	for _, d := range over {
		d.Close()
	}
}

func (l limits) of(st http.ConnState) time.Duration {
	switch st {
	case http.StateNew:
		return l.first
	case http.StateIdle:
		return l.idle
	default:
		return l.active
	}
}
