package watch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"fleet.example/fleet/core/wire"
)

const (
	// maxWatches bounds how many watches there are at a time.
	maxWatches = 32
	// keepFor is how long a watch goes on that nobody reads, for a client that
	// comes back.
	keepFor = 2 * time.Minute
	// restFor is the pause before a watch begins anew that was overrun while it
	// began.
	restFor = 500 * time.Millisecond
	// lookAfter is how often it is looked whether the watched directory still has
	// a name: it is held open, and of one that is open the system may not say.
	lookAfter = time.Second
)

// Target is what a watch is of.
type Target struct {
	Dir  *os.File // a directory, open; the watch closes it
	Path string   // its absolute path, as it is shown
	Name string   // of the one entry that is meant, or "" for the directory and all below
	Real bool     // Path may be opened by itself: no tree confines it
	// Scope is who may go on with the watch: nobody of another one.
	Scope string

	Shallow bool // the directory's own entries alone
	Initial bool // tell of what is there already

	between func(step string) // where tests change the tree meanwhile
}

// same reports whether a watch of one is one of the other.
func (t *Target) same(o *Target) bool {
	return t.Scope == o.Scope && t.Path == o.Path && t.Name == o.Name && t.Shallow == o.Shallow && t.Initial == o.Initial
}

// Error is a refusal with a code of package wire.
type Error struct {
	Code, Msg, Hint string
}

func (e *Error) Error() string { return e.Msg }

// overflow is the end of one look at the tree: another one is to begin.
type overflow struct{ reason string }

func (o overflow) Error() string { return "changes were lost: " + o.reason }

// Set is all watches of an agent. Its methods may be used from several
// goroutines.
type Set struct {
	mu      sync.Mutex
	watches map[string]*watch
	closed  bool
	running sync.WaitGroup
}

// watch is one: a goroutine that fills events.
type watch struct {
	target Target
	events *events
	stop   context.CancelFunc
	apart  time.Time // since when nobody reads
	expire *time.Timer
}

// Open begins a watch, or goes on with the one of which from is a token, after
// the event that it came with. Where that is gone the new watch begins with an
// overflow. Open closes the target's directory when it fails or does not need it.
func (s *Set) Open(t Target, from string) (*Reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		t.Dir.Close()
		return nil, &Error{Code: wire.CodeBusy, Msg: "the agent is stopping"}
	}
	if r := s.resume(&t, from); r != nil {
		t.Dir.Close()
		return r, nil
	}
	if err := s.makeRoom(); err != nil {
		t.Dir.Close()
		return nil, err
	}
	id := make([]byte, 12)
	rand.Read(id)
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{target: t, events: newEvents(hex.EncodeToString(id)), stop: cancel}
	first, err := begin(&w.target)
	if err != nil {
		cancel()
		t.Dir.Close()
		return nil, err
	}
	if s.watches == nil {
		s.watches = map[string]*watch{}
	}
	s.watches[w.events.id] = w
	s.running.Go(func() {
		defer t.Dir.Close()
		defer w.events.end()
		w.run(ctx, first, from != "")
	})
	reader, _ := w.events.attach(0)
	return &Reader{set: s, watch: w, number: reader}, nil
}

// resume finds the watch that the token is of.
func (s *Set) resume(t *Target, token string) *Reader {
	id, number, _ := strings.Cut(token, ".")
	w := s.watches[id]
	after, err := strconv.ParseUint(number, 10, 62)
	if w == nil || err != nil || !w.target.same(t) {
		return nil
	}
	reader, ok := w.events.attach(after)
	if !ok {
		return nil
	}
	w.apart = time.Time{}
	if w.expire != nil {
		w.expire.Stop()
	}
	return &Reader{set: s, watch: w, number: reader}
}

// makeRoom ends the watch that nobody reads for longest where there are as many
// as there may be.
func (s *Set) makeRoom() error {
	if len(s.watches) < maxWatches {
		return nil
	}
	var oldest *watch
	for _, w := range s.watches {
		if !w.apart.IsZero() && (oldest == nil || w.apart.Before(oldest.apart)) {
			oldest = w
		}
	}
	if oldest == nil {
		return &Error{Code: wire.CodeBusy, Msg: fmt.Sprintf("%d watches are under way already", maxWatches)}
	}
	s.drop(oldest)
	return nil
}

func (s *Set) drop(w *watch) {
	w.stop()
	if w.expire != nil {
		w.expire.Stop()
	}
	delete(s.watches, w.events.id)
}

// Leave ends all readers; the watches go on for those that come back.
func (s *Set) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches {
		w.events.mu.Lock()
		w.events.reader++
		w.events.notify()
		w.events.mu.Unlock()
		s.keep(w)
	}
}

// keep lets a watch that nobody reads go on for a while.
func (s *Set) keep(w *watch) {
	w.apart = time.Now()
	since := w.apart
	w.expire = time.AfterFunc(keepFor, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.apart.Equal(since) {
			s.drop(w)
		}
	})
}

// Close ends all watches and waits for them.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	for _, w := range s.watches {
		s.drop(w)
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Reader takes a watch's events.
type Reader struct {
	set    *Set
	watch  *watch
	number int
}

// Next waits for events and appends them to buf, a JSON line each, about max bytes of
// them. It appends nothing when none will come any more, and fails when another
// reader took over.
func (r *Reader) Next(ctx context.Context, buf []byte, max int) ([]byte, error) {
	return r.watch.events.take(ctx, r.number, buf, max)
}

// Close leaves the watch, which goes on for a while for a reader that comes back.
func (r *Reader) Close() {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if r.set.watches[r.watch.events.id] == r.watch && r.watch.events.detach(r.number) {
		r.set.keep(r.watch)
	}
}

// run watches until the context or what is watched ends. Each look at the tree
// is a new one: what came before it is covered by the overflow that it begins
// with.
func (w *watch) run(ctx context.Context, first look, lost bool) {
	t := &teller{ctx: ctx, events: w.events, target: &w.target}
	if lost {
		t.tell(wire.WatchEvent{Event: wire.WatchOverflow, Reason: wire.OverflowResume})
	}
	l := first
	for {
		var err error
		if l == nil {
			l, err = begin(&w.target)
		}
		if err == nil {
			t.ready = false
			err = l.run(ctx, t)
			l.close()
			l = nil
		}
		var o overflow
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &o):
			if t.waited && o.reason == wire.OverflowKernel {
				o.reason = wire.OverflowReader
			}
			t.waited = false
			t.tell(wire.WatchEvent{Event: wire.WatchOverflow, Reason: o.reason})
			if !t.ready {
				select {
				case <-ctx.Done():
				case <-time.After(restFor):
				}
			}
		default:
			d := wire.ErrorDetail{Code: wire.CodeInternal, Message: fmt.Sprint(err)}
			if e := new(Error); errors.As(err, &e) {
				d = wire.ErrorDetail{Code: e.Code, Message: e.Msg, Hint: e.Hint}
			}
			t.tell(wire.WatchEvent{Event: wire.WatchEnded, Error: &d})
			return
		}
	}
}

// look is one look at the tree, from the first watch to the first overflow.
type look interface {
	// run tells of everything until the context ends or with an error: an
	// overflow, or the end of the watch.
	run(ctx context.Context, t *teller) error
	close()
}

// teller appends to a watch's events.
type teller struct {
	ctx    context.Context
	events *events
	target *Target
	ready  bool
	waited bool // for the reader, since the last overflow
}

func (t *teller) tell(ev wire.WatchEvent) error {
	waited, err := t.events.append(t.ctx, ev)
	t.waited = t.waited || waited
	return err
}

// began says that everything is told of from now on.
func (t *teller) began() error {
	t.ready = true
	return t.tell(wire.WatchEvent{Event: wire.WatchReady, Root: wire.Bytes(t.target.Path)})
}

// meant reports whether the target is of an entry of its own directory with the
// name.
func (t *Target) meant(name string) bool { return t.Name == "" || t.Name == name }

// deep reports whether the target is of directories below its own, too.
func (t *Target) deep() bool { return t.Name == "" && !t.Shallow }

// there is the end of the watch if the directory has no name any more.
func (t *Target) there() error {
	if st, err := t.Dir.Stat(); err == nil {
		if s, ok := st.Sys().(*syscall.Stat_t); ok && s.Nlink == 0 {
			return gone(t)
		}
	}
	return nil
}

func gone(t *Target) error {
	return &Error{Code: wire.CodeWatchGone, Msg: t.Path + " was removed or moved away"}
}
