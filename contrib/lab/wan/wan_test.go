package wan_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab/wan"
)

func start(t *testing.T, target string, p wan.Profile) *wan.Proxy {
	t.Helper()
	x, err := wan.Listen(t.Context(), "127.0.0.1:0", target, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func roundTrip(t *testing.T, c net.Conn, text string) time.Duration {
	t.Helper()
	began := time.Now()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != text {
		t.Fatalf("got %q, %v", buf, err)
	}
	return time.Since(began)
}

func TestDelayIsAddedInEachDirection(t *testing.T) {
	x := start(t, echo(t), wan.Profile{Delay: 60 * time.Millisecond})
	c := dial(t, x.Addr())
	if took := roundTrip(t, c, "hello"); took < 120*time.Millisecond {
		t.Errorf("a round trip took %v", took)
	}
	x.SetProfile(wan.Profile{})
	roundTrip(t, c, "hello") // still the same connection
}

func TestBandwidthIsCapped(t *testing.T) {
	x := start(t, echo(t), wan.Profile{DownBytes: 1 << 20})
	c := dial(t, x.Addr())
	if took := roundTrip(t, c, strings.Repeat("x", 256<<10)); took < 200*time.Millisecond {
		t.Errorf("256 KiB at 1 MiB/s took %v", took)
	}
}

func TestStallHoldsBytesAndFlowDeliversThem(t *testing.T) {
	x := start(t, echo(t), wan.Profile{})
	c := dial(t, x.Addr())
	roundTrip(t, c, "before")
	x.Stall()
	if _, err := io.WriteString(c, "held"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	var timeout net.Error
	if n, err := c.Read(buf); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("read %d bytes, %v from a stalled connection", n, err)
	}
	x.Flow()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "held" {
		t.Fatalf("got %q, %v", buf, err)
	}
}

func TestResetAfterExactlySoManyBytes(t *testing.T) {
	x := start(t, echo(t), wan.Profile{})
	x.ResetAfter(wan.Down, 1000)
	c := dial(t, x.Addr())
	if _, err := c.Write(make([]byte, 5000)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if len(got) != 1000 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	x.ResetAfter(wan.Down, 0)
	roundTrip(t, dial(t, x.Addr()), strings.Repeat("x", 5000))
}

func TestRefuse(t *testing.T) {
	x := start(t, echo(t), wan.Profile{})
	x.Refuse(true)
	// The reset may arrive before dialing ends or after it.
	if c, err := net.Dial("tcp", x.Addr()); err == nil {
		defer c.Close()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a refused connection gave %v", err)
		}
	}
	x.Refuse(false)
	roundTrip(t, dial(t, x.Addr()), "hello")
}

func TestHalfCloseReachesTheOtherEnd(t *testing.T) {
	x := start(t, echo(t), wan.Profile{Delay: time.Millisecond})
	c := dial(t, x.Addr())
	if _, err := io.WriteString(c, "bye"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if string(got) != "bye" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestSwallowLosesExactlyOneAnswer(t *testing.T) {
	for name, serve := range map[string]func(http.Handler) *httptest.Server{
		"http": httptest.NewServer, "https": httptest.NewTLSServer,
	} {
		for _, fresh := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " fresh connection", false: " kept connection"}[fresh], func(t *testing.T) {
				var served atomic.Int64
				server := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					served.Add(1)
					_, _ = w.Write(bytes.ToUpper(body))
				}))
				defer server.Close()
				client := server.Client()
				scheme, target, _ := strings.Cut(server.URL, "://")
				x := start(t, target, wan.Profile{})
				post := func() (string, error) {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					req, _ := http.NewRequestWithContext(ctx, "POST", scheme+"://"+x.Addr(), bufio.NewReader(strings.NewReader("ok")))
					resp, err := client.Do(req)
					if err != nil {
						return "", err
					}
					defer resp.Body.Close()
					body, err := io.ReadAll(resp.Body)
					return string(body), err
				}
				if !fresh {
					if got, err := post(); got != "OK" {
						t.Fatalf("got %q, %v", got, err)
					}
				}
				before := served.Load()
				lost := x.SwallowAnswer()
				if got, err := post(); err == nil {
					t.Fatalf("the answer %q was not lost", got)
				}
				<-lost.Done()
				if served.Load() != before+1 {
					t.Errorf("the server saw %d requests, want 1", served.Load()-before)
				}
				if lost.Bytes() == 0 {
					t.Error("nothing was thrown away")
				}
				if got, err := post(); got != "OK" {
					t.Errorf("the answer after it: %q, %v", got, err)
				}
			})
		}
	}
}

func TestCloseEndsOpenConnections(t *testing.T) {
	x := start(t, echo(t), wan.Profile{Delay: time.Millisecond})
	c := dial(t, x.Addr())
	roundTrip(t, c, "hello")
	if x.Open() != 1 || x.Forwarded(wan.Up) != 5 {
		t.Errorf("open %d, forwarded %d", x.Open(), x.Forwarded(wan.Up))
	}
	x.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlived its proxy")
	}
}
