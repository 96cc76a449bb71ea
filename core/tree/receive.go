package tree

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	wg   sync.WaitGroup // of further lanes

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
	work     chan smallJob
	pending  int // small files and directories that are not settled yet
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
	if r.work != nil {
		close(r.work)
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
		if len(r.lanes) == 0 && len(r.files) > 0 {
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
		return r.block(p)
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

// inDir is a directory that the sender fills.
type inDir struct {
	id    uint32
	fd    *os.File // nil: it could not be made, and nothing in it is
	path  string
	mode  uint32
	mtime int64
	kept  bool // it was there: mode and time stay
	left  int  // files of it that are not settled yet
	up    bool // no more will come
}

// parent finds a directory that is being filled, and what an entry of it is
// called here.
func (r *Receiver) parent(id uint32, name string) (*inDir, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.dirs[id]
	if d == nil || d.up {
		return nil, "", malformed("directory %d is not open", id)
	}
	if id != 0 {
		return d, name, nil
	}
	if r.began {
		return nil, "", malformed("more than one thing is copied")
	}
	r.began = true
	return d, r.dst.name, nil
}

// pathOf is an entry's, for words.
func pathOf(d *inDir, name string) string {
	if d.id == 0 {
		return d.path
	}
	return d.path + "/" + name
}

// notFile refuses to make a file or link where the caller named a directory.
func (r *Receiver) notFile(d *inDir) error {
	if d.id == 0 && (r.dst.name == "" || r.dst.dirOnly) {
		return refuse(wire.CodeNotADir, "%s: no such directory", r.dst.path)
	}
	return nil
}

func (r *Receiver) dir(p []byte) error {
	f, err := parseDir(p)
	if err != nil {
		return err
	}
	if !r.o.Recursive {
		return malformed("a directory comes where a file was asked for")
	}
	up, name, err := r.parent(f.parent, f.name)
	if err != nil {
		return err
	}
	d := &inDir{id: f.id, path: pathOf(up, name), mode: f.mode, mtime: f.mtime}
	var trouble error
	switch {
	case up.fd == nil:
	case f.parent == 0 && name == "":
		d.fd, d.kept = r.dst.dir, true
	default:
		d.fd, d.kept, trouble = r.makeDir(up.fd, name, f.mode)
	}
	r.mu.Lock()
	if f.id != r.lastDir+1 || len(r.dirs) >= maxDirs {
		r.mu.Unlock()
		if d.fd != nil && d.fd != r.dst.dir {
			d.fd.Close()
		}
		return malformed("directory %d comes after %d, %d are open", f.id, r.lastDir, len(r.dirs))
	}
	r.lastDir = f.id
	r.dirs[f.id] = d
	if d.fd != nil {
		r.result.Directories++
	}
	r.mu.Unlock()
	if trouble != nil {
		return r.fail(d.path, trouble)
	}
	return nil
}

// makeDir makes a directory, or opens the one that is there. Until it is filled
// its owner may write to it.
func (r *Receiver) makeDir(up *os.File, name string, mode uint32) (_ *os.File, kept bool, err error) {
	err = mkdirAt(up, name, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, false, err
	}
	made := err == nil
	fd, err := openDirAt(up, name)
	if err != nil {
		return nil, false, err
	}
	if made {
		if err := fd.Chmod(fileMode(mode | 0o700)); err != nil {
			fd.Close()
			return nil, false, err
		}
		return fd, false, nil
	}
	if r.o.Again { // an attempt before may have made it
		st, err := statFile(fd)
		if perm := permOf(st) & 0o777; err == nil && (perm == mode || perm == mode|0o700) {
			return fd, false, fd.Chmod(fileMode(mode | 0o700))
		}
	}
	return fd, true, nil
}

func (r *Receiver) dirUp(p []byte) error {
	id, err := parseID(p)
	if err != nil {
		return err
	}
	r.mu.Lock()
	d := r.dirs[id]
	if d == nil || d.up || id == 0 {
		r.mu.Unlock()
		return malformed("directory %d is not open", id)
	}
	d.up = true
	d.left++
	ready := r.leaves(d)
	r.mu.Unlock()
	if ready {
		return r.closeDir(d)
	}
	return nil
}

// closeDir gives a filled directory its time and mode.
func (r *Receiver) closeDir(d *inDir) error {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pending--
		r.settled.Broadcast()
	}()
	if d.fd == nil || d.fd == r.dst.dir {
		return nil
	}
	defer d.fd.Close()
	if d.kept {
		return nil
	}
	err := setTimeAt(d.fd, ".", d.mtime)
	if d.mode&0o700 != 0o700 {
		err = errors.Join(err, d.fd.Chmod(fileMode(d.mode)))
	}
	if err != nil {
		return r.fail(d.path, err)
	}
	return nil
}

func (r *Receiver) link(p []byte) error {
	f, err := parseLink(p)
	if err != nil {
		return err
	}
	if !r.o.Recursive {
		return malformed("a symbolic link comes where a file was asked for")
	}
	d, name, err := r.parent(f.dir, f.name)
	if err == nil {
		err = r.notFile(d)
	}
	if err != nil || d.fd == nil {
		return err
	}
	if err := placeLink(d.fd, name, f.target, f.mtime); err != nil {
		return r.fail(pathOf(d, name), err)
	}
	r.mu.Lock()
	r.result.Links++
	r.mu.Unlock()
	return nil
}

func (r *Receiver) small(p []byte) error {
	f, err := parseSmall(p)
	if err != nil {
		return err
	}
	d, name, err := r.parent(f.dir, f.name)
	if err == nil {
		err = r.notFile(d)
	}
	if err != nil || d.fd == nil {
		return err
	}
	f.content = append(bytePool.Get().([]byte)[:0], f.content...)
	r.mu.Lock()
	d.left++
	r.pending++
	r.mu.Unlock()
	if r.work == nil {
		r.work = make(chan smallJob, smallAhead)
		for range smallWriters {
			r.wg.Go(func() {
				for j := range r.work {
					if err := r.placeSmall(j); err != nil {
						r.lost(err)
					}
				}
			})
		}
	}
	r.work <- smallJob{d, name, f}
	return r.ack()
}

const (
	// smallWriters is how many small files are written at a time.
	smallWriters = 4
	// smallAhead is how many wait for that.
	smallAhead = 32
)

var bytePool = sync.Pool{New: func() any { return []byte(nil) }}

// smallJob is a small file that is to be written.
type smallJob struct {
	d    *inDir
	name string
	f    smallFrame
}

func (r *Receiver) placeSmall(j smallJob) error {
	var err error
	if sha256.Sum256(j.f.content) != j.f.sum {
		err = refuse(wire.CodeDamaged, "%s: what arrived is not what was sent", pathOf(j.d, j.name))
	} else {
		err = placeSmall(j.d.fd, j.name, j.f)
	}
	size := int64(len(j.f.content))
	bytePool.Put(j.f.content)
	if err != nil {
		err = r.fail(pathOf(j.d, j.name), err)
		size = -1
	}
	r.mu.Lock()
	if size >= 0 {
		r.result.Files++
		r.result.Bytes += size
		r.bytes += size
	}
	r.pending--
	ready := r.leaves(j.d)
	r.mu.Unlock()
	if err == nil && ready {
		err = r.closeDir(j.d)
	}
	return err
}

// leaves takes note that an entry of a directory is settled, and reports
// whether it was the last one. The caller holds the lock.
func (r *Receiver) leaves(d *inDir) bool {
	d.left--
	r.settled.Broadcast()
	if !d.up || d.left > 0 {
		return false
	}
	delete(r.dirs, d.id)
	r.pending++ // until it is closed
	return true
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

// tempName is how the names of files begin that are not whole yet.
const tempName = ".fleet-tmp-"

func randomName() string {
	b := make([]byte, 8)
	rand.Read(b)
	return tempName + hex.EncodeToString(b)
}

// partName is the temporary name of a large file, the same in each attempt.
func partName(f largeFrame, name string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s", f.size, f.mtime, name))
	return tempName + hex.EncodeToString(sum[:10])
}
