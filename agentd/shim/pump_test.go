package shim

import (
	"bytes"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/agentd/spool"
)

// slowSink takes each piece only when it is told to.
type slowSink struct {
	begun, goOn chan struct{}
	mu          sync.Mutex
	b           []byte
}

func (s *slowSink) Append(_ byte, data []byte) error {
	s.begun <- struct{}{}
	<-s.goOn
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = append(s.b, data...)
	return nil
}

// TestASlowDiskLosesNoOutput: while the disk takes its time nothing is silent,
// and what lies in the pipe when it is let go of is taken.
func TestASlowDiskLosesNoOutput(t *testing.T) { // R34
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()                                         // as by what the command left running
	want := bytes.Repeat([]byte("0123456789abcdef"), 3<<10) // less than a pipe holds, more than one piece
	if _, err := w.Write(want); err != nil {
		t.Fatal(err)
	}
	sink := &slowSink{begun: make(chan struct{}), goOn: make(chan struct{})}
	p := (&command{outs: []*os.File{r}}).pump(sink)
	<-sink.begun
	if p.silent(0) {
		t.Error("a pump with output in its hands is taken for silent")
	}
	p.end() // in the middle of the write
	for ended := false; !ended; {
		select {
		case sink.goOn <- struct{}{}:
		case <-sink.begun:
		case <-p.ended:
			ended = true
		}
	}
	if !bytes.Equal(sink.b, want) {
		t.Fatalf("%d bytes of %d are there", len(sink.b), len(want))
	}
	if !p.silent(time.Hour) {
		t.Error("what is over is not silent")
	}
}

// TestAnIdlePumpIsSilentAndEnds: its pipe stays open.
func TestAnIdlePumpIsSilentAndEnds(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s, err := spool.Create(t.TempDir()+"/spool", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	p := (&command{outs: []*os.File{r}}).pump(s)
	for !p.silent(time.Millisecond) {
		select {
		case <-p.ended:
			t.Fatal("it ended by itself")
		case <-time.After(time.Millisecond):
		}
	}
	p.end()
	<-p.ended
}

// TestAFloodIsLetGoOf: what is written faster than it is read has no end.
func TestAFloodIsLetGoOf(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	flooding := make(chan struct{})
	go func() { // ends when nobody reads any more
		defer close(flooding)
		for b := make([]byte, 64<<10); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}()
	s, err := spool.Create(t.TempDir()+"/spool", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	p := (&command{outs: []*os.File{r}}).pump(s)
	p.end()
	<-p.ended
	r.Close()
	<-flooding
	w.Close()
}

type typed struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *typed) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (*typed) Close() error { return nil }

func newTestConn() *conn {
	near, far := net.Pipe()
	far.Close()
	return &conn{nc: near, wake: make(chan struct{}, 1)}
}

// TestTheEndOfInputIsTypedOnce: a client that comes back sends it again.
func TestTheEndOfInputIsTypedOnce(t *testing.T) {
	w := &typed{}
	in := newInput(w, true)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		in.run()
	}()
	for range 3 {
		c := newTestConn()
		wr, at, err := in.claim("one", c)
		if err != nil {
			t.Fatal(err)
		}
		if at == 0 {
			err = in.offer(wr, c, 0, []byte("words"), false)
		}
		if err == nil {
			err = in.offer(wr, c, 5, nil, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		in.release(wr, c)
	}
	// What comes after it, by another, is behind it in the queue.
	c := newTestConn()
	wr, _, err := in.claim("two", c)
	if err == nil {
		err = in.offer(wr, c, 0, []byte("."), false)
	}
	if err != nil {
		t.Fatal(err)
	}
	for taken := false; !taken; {
		<-c.wake
		c.mu.Lock()
		taken = c.taken == 1
		c.mu.Unlock()
	}
	in.close()
	<-stopped
	if got := w.b.String(); got != "words\x04." {
		t.Errorf("the terminal got %q", got)
	}
}

func TestWritersThatLeftMakeRoom(t *testing.T) {
	in := newInput(&typed{}, true)
	name := func(i int) string {
		return string(rune('a'+i/26/26)) + string(rune('a'+i/26%26)) + string(rune('a'+i%26))
	}
	for i := range maxWriters {
		c := newTestConn()
		w, _, err := in.claim(name(i), c)
		if err != nil {
			t.Fatal(err)
		}
		in.release(w, c)
	}
	// Those that left just now may come back, and would send again what they sent.
	if _, _, err := in.claim("new", newTestConn()); err == nil {
		t.Fatal("a writer that may come back was forgotten")
	}
	in.writers[name(7)].left = time.Now().Add(-forgetAfter)
	in.writers[name(9)].left = time.Now().Add(-forgetAfter)
	in.writers[name(9)].received = 1 // the command has not all of it
	if _, _, err := in.claim("new", newTestConn()); err != nil {
		t.Fatal(err)
	}
	if in.writers[name(7)] != nil || in.writers[name(9)] == nil {
		t.Error("another writer was forgotten than the one that is done")
	}
}
