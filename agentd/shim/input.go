package shim

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"fleet.example/fleet/core/frame"
)

// maxWriters bounds how many clients' input a session remembers.
const maxWriters = 64

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
	conn     *conn // who is told of what was taken
}

type chunk struct {
	from *writer
	data []byte
	eof  bool
}

func newInput(w io.WriteCloser, tty bool) *input {
	return &input{w: w, tty: tty, wake: make(chan struct{}, 1), done: make(chan struct{}), writers: map[string]*writer{}}
}

var errWriter = errors.New("a writer's name has 1 to 32 characters")

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
		if len(in.writers) >= maxWriters {
			return nil, 0, errors.New("too many clients have written to this session")
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
	if eof {
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
