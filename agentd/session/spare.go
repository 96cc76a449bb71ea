package session

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// host is a shim that was started and waits for its configuration. When the
// pipe ends without one it goes away by itself, so that none outlives agentd.
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
	h.in.SetDeadline(deadline)
	_, err := h.in.Write(config)
	err = errors.Join(err, h.in.Close())
	if err != nil {
		h.ready.Close()
		return fmt.Errorf("cannot configure session host: %w", err)
	}
	return nil
}

func (h *host) close() {
	h.in.Close()
	h.ready.Close()
}

// spareFor is how long after a session's start a shim is kept ready for the
// next one: commands come in bursts, and starting a process is most of what a
// short one takes. An agent that rests keeps nothing running beside itself.
const spareFor = time.Minute

// spare is the shim that is kept ready, if any.
type spare struct {
	mu     sync.Mutex
	host   *host
	coming bool
	expiry *time.Timer
}

// take returns the shim that is ready, or nil.
func (s *spare) take() *host {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.host
	s.host = nil
	return h
}

// prepare has a shim ready for the next session.
func (m *Manager) prepare() {
	s := &m.spare
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry == nil {
		s.expiry = time.AfterFunc(spareFor, s.drop)
	} else {
		s.expiry.Reset(spareFor)
	}
	if s.host != nil || s.coming {
		return
	}
	s.coming = true
	m.background.Go(func() {
		h, err := m.launch()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.coming = false
		if err != nil {
			m.Log.Debug("no session host is ready", "error", err)
			return
		}
		s.host = h
	})
}

func (s *spare) drop() {
	if h := s.take(); h != nil {
		h.close()
	}
}
