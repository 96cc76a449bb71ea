package muxserver

import (
	"net"
	"os"
	"sync"
	"time"
)

// timed gives deadlines to a stream that has none, as those of x/crypto/ssh. A
// read or write that is under way at its deadline ends the stream, which is all
// that whoever sets one here wants of it.
type timed struct {
	net.Conn
	read, write limit
}

func newTimed(c net.Conn) *timed {
	t := &timed{Conn: c}
	t.read.end, t.write.end = t.over, t.over
	return t
}

func (t *timed) over() { t.Conn.Close() }

func (t *timed) Read(b []byte) (int, error) {
	return t.read.within(func() (int, error) { return t.Conn.Read(b) })
}

func (t *timed) Write(b []byte) (int, error) {
	return t.write.within(func() (int, error) { return t.Conn.Write(b) })
}

// CloseWrite passes a half-close on.
func (t *timed) CloseWrite() error { return closeWrite(t.Conn) }

func (t *timed) SetDeadline(at time.Time) error {
	t.read.set(at)
	t.write.set(at)
	return nil
}

func (t *timed) SetReadDeadline(at time.Time) error {
	t.read.set(at)
	return nil
}

func (t *timed) SetWriteDeadline(at time.Time) error {
	t.write.set(at)
	return nil
}

// Close closes the stream; its timers find nothing under way then.
func (t *timed) Close() error {
	t.read.set(time.Time{})
	t.write.set(time.Time{})
	return t.Conn.Close()
}

// limit is one deadline. A deadline is set with each read and is nearly never
// met, so the timer is not: it runs out, sees how much is left, and goes on.
type limit struct {
	end func()

	mu    sync.Mutex
	at    time.Time // zero: none
	busy  int       // calls under way
	over  bool
	timer *time.Timer
	due   time.Time // the timer's; zero: it is not running
}

func (l *limit) set(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = at
	l.arm()
}

// arm has the timer run out by the deadline of what is under way. The caller
// holds the lock.
func (l *limit) arm() {
	if l.at.IsZero() || l.busy == 0 || l.over || !l.due.IsZero() && !l.at.Before(l.due) {
		return
	}
	l.due = l.at
	if left := time.Until(l.at); l.timer == nil {
		l.timer = time.AfterFunc(left, l.ring)
	} else {
		l.timer.Reset(left)
	}
}

func (l *limit) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = time.Time{}
	if l.at.IsZero() || l.busy == 0 {
		return
	}
	if time.Now().Before(l.at) {
		l.arm()
		return
	}
	l.over = true
	go l.end() // may take as long as a write to a host that has gone
}

func (l *limit) within(do func() (int, error)) (int, error) {
	l.mu.Lock()
	if !l.at.IsZero() && !time.Now().Before(l.at) {
		l.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	}
	l.busy++
	l.arm()
	l.mu.Unlock()
	n, err := do()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	if l.over && err != nil {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}
