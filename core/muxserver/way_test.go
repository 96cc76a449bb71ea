package muxserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
)

type dialer func(context.Context, *sshconfig.Chain, func(string, ...any), io.Writer) (*sshconn.Conn, error)

// serving is a server with a dialer of the test's own; connect reaches it.
func serving(t *testing.T, dial dialer, wrap func(net.Listener) net.Listener) (s *Server, connect func() net.Conn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ms")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if wrap != nil {
		l = wrap(l)
	}
	s = New(Config{Dial: dial})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		return c
	}
}

// ask sends a request for the route's machine, with the route when it is wanted.
func ask(t *testing.T, c net.Conn, needed bool) {
	t.Helper()
	route := &sshconfig.Chain{Target: &sshconfig.Config{HostName: "box", Port: 22, User: "dana"}}
	key, err := mux.KeyOf(route)
	if err != nil {
		t.Fatal(err)
	}
	if err := mux.WriteMessage(c, mux.Hello{Op: mux.OpToken, Host: "box", Key: key, Hears: true}); err != nil {
		t.Fatal(err)
	}
	if !needed {
		return
	}
	var a mux.Answer
	if err := mux.ReadMessage(c, &a); err != nil || !a.Need {
		t.Fatalf("%+v %v", a, err)
	}
	if err := mux.WriteMessage(c, route); err != nil {
		t.Fatal(err)
	}
}

// askDeaf is ask by a client that does not take what is said.
func askDeaf(t *testing.T, c net.Conn) {
	t.Helper()
	key, err := mux.KeyOf(&sshconfig.Chain{Target: &sshconfig.Config{HostName: "box", Port: 22, User: "dana"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := mux.WriteMessage(c, mux.Hello{Op: mux.OpToken, Host: "box", Key: key}); err != nil {
		t.Fatal(err)
	}
}

func refusal(t *testing.T, c net.Conn) string {
	t.Helper()
	var a mux.Answer
	if err := mux.ReadMessage(c, &a); err != nil || a.Error == nil {
		t.Fatalf("%+v %v", a, err)
	}
	return a.Error.Message
}

// A dial that is given up because its client was killed is nobody else's: who
// comes while it still ends has one made for itself.
func TestADialThatWasGivenUpIsNotShared(t *testing.T) { // R32
	var dials atomic.Int32
	begun, ended, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	_, connect := serving(t, func(ctx context.Context, _ *sshconfig.Chain, _ func(string, ...any), _ io.Writer) (*sshconn.Conn, error) {
		if dials.Add(1) > 1 {
			return nil, errors.New("the second dial")
		}
		close(begun)
		<-ctx.Done()
		close(ended)
		<-release
		return nil, ctx.Err()
	}, nil)
	first := connect()
	ask(t, first, true)
	<-begun
	first.Close()
	<-ended
	second := connect()
	ask(t, second, false)
	if msg := refusal(t, second); !strings.Contains(msg, "the second dial") {
		t.Errorf("%q", msg)
	}
	close(release)
}

// Whoever waits for a dial that a logout ends is told so.
func TestADialThatIsDroppedSaysWhy(t *testing.T) { // R32
	begun := make(chan struct{})
	s, connect := serving(t, func(ctx context.Context, _ *sshconfig.Chain, _ func(string, ...any), _ io.Writer) (*sshconn.Conn, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	}, nil)
	c := connect()
	ask(t, c, true)
	<-begun
	s.mu.Lock()
	ways := s.list()
	s.mu.Unlock()
	for _, w := range ways {
		w.drop("the session at the plane ended")
	}
	if msg := refusal(t, c); !strings.Contains(msg, "the session at the plane ended") {
		t.Errorf("%q", msg)
	}
}

// Everybody who waits for a dial hears what programs on the way say, whoever
// came first, and whoever dials again hears the last words of the connection
// before.
func TestEverybodyHearsWhatIsSaidOnTheWay(t *testing.T) { // R32
	said, second := make(chan struct{}), make(chan struct{})
	s, connect := serving(t, func(_ context.Context, _ *sshconfig.Chain, _ func(string, ...any), output io.Writer) (*sshconn.Conn, error) {
		io.WriteString(output, "early ")
		close(said)
		<-second
		io.WriteString(output, "late\n")
		return nil, errors.New("no way")
	}, nil)
	hears := func(c net.Conn) string {
		var text string
		for {
			var a mux.Answer
			if err := mux.ReadMessage(c, &a); err != nil {
				t.Fatal(err)
			}
			if a.Error != nil {
				return text + a.Error.Message
			}
			if a.Said == nil {
				t.Fatalf("%+v", a)
			}
			text += string(a.Said)
		}
	}
	first := connect()
	ask(t, first, true)
	<-said
	late, deaf := connect(), connect()
	ask(t, late, false)
	askDeaf(t, deaf)
	for deadline := time.Now().Add(20 * time.Second); waiting(s) < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d wait", waiting(s))
		}
	}
	close(second)
	if got := hears(late); got != "early late\nno way" {
		t.Errorf("%q", got)
	}
	if got := hears(first); got != "early late\nno way" {
		t.Errorf("%q", got)
	}
	if msg := refusal(t, deaf); msg != "no way" { // of a fleet that does not know the message
		t.Errorf("%q", msg)
	}
}

// waiting is how many wait for a dial.
func waiting(s *Server) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.ways {
		w.mu.Lock()
		if w.attempt != nil {
			n += w.attempt.waiting
		}
		w.mu.Unlock()
	}
	return n
}

func TestSpeechIsBounded(t *testing.T) {
	s := newSpeech()
	s.Write(bytes.Repeat([]byte("a"), maxSpeech))
	_, at, more := s.after(0)
	s.settle()
	s.Write([]byte("bc"))
	<-more
	if text, _, _ := s.after(at); string(text) != "bc" || len(s.text) != maxSpeech {
		t.Errorf("%q of %d", text, len(s.text))
	}
	if text, _, _ := s.after(0); len(text) != maxSpeech || !bytes.HasSuffix(text, []byte("abc")) {
		t.Errorf("%d bytes", len(text))
	}
	if got := s.unheard(); string(got) != "bc" {
		t.Errorf("%q", got)
	}
}

// exhausted refuses the first tries for want of descriptors.
type exhausted struct {
	net.Listener
	left atomic.Int32
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// Running out of descriptors ends neither the server nor its connections.
func TestWantOfDescriptorsEndsNothing(t *testing.T) {
	_, connect := serving(t, nil, func(l net.Listener) net.Listener {
		e := &exhausted{Listener: l}
		e.left.Store(3)
		return e
	})
	c := connect()
	if err := mux.WriteMessage(c, mux.Hello{Op: mux.OpStatus}); err != nil {
		t.Fatal(err)
	}
	var a mux.Answer
	if err := mux.ReadMessage(c, &a); err != nil || a.Mux == nil {
		t.Errorf("%+v %v", a, err)
	}
}
