package tree

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

const (
	// aheadMost is how many entries the walk is before what is being sent.
	aheadMost = 256
	// aheadLarge is how many large files are open and announced.
	aheadLarge = 16
	// namesAtOnce is how much of a directory is read at a time.
	namesAtOnce = 512
	// maxDepth bounds how deep directories may lie: each is open meanwhile.
	maxDepth = 1024
	// lastWord is how long the receiver's last word may come after a lane's end.
	lastWord = 2 * time.Second
)

// SendOptions say how a copy is sent.
type SendOptions struct {
	Sum Sum // the receiver's is the same
	// Again says that an attempt of this copy went before.
	Again bool
	// Trouble is told what is not copied, on either side, and Progress how far
	// the copy is, as the receiver says; both from several goroutines.
	Trouble  func(Problem)
	Progress func(files, bytes int64)
	// Wide is told once when a file comes for which lanes are worth while.
	Wide func()
}

// Sender sends one copy.
type Sender struct {
	o    SendOptions
	src  *Source
	ctx  context.Context
	end  context.CancelCauseFunc
	main *lane
	wg   sync.WaitGroup // of readers

	queue    chan item
	large    chan struct{} // a place for each that is announced
	lastDir  uint32
	lastFile uint32
	wide     bool

	mu     sync.Mutex
	lanes  []*lane // the main one is the first
	open   map[uint32]*outFile
	result *Result
}

// NewSender sends to the other end of the connection. The context's end ends the
// copy.
func NewSender(ctx context.Context, conn net.Conn, src *Source, o SendOptions) *Sender {
	ctx, end := context.WithCancelCause(ctx)
	s := &Sender{o: o, src: src, ctx: ctx, end: end, main: newLane(ctx, conn), queue: make(chan item, aheadMost),
		large: make(chan struct{}, aheadLarge), open: map[uint32]*outFile{}}
	s.lanes = []*lane{s.main}
	return s
}

// AddLane sends blocks over a further connection, too.
func (s *Sender) AddLane(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.result != nil || len(s.lanes) > MaxLanes {
		return errors.New("the copy takes no further connection")
	}
	l := newLane(s.ctx, conn)
	s.lanes = append(s.lanes, l)
	s.wg.Go(func() {
		for {
			t, _, err := l.Next()
			if err == nil && t == Noop {
				continue
			}
			// The last word may be on its way in the main lane.
			select {
			case <-s.ctx.Done():
			case <-time.After(lastWord):
				s.end(io.ErrUnexpectedEOF)
			}
			return
		}
	})
	return nil
}

// Run sends until the receiver has everything. It closes the connections. The
// source stays open.
func (s *Sender) Run() (Result, error) {
	s.wg.Go(s.listen)
	var walk sync.WaitGroup
	walk.Go(func() {
		defer close(s.queue)
		s.walk()
	})
	for it := range s.items() {
		if err := it.send(s); err != nil {
			s.end(err)
		}
		it.release()
	}
	walk.Wait()
	s.main.put(func(b []byte) []byte { return AppendRaw(b, Over, nil) })
	<-s.ctx.Done() // the receiver's last word, or a loss
	s.mu.Lock()
	lanes, result := s.lanes, s.result
	s.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
	s.wg.Wait()
	switch {
	case result == nil:
		return Result{}, context.Cause(s.ctx)
	case result.Error != nil:
		return *result, &Error{Code: result.Error.Code, Msg: result.Error.Message, Hint: result.Error.Hint}
	}
	return *result, nil
}

// items are what is queued. What was gathered goes before there is a wait for
// more.
func (s *Sender) items() iter.Seq[item] {
	return func(yield func(item) bool) {
		for {
			var it item
			var ok bool
			select {
			case it, ok = <-s.queue:
			default:
				s.main.flush()
				it, ok = <-s.queue
			}
			if !ok || !yield(it) {
				return
			}
		}
	}
}

// listen takes what the receiver says.
func (s *Sender) listen() {
	for {
		t, p, err := s.main.Next()
		if err == nil {
			err = s.hear(t, p)
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

// errOver ends what waits for a receiver that has said its last word.
var errOver = errors.New("the receiver has ended the copy")

func (s *Sender) hear(t Type, p []byte) error {
	f := fields{p: p}
	switch t {
	case Noop:
		return nil
	case Ack:
		files, n := f.count(), f.count()
		if err := f.end(); err != nil {
			return err
		}
		if s.o.Progress != nil {
			s.o.Progress(files, n)
		}
		return nil
	case Go:
		id, verdict, there := f.u32(), f.u8(), f.count()
		if err := f.end(); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		o := s.open[id]
		if o == nil || o.answered || there > blocks(o.size) || verdict > Refused {
			return malformed("an answer to nothing")
		}
		o.answered, o.there = true, there
		o.verdict <- verdict
		return nil
	case Have:
		id, first, sums := f.u32(), f.count(), f.rest()
		if err := f.end(); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		o := s.open[id]
		if o == nil || len(sums)%hashLen != 0 || len(sums) == 0 || first != o.haveFrom+int64(len(o.have)/hashLen) || int64(len(sums)/hashLen) > o.wanted-first {
			return malformed("hashes that nobody asked for")
		}
		o.have = append(o.have, sums...)
		if o.haveFrom+int64(len(o.have)/hashLen) == o.wanted {
			o.haveAll <- struct{}{}
		}
		return nil
	case Trouble:
		var problem Problem
		if len(p) > maxDoc || json.Unmarshal(p, &problem) != nil {
			return malformed("a problem that is no JSON")
		}
		s.tell(problem)
		return nil
	case Done:
		var r Result
		if len(p) > maxDoc || json.Unmarshal(p, &r) != nil {
			return malformed("a result that is no JSON")
		}
		s.mu.Lock()
		s.result = &r
		s.mu.Unlock()
		return errOver
	}
	return malformed("an unknown frame %q", byte(t))
}

func (s *Sender) tell(p Problem) {
	if s.o.Trouble != nil {
		s.o.Trouble(p)
	}
}

// skip names an entry that is not sent, here and to the receiver.
func (s *Sender) skip(path string, err error) error {
	p := problem(path, err)
	s.tell(p)
	return s.main.put(func(b []byte) []byte { return appendJSON(b, Trouble, p) })
}

// item is what is sent in the walk's order.
type item interface {
	send(s *Sender) error
	release()
}

// outDir is a directory that is being walked. It is open as long as something
// of it is to be sent yet.
type outDir struct {
	id   uint32
	fd   *os.File
	path string

	mu   sync.Mutex
	uses int
	lent bool // the caller's own
}

func (d *outDir) use() *outDir {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uses++
	return d
}

func (d *outDir) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.uses--; d.uses == 0 && !d.lent {
		d.fd.Close()
	}
}

// walk sends directories and links, announces large files, and queues the rest.
func (s *Sender) walk() {
	var err error
	switch {
	case s.src.file == nil:
		err = s.main.put(linkFrame{mtime: mtimeOf(s.src.st), target: s.src.link}.append)
	case kindOf(s.src.st) == unix.S_IFDIR:
		d := &outDir{fd: s.src.file, path: s.src.path, lent: true}
		err = s.directory(d, 0, "", s.src.st, 0)
	default:
		err = s.regular(nil, "", s.src.st)
	}
	if err != nil {
		s.end(err)
	}
}

func (s *Sender) put(it item) error {
	select {
	case s.queue <- it:
		return nil
	case <-s.ctx.Done():
		it.release()
		return context.Cause(s.ctx)
	}
}

func (s *Sender) directory(d *outDir, parent uint32, name string, st *unix.Stat_t, depth int) error {
	d.use()
	defer d.release()
	s.lastDir++
	d.id = s.lastDir
	frame := dirFrame{id: d.id, parent: parent, mode: permOf(st) & 0o777, mtime: mtimeOf(st), name: name}
	if err := s.main.put(frame.append); err != nil {
		return err
	}
	for {
		names, err := d.fd.Readdirnames(namesAtOnce)
		for _, name := range names {
			if s.ctx.Err() != nil {
				return context.Cause(s.ctx)
			}
			if err := s.entry(d, name, depth); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			if err := s.skip(d.path, err); err != nil {
				return err
			}
			break
		}
	}
	return s.put(&leaving{d.use()})
}

// entry sends what a directory has under a name. What vanished meanwhile is not
// in it any more.
func (s *Sender) entry(d *outDir, name string, depth int) error {
	at := d.path + "/" + name
	st, err := statAt(d.fd, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return s.skip(at, err)
	}
	switch kindOf(st) {
	case unix.S_IFREG:
		return s.regular(d, name, st)
	case unix.S_IFDIR:
		if depth >= maxDepth {
			return s.skip(at, refuse(wire.CodeBadRequest, "%s lies deeper than %d directories", at, maxDepth))
		}
		fd, err := openDirAt(d.fd, name)
		if err != nil {
			return s.skip(at, err)
		}
		return s.directory(&outDir{fd: fd, path: at}, d.id, name, st, depth+1)
	case unix.S_IFLNK:
		target, err := readlinkAt(d.fd, name)
		if err != nil {
			return s.skip(at, err)
		}
		return s.main.put(linkFrame{dir: d.id, mtime: mtimeOf(st), name: name, target: target}.append)
	}
	return s.skip(at, refuse(wire.CodeNotAFile, "%s is a %s, which is not copied", at, typeName(kindOf(st))))
}

// leaving says that no more comes of a directory.
type leaving struct{ *outDir }

func (l *leaving) send(s *Sender) error {
	return s.main.put(func(b []byte) []byte { return appendID(b, DirUp, l.id) })
}

// regular queues a file. A large one, and on another attempt each, is announced
// first; d is nil for what the caller has opened.
func (s *Sender) regular(d *outDir, name string, st *unix.Stat_t) error {
	if d != nil && st.Size <= MaxSmall && !s.o.Again {
		return s.put(&smallFile{outDir: d.use(), name: name})
	}
	o := &outFile{dir: d, name: name, path: s.src.path, file: s.src.file, verdict: make(chan byte, 1), haveAll: make(chan struct{}, 1)}
	if d != nil {
		var err error
		o.path = d.path + "/" + name
		if o.file, st, err = openRegularAt(d.fd, name); err != nil {
			return s.skip(o.path, err)
		}
		d.use()
	}
	o.was = versionOf(st)
	o.largeFrame = largeFrame{mode: permOf(st) & 0o777, mtime: mtimeOf(st), size: st.Size, sparse: st.Blocks*512 < st.Size, name: name}
	if d != nil {
		o.largeFrame.dir = d.id
	}
	select {
	case s.large <- struct{}{}:
	case <-s.ctx.Done():
		o.release()
		return context.Cause(s.ctx)
	}
	s.lastFile++
	o.id = s.lastFile
	s.mu.Lock()
	s.open[o.id] = o
	s.mu.Unlock()
	if err := s.main.put(o.largeFrame.append); err != nil {
		o.release()
		return err
	}
	if !s.wide && o.size >= wideFrom && s.o.Wide != nil {
		s.wide = true
		s.o.Wide()
	}
	return s.put(o)
}

// smallFile is one that a frame takes.
type smallFile struct {
	*outDir
	name string
}

func (f *smallFile) send(s *Sender) error {
	at := f.path + "/" + f.name
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	buf := smallBuffers.Get().(*[]byte)
	defer smallBuffers.Put(buf)
	content, st, err := readSmallAt(f.fd, f.name, *buf)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, errChanged):
		return s.skip(at, refuse(wire.CodeChanged, "%s changed while it was read", at))
	case err != nil:
		return s.skip(at, err)
	}
	return s.main.gather(smallFrame{dir: f.id, mode: permOf(st) & 0o777, mtime: mtimeOf(st), sum: s.o.Sum.of(content), name: f.name, content: content}.append)
}

// One byte more, so that a file that grew is noticed.
var smallBuffers = sync.Pool{New: func() any { b := make([]byte, MaxSmall+1); return &b }}
