package session

import (
	"context"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
)

// children are the shims that this process started and has to reap. Shims
// outlive what started them: a restart in place keeps them as children of a
// program that never heard of them, so it is told which they are (Children,
// Adopt); otherwise each would stay in the process table for as long as agentd
// runs. A number in the set is no other process's: it is taken until it is
// reaped.
type children struct {
	mu   sync.Mutex
	pids map[int]struct{}
	wake chan struct{} // something was added, which may have ended already
}

func (c *children) init() {
	if c.pids == nil {
		c.pids, c.wake = map[int]struct{}{}, make(chan struct{}, 1)
	}
}

func (c *children) add(pids ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.init()
	for _, p := range pids {
		if p > 1 {
			c.pids[p] = struct{}{}
		}
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// reap takes note of those that have ended.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.pids {
		var st syscall.WaitStatus
		if got, err := syscall.Wait4(p, &st, syscall.WNOHANG, nil); got == p || err != nil && err != syscall.EINTR {
			delete(c.pids, p)
		}
	}
}

// Reap reaps shims until ctx ends.
func (m *Manager) Reap(ctx context.Context) {
	c := &m.children
	c.mu.Lock()
	c.init()
	c.mu.Unlock()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	for {
		c.reap()
		select {
		case <-ctx.Done():
			return
		case <-ended:
		case <-c.wake:
		}
	}
}

// Children are the shims that were not reaped yet.
func (m *Manager) Children() []int {
	m.children.mu.Lock()
	defer m.children.mu.Unlock()
	return slices.Sorted(maps.Keys(m.children.pids))
}

// Adopt takes on the children of the program that this process was before.
func (m *Manager) Adopt(pids []int) { m.children.add(pids...) }
