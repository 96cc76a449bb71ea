package tree

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"fleet.example/fleet/core/wire"
)

const (
	// maxDirs bounds the directories that a sender keeps open at a time.
	maxDirs = 4096
	// maxFiles bounds the large files that it keeps open.
	maxFiles = 64
	// ackEvery is how often it hears how far the copy is.
	ackEvery = 100 * time.Millisecond
	// lastWords is how long a sender has to hear why a copy was ended.
	lastWords = 10 * time.Second
)

// ReceiveOptions say how a copy is received.
type ReceiveOptions struct {
	Sum       Sum  // the sender's is the same
	Recursive bool // directories and symbolic links are taken, too
	// Again says that an attempt of this copy went before: what is there with
	// its size and time is left.
	Again bool
	// Trouble is told what is not copied, and Progress how far the copy is; both
	// from several goroutines.
	Trouble  func(Problem)
	Progress func(files, bytes int64)
	// Wide is told once when a file comes for which lanes are worth while.
	Wide func()
}

// Receiver receives one copy.
type Receiver struct {
	o    ReceiveOptions
	dst  *Destination
	ctx  context.Context
	end  context.CancelCauseFunc
	main *lane
	wg   sync.WaitGroup // of further lanes and of writers

	mu       sync.Mutex
	settled  *sync.Cond
	lanes    []*lane
	dirs     map[uint32]*inDir
	files    map[uint32]*inFile
	lastDir  uint32
	lastFile uint32
	began    bool // the one entry of directory 0 came
	wide     bool
	over     bool
	fatal    error
	result   Result
	bytes    int64 // written so far
	work     chan []smallJob
	batch    []smallJob    // what is to be given to it
	pending  int           // small files and directories that are not settled yet
	blocks   chan blockJob // of the main lane
	frames   chan []byte   // buffers for these
	writing  int           // blocks that are being written, of all lanes
	acked    time.Time
}

// NewReceiver receives what the other end of the connection sends. The context's
// end ends the copy.
func NewReceiver(ctx context.Context, conn net.Conn, dst *Destination, o ReceiveOptions) *Receiver {
	ctx, end := context.WithCancelCause(ctx)
	r := &Receiver{o: o, dst: dst, ctx: ctx, end: end, main: newLane(ctx, conn), dirs: map[uint32]*inDir{}, files: map[uint32]*inFile{}}
	r.settled = sync.NewCond(&r.mu)
	r.dirs[0] = &inDir{fd: dst.dir, path: dst.path, kept: true}
	return r
}

// AddLane takes blocks from a further connection.
func (r *Receiver) AddLane(conn net.Conn) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.fatal != nil || r.ctx.Err() != nil || len(r.lanes) >= MaxLanes {
		return errors.New("the copy takes no further connection")
	}
	l := newLane(r.ctx, conn)
	r.lanes = append(r.lanes, l)
	r.wg.Go(func() {
		for {
			t, p, err := l.Next()
			if err == nil && t != Noop {
				if t != Block {
					err = malformed("a frame %q in a lane", t)
				} else {
					err = r.block(p)
				}
			}
			if err != nil {
				r.lost(err)
				return
			}
		}
	})
	return nil
}

// lost ends the copy for what a lane met; the end of one whose copy is over is
// no loss.
func (r *Receiver) lost(err error) {
	r.mu.Lock()
	over := r.over && len(r.files) == 0
	r.mu.Unlock()
	if over {
		return
	}
	if told := new(Error); errors.As(err, &told) || errors.Is(err, ErrMalformed) {
		r.giveUp(err)
		return
	}
	r.end(err)
}

// giveUp ends the copy and tells the sender why. What it still sends is not
// looked at.
func (r *Receiver) giveUp(err error) {
	r.mu.Lock()
	if r.fatal != nil {
		r.mu.Unlock()
		return
	}
	r.fatal = err
	r.settled.Broadcast()
	result := r.result
	r.mu.Unlock()
	e := told(err, r.dst.path)
	if errors.Is(err, ErrMalformed) {
		e = refuse(wire.CodeBadRequest, "%v", err)
	}
	result.Error = &wire.ErrorDetail{Code: e.Code, Message: e.Msg, Hint: e.Hint}
	time.AfterFunc(lastWords, func() { r.end(err) })
	r.main.put(func(b []byte) []byte { return appendJSON(b, Done, result) })
}

// Run receives until the copy is over. It closes the connections.
func (r *Receiver) Run() (Result, error) {
	err := r.receive()
	r.placeBatch()
	if r.work != nil {
		close(r.work)
	}
	if r.blocks != nil {
		close(r.blocks)
	}
	r.mu.Lock()
	if r.fatal != nil {
		err = r.fatal
	} else if err != nil && r.ctx.Err() != nil {
		err = context.Cause(r.ctx)
	}
	lanes := r.lanes
	r.over = true
	r.mu.Unlock()
	if err == nil {
		r.main.put(func(b []byte) []byte { return appendJSON(b, Done, r.result) })
	} else if r.fatal == nil {
		r.end(err)
	}
	r.main.close()
	r.end(io.ErrClosedPipe)
	r.wg.Wait()
	for _, l := range lanes {
		l.close()
	}
	r.tidy()
	return r.result, err
}

// tidy lets go of what an end in the middle left.
func (r *Receiver) tidy() {
	for _, f := range r.files {
		f.leave()
	}
	for id, d := range r.dirs {
		if id != 0 && d.fd != r.dst.dir && d.fd != nil {
			d.fd.Close()
		}
	}
}

func (r *Receiver) receive() error {
	for {
		if r.main.in.Buffered() < headerLen { // what comes next may take its time
			r.placeBatch()
		}
		t, p, err := r.main.Next()
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		r.mu.Lock()
		ended := r.fatal != nil
		r.mu.Unlock()
		if ended {
			continue
		}
		if t == Over {
			r.placeBatch()
			return r.finish()
		}
		if err := r.handle(t, p); err != nil {
			if told := new(Error); !errors.As(err, &told) && !errors.Is(err, ErrMalformed) {
				return err
			}
			r.giveUp(err)
		}
	}
}

// finish waits for the blocks that come in lanes.
func (r *Receiver) finish() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.began {
		return nil // its sender has said why
	}
	stop := context.AfterFunc(r.ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.settled.Broadcast()
	})
	defer stop()
	for len(r.files) > 0 || r.pending > 0 {
		if r.fatal != nil || r.ctx.Err() != nil {
			return errors.Join(r.fatal, context.Cause(r.ctx))
		}
		if len(r.lanes) == 0 && r.writing == 0 && len(r.files) > 0 {
			return malformed("a file without all of its blocks")
		}
		r.settled.Wait()
	}
	if len(r.dirs) != 1 {
		return malformed("a directory without its end")
	}
	return nil
}

func (r *Receiver) handle(t Type, p []byte) error {
	switch t {
	case Small:
		return r.small(p)
	case Block:
		return r.later(p)
	case Dir:
		return r.dir(p)
	case DirUp:
		return r.dirUp(p)
	case Link:
		return r.link(p)
	case Large:
		return r.large(p)
	case Ask:
		return r.ask(p)
	case Keep, Hole:
		return r.span(t, p)
	case End, Drop:
		return r.ended(t, p)
	case Trouble:
		var problem Problem
		if err := json.Unmarshal(p, &problem); err != nil {
			return malformed("a problem that is no JSON")
		}
		r.trouble(problem)
		return nil
	case Noop:
		return nil
	}
	return malformed("an unknown frame %q", byte(t))
}

// trouble names what is not copied, to both sides' callers.
func (r *Receiver) trouble(p Problem) {
	if r.o.Trouble != nil {
		r.o.Trouble(p)
	}
}

// fail names an entry that this side could not make. A full disk ends the copy:
// all that follows would fail alike.
func (r *Receiver) fail(path string, err error) error {
	if isDiskFull(err) {
		return told(err, path)
	}
	p := problem(path, err)
	r.trouble(p)
	return r.main.put(func(b []byte) []byte { return appendJSON(b, Trouble, p) })
}

// ack tells both sides' callers how far the copy is.
func (r *Receiver) ack() error {
	r.mu.Lock()
	now := time.Now()
	if now.Sub(r.acked) < ackEvery {
		r.mu.Unlock()
		return nil
	}
	r.acked = now
	files, bytes := r.result.Files, r.bytes
	r.mu.Unlock()
	if r.o.Progress != nil {
		r.o.Progress(files, bytes)
	}
	return r.main.put(func(b []byte) []byte { return appendAck(b, files, bytes) })
}
