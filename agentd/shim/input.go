package shim

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"fleet.example/fleet/core/frame"
)

// maxWriters bounds how many clients' input a session remembers. One that has
// left, and of whose input the command has all, is forgotten for another once
// it has been away for longer than a client tries to come back.
const (
	maxWriters  = 512
	forgetAfter = abandonedAfterExit
)

// input hands what clients send to the command, one after the other, and
// remembers how far each writer came so that a writer that lost its
// connection neither loses nor repeats a byte.
type input struct {
	w   io.WriteCloser // nil: the command reads nothing
	tty bool

	mu      sync.Mutex
	wake    chan struct{}
	writers map[string]*writer
	queue   []chunk
	closed  bool
	done    chan struct{}
}

type writer struct {
	received int64
	taken    int64
	ended    bool      // its end is here as well
	conn     *conn     // who is told of what was taken; nil when nobody is there
	left     time.Time // when the last connection ended
}

type chunk struct {
	from *writer
	data []byte
	eof  bool
}

func newInput(w io.WriteCloser, tty bool) *input {
	return &input{w: w, tty: tty, wake: make(chan struct{}, 1), done: make(chan struct{}), writers: map[string]*writer{}}
}

var (
	errWriter  = errors.New("a writer's name has 1 to 32 characters")
	errWriters = fmt.Errorf("%d clients have sent input to this session; one that only reads can attach, and others in %v", maxWriters, forgetAfter)
)

// claim makes c the connection of the named writer and returns how much of
// its input is here already. The connection that was it before is closed.
func (in *input) claim(name string, c *conn) (*writer, int64, error) {
	if len(name) > 32 {
		return nil, 0, errWriter
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	w := in.writers[name]
	if w == nil {
		if len(in.writers) >= maxWriters && !in.forget() {
			return nil, 0, errWriters
		}
		w = &writer{}
		in.writers[name] = w
	}
	if w.conn != nil && w.conn != c {
		w.conn.nc.Close()
	}
	w.conn = c
	return w, w.received, nil
}

// forget makes room for one more writer. The caller holds the mutex.
func (in *input) forget() bool {
	oldest := ""
	for name, w := range in.writers {
		if w.conn == nil && w.taken == w.received && (oldest == "" || w.left.Before(in.writers[oldest].left)) {
			oldest = name
		}
	}
	if oldest == "" || time.Since(in.writers[oldest].left) < forgetAfter {
		return false
	}
	delete(in.writers, oldest)
	return true
}

// release takes note that a writer's connection has ended.
func (in *input) release(w *writer, c *conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if w.conn == c {
		w.conn, w.left = nil, time.Now()
	}
}

// offer takes a writer's bytes at offset. Bytes that are here already are skipped.
func (in *input) offer(w *writer, c *conn, offset int64, data []byte, eof bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if w.conn != c {
		return errors.New("this writer has another connection")
	}
	if offset > w.received {
		return fmt.Errorf("%w: input at %d, %d expected", frame.ErrMalformed, offset, w.received)
	}
	if skip := w.received - offset; skip >= int64(len(data)) {
		data = nil
	} else {
		data = data[skip:]
	}
	if w.received+int64(len(data))-w.taken > frame.Window {
		return fmt.Errorf("%w: more than %d bytes of input ahead", frame.ErrMalformed, frame.Window)
	}
	w.received += int64(len(data))
	if in.closed || in.w == nil {
		w.taken = w.received
		w.conn.acknowledge(w.taken)
		return nil
	}
	if len(data) > 0 {
		in.queue = append(in.queue, chunk{from: w, data: append([]byte(nil), data...)})
	}
	if eof && !w.ended { // what is sent again is typed once
		w.ended = true
		in.queue = append(in.queue, chunk{from: w, eof: true})
	}
	select {
	case in.wake <- struct{}{}:
	default:
	}
	return nil
}

// run writes to the command until close.
func (in *input) run() {
	for {
		in.mu.Lock()
		var next chunk
		if len(in.queue) > 0 {
			next, in.queue = in.queue[0], in.queue[1:]
		}
		in.mu.Unlock()
		if next.from == nil {
			select {
			case <-in.wake:
				continue
			case <-in.done:
				return
			}
		}
		if next.eof {
			if in.tty {
				in.w.Write([]byte{4}) // VEOF: what a person types to end input
				continue
			}
			in.close()
			return
		}
		_, err := in.w.Write(next.data)
		in.mu.Lock()
		next.from.taken += int64(len(next.data))
		next.from.conn.acknowledge(next.from.taken)
		in.mu.Unlock()
		if err != nil { // the command reads no more
			in.close()
			return
		}
	}
}

// close ends the command's input. What was not taken is dropped, and counts as
// taken, so that no client waits for it.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.closed = true
	close(in.done)
	in.queue = nil
	if in.w != nil && !in.tty {
		in.w.Close()
	}
	for _, w := range in.writers {
		w.taken = w.received
		w.conn.acknowledge(w.taken)
	}
}
