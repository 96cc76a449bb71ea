package shim

import (
	"os"
	"sync"
	"syscall"
	"time"

	"fleet.example/fleet/agentd/spool"
)

// lastLook bounds what is still taken of each output once it is let go of.
const lastLook = 1 << 20

// pumps copy a command's outputs into the spool.
//
// None of them is ended with output in its hands, nor with output that was
// there to be read: it goes on until it waits for more and none is there. How
// long a write into the spool takes says nothing about the command.
type pumps struct {
	outs  []*os.File
	spool sink
	ended chan struct{} // closed when all are

	mu      sync.Mutex
	waiting []time.Time // when each began to wait for output; zero while it has some
	over    []bool
	ending  bool
}

// sink is what output goes into: a spool.
type sink interface {
	Append(stream byte, data []byte) error
}

// pump begins to copy the command's output; ended is closed when there is no more.
func (c *command) pump(s sink) *pumps {
	p := &pumps{outs: c.outs, spool: s, ended: make(chan struct{}), waiting: make([]time.Time, len(c.outs)), over: make([]bool, len(c.outs))}
	var wg sync.WaitGroup
	for i := range c.outs {
		wg.Go(func() { p.run(i) })
	}
	go func() { // ends with the pumps, which the caller ends
		defer close(p.ended)
		wg.Wait()
	}()
	return p
}

func (p *pumps) run(i int) {
	buf := make([]byte, 32<<10)
	defer p.isOver(i)
	take := func(n int) bool { return n <= 0 || p.spool.Append(spool.Stdout+byte(i), buf[:n]) == nil }
	for p.wait(i) {
		n, err := p.outs[i].Read(buf)
		p.works(i)
		if !take(n) || err != nil && !os.IsTimeout(err) {
			return
		}
	}
	for got := 0; got < lastLook; {
		n := readNow(p.outs[i], buf)
		if n <= 0 || !take(n) {
			return
		}
		got += n
	}
}

// wait takes note that a pump begins to wait for output. It returns false once
// none is to be waited for.
func (p *pumps) wait(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ending {
		p.waiting[i] = time.Now()
	}
	return !p.ending
}

func (p *pumps) works(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[i] = time.Time{}
}

func (p *pumps) isOver(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over[i] = true
}

// silent reports whether all pumps that are not over have waited for output for
// so long.
func (p *pumps) silent(d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, since := range p.waiting {
		if !p.over[i] && (since.IsZero() || time.Since(since) < d) {
			return false
		}
	}
	return true
}

// end has the pumps take what is there, and no more.
func (p *pumps) end() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	for _, f := range p.outs {
		f.SetReadDeadline(time.Unix(1, 0))
	}
}

// readNow reads what is there without waiting; nothing is 0 or less.
func readNow(f *os.File, buf []byte) (n int) {
	f.SetReadDeadline(time.Time{})
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Read(func(fd uintptr) bool {
		for {
			if n, err = syscall.Read(int(fd), buf); err != syscall.EINTR {
				return true
			}
		}
	})
	return n
}
