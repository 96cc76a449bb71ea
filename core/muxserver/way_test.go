package muxserver

import (
	"context"
	"errors"
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

type dialer func(context.Context, *sshconfig.Chain, func(string, ...any)) (*sshconn.Conn, error)

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
	if err := mux.WriteMessage(c, mux.Hello{Op: mux.OpToken, Host: "box", Key: key}); err != nil {
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
	_, connect := serving(t, func(ctx context.Context, _ *sshconfig.Chain, _ func(string, ...any)) (*sshconn.Conn, error) {
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
	s, connect := serving(t, func(ctx context.Context, _ *sshconfig.Chain, _ func(string, ...any)) (*sshconn.Conn, error) {
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
