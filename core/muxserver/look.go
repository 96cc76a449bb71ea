package muxserver

import (
	"context"
	"slices"
	"time"
)

const (
	// leap is by how much the wall clock may run ahead of the other one between
	// two looks before this machine counts as having slept.
	leap = 10 * time.Second
	// awake bounds how long a connection may take to show that it outlived a
	// sleep.
	awake = 10 * time.Second
)

// look attends to the connections: after a sleep, which timers do not see, it
// asks each for a sign of life; it closes those whose pins changed and those
// that nobody uses; and it ends a server that nobody uses, or that nobody finds.
func (s *Server) look(ctx context.Context) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	clocks := clocks{wall: func() time.Time { return time.Now().Round(0) }}
	clocks.slept()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		slept := clocks.slept()
		s.mu.Lock()
		ways := s.list()
		idle := s.Idle > 0 && s.clients == 0 && time.Since(s.lastUsed) > s.Idle
		s.mu.Unlock()
		idle = idle && !slices.ContainsFunc(ways, (*way).isBusy)
		if idle && s.retire() {
			s.stop()
			return
		}
		if s.Reachable != nil && !s.Reachable() {
			s.retire() // nobody comes any more; those who are served stay until they end
		}
		for _, w := range ways {
			s.attend(w, slept)
		}
	}
}

func (s *Server) attend(w *way, slept bool) {
	w.mu.Lock()
	conn, route, trust := w.live(), w.route, w.trust
	unused := s.Idle > 0 && w.clients == 0 && w.busy == 0 && w.attempt == nil && time.Since(w.used) > s.Idle
	for _, g := range w.agents {
		g.air()
	}
	w.mu.Unlock()
	if unused {
		s.mu.Lock()
		w.mu.Lock()
		unused = w.clients == 0 && w.busy == 0 // or one has come meanwhile, and keeps it
		if unused {
			delete(s.ways, w.key)
		}
		w.mu.Unlock()
		s.mu.Unlock()
		if unused {
			w.drop("")
		}
		return
	}
	if conn == nil {
		return
	}
	mark, ok := s.trusted(conn, route, trust)
	if !ok {
		w.drop("what is pinned for the host has changed")
		return
	}
	w.mu.Lock()
	if w.conn == conn {
		w.trust = mark
	}
	w.mu.Unlock()
	if slept {
		s.wg.Go(func() { conn.ProveAlive(awake) }) // closes the connection if there is no sign of life in time
	}
}

// clocks tell a sleep by two clocks that went apart: the wall clock goes on
// while the machine sleeps, the one that timers go by does not.
type clocks struct {
	wall       func() time.Time
	last, mono time.Time
}

// slept reports whether the machine slept since the last question.
func (c *clocks) slept() bool {
	wall, mono := c.wall(), time.Now()
	apart := wall.Sub(c.last) - mono.Sub(c.mono)
	first := c.last.IsZero()
	c.last, c.mono = wall, mono
	return !first && apart > leap
}
