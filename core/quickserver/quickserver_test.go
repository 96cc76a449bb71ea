package quickserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/core/quick"
)

// client is a front, frame by frame.
type client struct {
	net.Conn
	t *testing.T
}

func start(t *testing.T, run Run) *client {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Serve(ctx, l, run)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	return &client{conn, t}
}

func text(b []byte, list ...string) []byte {
	for _, s := range list {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	return b
}

// request hands over a command of the given words.
func (c *client) request(words ...string) {
	c.t.Helper()
	body := text(binary.BigEndian.AppendUint32(text(nil, "s_1"), uint32(len(words))), words...)
	body = text(binary.BigEndian.AppendUint32(body, 1), "HOME=/home/x")
	body = text(body, "/dir", "/bin/fleet")
	if _, err := c.Write(text([]byte("fleetq/2"), string(body))); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) send(kind byte, p string) {
	c.t.Helper()
	b, _ := quick.AppendFrame(nil, kind, []byte(p))
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) expect(kind byte, p string) {
	c.t.Helper()
	if k, got, err := quick.ReadFrame(c, nil); err != nil || k != kind || string(got) != p {
		c.t.Fatalf("%q %q %v, want %q %q", k, got, err, kind, p)
	}
}

func TestACommandIsBegunWhenItsClientSaysSo(t *testing.T) {
	c := start(t, func(ctx context.Context, c *Call) int {
		if c.Getenv("HOME") != "/home/x" || c.Dir != "/dir" || len(c.Args) != 2 || c.Session != "s_1" {
			t.Errorf("%+v", c.Request)
		}
		if _, err := c.Writer(quick.Stderr).Write([]byte("too early")); !errors.Is(err, ErrDeclined) || c.Begun() {
			t.Error(err)
		}
		if err := c.Begin(ctx); err != nil || !c.Begun() {
			t.Error(err)
		}
		n, err := c.Writer(quick.Stdout).Write(bytes.Repeat([]byte("x"), quick.MaxFrame+1))
		if n != quick.MaxFrame+1 || err != nil {
			t.Error(n, err)
		}
		c.Jump(258)
		n, err = c.Writer(quick.Stdout).Write([]byte("y"))
		if n != 0 || !errors.Is(err, syscall.EPIPE) {
			t.Error(n, err)
		}
		return 300 & 0xff
	})
	c.request("fleet", "exec")
	c.send(quick.Go, "")
	c.expect(quick.Begin, "")
	c.expect(quick.Stdout, string(bytes.Repeat([]byte("x"), quick.MaxFrame)))
	c.send(quick.Done, "\x00\x00")
	c.expect(quick.Stdout, "x")
	c.send(quick.Done, "\x00\x00")
	c.expect(quick.Jump, "\x00\x00\x00\x00\x00\x00\x01\x02")
	c.expect(quick.Stdout, "y")
	c.send(quick.Done, "\x00\x20")
	c.expect(quick.Exit, "\x2c")
}

func TestWhatWasNotBegunIsDeclined(t *testing.T) {
	c := start(t, func(context.Context, *Call) int { return 5 })
	c.request("fleet")
	c.expect(quick.Decline, "")
}

// A client that did not say that it is ready must not have anything started.
func TestAClientThatLeftHasNothingStarted(t *testing.T) {
	begun := make(chan error, 1)
	c := start(t, func(ctx context.Context, c *Call) int {
		begun <- c.Begin(ctx)
		return 0
	})
	c.request("fleet")
	c.Close()
	if err := <-begun; err == nil {
		t.Error("it was begun")
	}
}

func TestSignalsAndTheEndOfTheClientArePassedOn(t *testing.T) {
	got := make(chan os.Signal, 4)
	over, begun := make(chan error, 1), make(chan struct{})
	c := start(t, func(ctx context.Context, c *Call) int {
		stop := c.Notify(got, syscall.SIGTERM)
		defer stop()
		if _, err := c.Writer(quick.Notice).Write([]byte("early")); err != nil {
			t.Error(err)
		}
		if err := c.Begin(ctx); err != nil {
			t.Error(err)
		}
		close(begun)
		<-ctx.Done()
		_, err := c.Writer(quick.Stdout).Write([]byte("x"))
		over <- err
		late := make(chan os.Signal, 1)
		defer c.Notify(late, syscall.SIGINT)()
		if s := <-late; s != syscall.SIGHUP {
			t.Error(s)
		}
		return 0
	})
	c.request("fleet")
	c.send(quick.Go, "")
	c.expect(quick.Begin, "")
	c.expect(quick.Notice, "early")
	c.send(quick.Done, "\x00\x00")
	<-begun
	c.send(quick.Signal, "\x00\x02") // nobody asked for it
	c.send(quick.Signal, "\x00\x0f")
	if s := <-got; s != syscall.SIGTERM {
		t.Error(s)
	}
	c.Close()
	if s := <-got; s != syscall.SIGHUP {
		t.Error(s)
	}
	if err := <-over; err == nil || errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v: a client that has gone is no pipe that nobody reads", err)
	}
}

// A signal that the client got before the command asked for signals is not lost.
func TestASignalWaitsForTheCommandToAsk(t *testing.T) {
	begun := make(chan struct{})
	c := start(t, func(ctx context.Context, c *Call) int {
		if err := c.Begin(ctx); err != nil {
			t.Error(err)
		}
		<-begun
		got := make(chan os.Signal, 1)
		defer c.Notify(got, syscall.SIGINT)()
		if s := <-got; s != syscall.SIGINT {
			t.Error(s)
		}
		return 0
	})
	c.request("fleet")
	c.send(quick.Go, "")
	c.expect(quick.Begin, "")
	c.send(quick.Signal, "\x00\x02")
	close(begun)
	c.expect(quick.Exit, "\x00")
}

func TestGarbledClientsAreLeft(t *testing.T) {
	for name, bytes := range map[string]string{
		"no request":      "GET / HTTP/1.1\r\n\r\n",
		"too large":       "fleetq/2\xff\xff\xff\xff",
		"torn":            "fleetq/2\x00\x00\x00\x04\x00\x00\x00\x09",
		"an early answer": "",
	} {
		c := start(t, func(ctx context.Context, c *Call) int {
			if err := c.Begin(ctx); err == nil {
				t.Error("begun")
			}
			return 0
		})
		if bytes == "" {
			c.request("fleet")
			c.send(quick.Done, "\x00\x00")
			c.send(quick.Done, "\x00\x00")
		} else if _, err := c.Write([]byte(bytes)); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(c); len(rest) > 64 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %q, %v", name, rest, err)
		}
	}
}
