package watch

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"

	"fleet.example/fleet/core/wire"
)

const (
	// maxUnsent bounds what waits for a reader, and maxKept what is kept of what
	// was sent for a reader that comes back: more than what a connection has under
	// way. Both are in bytes, of events as they are sent.
	maxUnsent = 2 << 20
	maxKept   = 4 << 20
	// lineCost is what an event costs in memory beside its bytes.
	lineCost = 32
)

// errTaken ends a reader whose place another one took.
var errTaken = errors.New("another reader took over")

// events is the queue between what watches and who reads: events as they are
// sent, numbered from 1 on. Who appends waits for who reads; nothing is dropped
// that was not sent.
type events struct {
	id string

	mu      sync.Mutex
	lines   [][]byte // from number first on
	first   uint64
	next    uint64 // the reader's
	unsent  int
	kept    int
	last    key // of the line that was appended last
	reader  int // the number of the reader
	over    bool
	changed chan struct{} // closed and made anew with every change
}

// key tells whether an event repeats the one before it.
type key struct {
	event string
	path  wire.Bytes
}

func newEvents(id string) *events {
	return &events{id: id, first: 1, next: 1, changed: make(chan struct{})}
}

func (e *events) notify() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// append adds an event, once there is room for it. A change of what changed just
// before and was not sent yet is not said twice. waited says that there was no
// room at first.
func (e *events) append(ctx context.Context, ev wire.WatchEvent) (waited bool, err error) {
	k := key{ev.Event, ev.Path}
	repeats := ev.Event == wire.WatchModified || ev.Event == wire.WatchAttributes
	for {
		e.mu.Lock()
		if repeats && k == e.last && e.next < e.first+uint64(len(e.lines)) {
			e.mu.Unlock()
			return waited, nil
		}
		if e.unsent < maxUnsent {
			break
		}
		changed := e.changed
		e.mu.Unlock()
		waited = true
		select {
		case <-changed:
		case <-ctx.Done():
			return waited, ctx.Err()
		}
	}
	defer e.mu.Unlock()
	ev.Token = e.id + "." + strconv.FormatUint(e.first+uint64(len(e.lines)), 10)
	line, err := json.Marshal(ev)
	if err != nil {
		return waited, err
	}
	e.lines = append(e.lines, append(line, '\n'))
	e.unsent += len(line) + lineCost
	e.last = k
	e.notify()
	return waited, nil
}

// end says that nothing more is appended.
func (e *events) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	e.notify()
}

// attach makes the caller the reader of what follows the event with that number.
// It reports whether that is still there.
func (e *events) attach(after uint64) (reader int, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	end := e.first + uint64(len(e.lines))
	if after+1 < e.first || after+1 > end || after+1 > e.next {
		return 0, false
	}
	for n := after + 1; n < e.next; n++ {
		size := len(e.lines[n-e.first]) - 1 + lineCost
		e.unsent, e.kept = e.unsent+size, e.kept-size
	}
	e.next = after + 1
	e.reader++
	e.notify()
	return e.reader, true
}

// detach ends the reader, if it still is the one.
func (e *events) detach(reader int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reader != reader {
		return false
	}
	e.reader++
	e.notify()
	return true
}

// take waits for events and adds those that there are, up to about max bytes, to
// buf. With nothing to wait for it returns none.
func (e *events) take(ctx context.Context, reader int, buf []byte, max int) ([]byte, error) {
	for {
		e.mu.Lock()
		if e.reader != reader {
			e.mu.Unlock()
			return buf, errTaken
		}
		end := e.first + uint64(len(e.lines))
		if e.next < end {
			break
		}
		over, changed := e.over, e.changed
		e.mu.Unlock()
		if over {
			return buf, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return buf, ctx.Err()
		}
	}
	defer e.mu.Unlock()
	for end := e.first + uint64(len(e.lines)); e.next < end && len(buf) < max; e.next++ {
		line := e.lines[e.next-e.first]
		buf = append(buf, line...)
		size := len(line) - 1 + lineCost
		e.unsent, e.kept = e.unsent-size, e.kept+size
	}
	drop := 0
	for ; e.kept > maxKept; drop++ {
		e.kept -= len(e.lines[drop]) - 1 + lineCost
		e.lines[drop] = nil
	}
	if drop > 0 {
		e.lines, e.first = e.lines[drop:], e.first+uint64(drop)
	}
	e.notify()
	return buf, nil
}
