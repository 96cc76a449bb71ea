package planed

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// guardedServer serves h under a guard; dial opens a connection to it.
func guardedServer(t *testing.T, l limits, h http.Handler) (g *guard, dial func() net.Conn) {
	g = newGuard(l)
	accept := make(pipes)
	srv := &http.Server{Handler: h, ConnState: g.changed}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { srv.Serve(g.listen(accept)); done <- struct{}{} }()
	go func() { g.run(ctx); done <- struct{}{} }()
	t.Cleanup(func() { cancel(); srv.Close(); <-done; <-done })
	return g, func() net.Conn {
		client, server := net.Pipe()
		accept <- server
		t.Cleanup(func() { client.Close() })
		return client
	}
}

// endsAfter reads until the other side closes and returns how long that took.
func endsAfter(t *testing.T, c net.Conn) time.Duration {
	t.Helper()
	began := time.Now()
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

func within(t *testing.T, what string, got, limit time.Duration) {
	t.Helper()
	if got < limit || got > limit+2*guardEvery {
		t.Errorf("%s ended after %s, its limit is %s", what, got, limit)
	}
}

var testLimits = limits{first: 20 * time.Second, active: 80 * time.Second, idle: 3 * time.Minute}

func ok(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }

func TestSilentConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := guardedServer(t, testLimits, http.HandlerFunc(ok))
		within(t, "a connection that says nothing", endsAfter(t, dial()), testLimits.first)

		c := dial()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		within(t, "a request whose headers do not end", endsAfter(t, c), testLimits.first)
	})
}

func TestStalledBodyIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := guardedServer(t, testLimits, http.HandlerFunc(ok))
		c := dial()
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
		within(t, "a request whose body does not end", endsAfter(t, c), testLimits.active)
	})
}

func TestAnswerThatNobodyTakesIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		took := make(chan time.Duration, 1)
		_, dial := guardedServer(t, testLimits, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Write(make([]byte, 1<<20))
			took <- time.Since(began)
		}))
		io.WriteString(dial(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		within(t, "an answer that is not taken", <-took, testLimits.active)
	})
}

func TestKeptConnectionLivesUntilItIsIdleForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, dial := guardedServer(t, testLimits, http.HandlerFunc(ok))
		c := dial()
		answer := make([]byte, 4096)
		for range 5 {
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if n, err := c.Read(answer); err != nil || n == 0 {
				t.Fatalf("a kept connection ended: %v", err)
			}
			time.Sleep(testLimits.idle - 2*guardEvery)
		}
		within(t, "an idle connection", endsAfter(t, c)+testLimits.idle-2*guardEvery, testLimits.idle)
		synctest.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.conns) != 0 {
			t.Errorf("%d closed connections are still looked after", len(g.conns))
		}
	})
}

func TestLongAnswerLivesAsLongAsItsReaderKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parts, size = 40, 64 << 10
		_, dial := guardedServer(t, testLimits, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for range parts {
				w.Write(make([]byte, size))
			}
		}))
		c := dial()
		io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
		got, buf := 0, make([]byte, size)
		for {
			n, err := io.ReadFull(c, buf)
			if got += n; err != nil {
				break
			}
			time.Sleep(testLimits.active / 8)
		}
		if got < parts*size {
			t.Errorf("cut off after %d of %d bytes", got, parts*size)
		}
	})
}

// Whoever holds every connection there may be holds nobody off.
func TestWhoeverComesIsServedHoweverManyAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, dial := guardedServer(t, testLimits, http.HandlerFunc(ok))
		g.most = 32
		for range 3 {
			for range g.most {
				dial()
			}
			time.Sleep(2 * guardEvery)
		}
		c := dial()
		answer := make([]byte, 4096)
		for range 2 {
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if n, err := c.Read(answer); err != nil || n == 0 {
				t.Fatalf("the latest connection is not served: %v", err)
			}
		}
		synctest.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.conns) > g.most {
			t.Errorf("%d connections are open, at most %d may be", len(g.conns), g.most)
		}
	})
}
