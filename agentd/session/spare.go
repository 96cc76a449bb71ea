package session

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"fleet.example/fleet/agentd/shim"
)

// host is a shim as agentd holds it: the pipe that brings it sessions, one
// after the other, and the one on which it answers. When the first ends the
// shim finishes the session it has and goes away by itself, so that none
// without a session outlives agentd.
type host struct {
	in, ready *os.File
}

// launch starts a shim.
func (m *Manager) launch() (*host, error) {
	in, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ready, readyW, err := os.Pipe()
	if err != nil {
		in.Close()
		inW.Close()
		return nil, err
	}
	cmd := &exec.Cmd{Path: m.Shim, Args: []string{"agentd-shim"}, Env: []string{}, Dir: "/",
		Stdin: in, ExtraFiles: []*os.File{readyW}, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	err = cmd.Start()
	in.Close()
	readyW.Close()
	if err != nil {
		inW.Close()
		ready.Close()
		return nil, fmt.Errorf("cannot start session host: %w", err)
	}
	m.children.add(cmd.Process.Pid)
	cmd.Process.Release() // it outlives agentd by design; Reap takes note of its end
	return &host{inW, ready}, nil
}

// configure gives the shim its session. A shim that did not get the whole of it
// begins nothing.
func (h *host) configure(config []byte, deadline time.Time) error {
	h.in.SetWriteDeadline(deadline)
	if _, err := h.in.Write(append(config, '\n')); err != nil {
		return fmt.Errorf("cannot configure session host: %w", err)
	}
	return nil
}

// rest waits until the shim is done with its session and takes another one.
func (h *host) rest() bool {
	h.ready.SetReadDeadline(time.Time{})
	said := make([]byte, 1)
	n, err := h.ready.Read(said)
	return err == nil && n == 1 && said[0] == shim.Idle
}

func (h *host) close() error { return errors.Join(h.in.Close(), h.ready.Close()) }

// Commands come in bursts, and starting a process is most of what a short one
// takes. So a shim whose session has ended is kept for the next one for
// spareFor after the last start, and not more than maxSpares of them. An agent
// that rests keeps nothing running beside itself.
const (
	spareFor  = time.Minute
	maxSpares = 4
)

// spares are the shims that agentd holds: those that are free, and those that
// have a session, each with a goroutine that waits for its end.
type spares struct {
	mu     sync.Mutex
	free   []*host
	busy   map[*host]struct{}
	closed bool
	expiry *time.Timer
	wg     sync.WaitGroup
}

// take returns the shim that was used last, or nil.
func (s *spares) take() *host {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free) - 1
	if n < 0 {
		return nil
	}
	h := s.free[n]
	s.free = slices.Delete(s.free, n, n+1)
	return h
}

// lend says that the shim has a session, and waits in the background until it
// has none.
func (s *spares) lend(h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		h.close()
		return
	}
	if s.busy == nil {
		s.busy = map[*host]struct{}{}
	}
	s.busy[h] = struct{}{}
	s.delay()
	s.wg.Go(func() {
		ok := h.rest()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, h)
		if !ok || s.closed || len(s.free) >= maxSpares {
			h.close()
			return
		}
		s.free = append(s.free, h)
		s.delay()
	})
}

// delay has the free ones end later. The caller holds the mutex.
func (s *spares) delay() {
	if s.expiry == nil {
		s.expiry = time.AfterFunc(spareFor, s.drop)
	} else {
		s.expiry.Reset(spareFor)
	}
}

// drop ends those that are free.
func (s *spares) drop() {
	for h := s.take(); h != nil; h = s.take() {
		h.close()
	}
}

// close lets go of all of them: those with a session finish it.
func (s *spares) close() {
	s.mu.Lock()
	s.closed = true
	if s.expiry != nil {
		s.expiry.Stop()
	}
	for h := range s.busy {
		h.close()
	}
	s.mu.Unlock()
	s.drop()
	s.wg.Wait()
}
