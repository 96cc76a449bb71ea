package tree

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// stallTimeout is how long the other side may be silent, or take nothing.
	stallTimeout = 60 * time.Second
	// beat is how often a side that has nothing to say says so.
	beat = 15 * time.Second
	// laneBuffer is how much may wait to be sent in one lane, in bytes.
	laneBuffer = 1 << 20
	// gathered is how much of what can wait is sent at a time, in bytes.
	gathered = 32 << 10
	// MaxLanes bounds the connections of one copy.
	MaxLanes = 16
)

// lane is one connection of a copy. What is written to it is taken at once,
// while there is room, and sent by a goroutine of its own, so that reading a
// disk and sending go on at a time. Its methods may be used from several
// goroutines.
type lane struct {
	conn net.Conn
	*Reader
	in *bufio.Reader // under it

	mu    sync.Mutex
	moved *sync.Cond
	buf   []byte
	held  bool // what is in buf waits for more
	spare []byte
	ended bool
	err   error
	wrote bool // since the last beat

	wg   sync.WaitGroup
	stop func() bool
	quit chan struct{}
}

// newLane begins to send. The context's end closes the connection.
func newLane(ctx context.Context, conn net.Conn) *lane {
	in := bufio.NewReaderSize(patient{conn}, 64<<10)
	l := &lane{conn: conn, Reader: NewReader(in), in: in, quit: make(chan struct{})}
	l.moved = sync.NewCond(&l.mu)
	l.stop = context.AfterFunc(ctx, func() { l.fail(context.Cause(ctx)) })
	l.wg.Go(l.send)
	l.wg.Go(l.pulse)
	return l
}

// patient gives each read its time.
type patient struct{ net.Conn }

func (p patient) Read(b []byte) (int, error) {
	p.SetReadDeadline(time.Now().Add(stallTimeout))
	return p.Conn.Read(b)
}

// put appends a frame, and waits while too much is on its way.
func (l *lane) put(frame func([]byte) []byte) error { return l.append(frame, 0) }

// gather is put of one of many small frames. It is sent with what follows, with
// put or flush, or once there is enough: what is sent by itself costs either
// side as much as thirty times as many bytes do.
func (l *lane) gather(frame func([]byte) []byte) error { return l.append(frame, gathered) }

// flush sends what was gathered.
func (l *lane) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		l.held = false
		l.moved.Broadcast()
	}
}

// append appends a frame, and has it sent if there is as much.
func (l *lane) append(frame func([]byte) []byte, enough int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.buf) >= laneBuffer && l.err == nil && !l.ended {
		l.moved.Wait()
	}
	if l.err != nil {
		return l.err
	}
	if l.ended {
		return io.ErrClosedPipe
	}
	l.buf = frame(l.buf)
	l.wrote = true
	if l.held = len(l.buf) < enough; !l.held {
		l.moved.Broadcast()
	}
	return nil
}

// waiting is how much is to be sent yet.
func (l *lane) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buf)
}

func (l *lane) send() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for (len(l.buf) == 0 || l.held) && !l.ended && l.err == nil {
			l.moved.Wait()
		}
		if l.err != nil || len(l.buf) == 0 {
			return
		}
		out := l.buf
		l.buf, l.spare = l.spare[:0], nil
		l.moved.Broadcast()
		l.mu.Unlock()
		l.conn.SetWriteDeadline(time.Now().Add(2 * stallTimeout))
		_, err := l.conn.Write(out)
		l.mu.Lock()
		l.spare = out
		if err != nil && l.err == nil {
			l.err = err
			l.moved.Broadcast()
		}
	}
}

func (l *lane) pulse() {
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-l.quit:
			return
		case <-t.C:
		}
		l.mu.Lock()
		if !l.wrote && len(l.buf) == 0 && !l.ended && l.err == nil {
			l.buf = AppendRaw(l.buf, Noop, nil)
			l.moved.Broadcast()
		}
		l.wrote = false
		l.mu.Unlock()
	}
}

// fail ends the lane at once.
func (l *lane) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.moved.Broadcast()
	l.mu.Unlock()
	l.conn.Close()
}

// close ends the lane once what was put has been sent, and waits for that.
func (l *lane) close() {
	l.mu.Lock()
	l.ended = true
	l.moved.Broadcast()
	l.mu.Unlock()
	close(l.quit)
	l.wg.Wait()
	l.stop()
	l.conn.Close()
}
