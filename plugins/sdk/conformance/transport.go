package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// Dialer is a transport in this process or in a plugin's.
type Dialer interface {
	Dial(ctx context.Context, t sdk.Target) (net.Conn, error)
}

// TransportEnv is what the suite runs a transport against.
type TransportEnv struct {
	// Target completes what the transport needs to reach an address of this
	// machine; nil takes it as it is.
	Target func(host string, port int) sdk.Target
	// Way is what of a transport is tried out, one of Description.Ways; empty
	// means a plain connection. Any other needs Target and Hops.
	Way  string
	Hops Hops
}

// Transport runs the suite for transports against listeners on loopback.
func Transport(ctx context.Context, d Dialer, env TransportEnv) []Check {
	s := &suite{ctx: ctx}
	target := env.Target
	if target == nil {
		target = func(host string, port int) sdk.Target {
			return sdk.Target{Destination: host, Hop: sdk.Hop{ID: "target", Host: host, Port: port, User: "nobody"}}
		}
	}
	const greeting = "SSH-2.0-greeting\r\n"

	s.check("the stream is unread and carries both ways", func(ctx context.Context) error {
		port, end, err := listen(func(c net.Conn) error {
			if _, err := io.WriteString(c, greeting); err != nil {
				return err
			}
			_, err := io.Copy(c, c)
			return err
		})
		if err != nil {
			return skip(err.Error())
		}
		defer end()
		c, err := d.Dial(ctx, target("127.0.0.1", port))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, len(greeting))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != greeting {
			return fmt.Errorf("read %q (%v), the server said %q", b, err, greeting)
		}
		big := make([]byte, 1<<20)
		for i := range big {
			big[i] = byte(i * 7)
		}
		wrote := make(chan error, 1)
		go func() { // ends with c
			_, err := c.Write(big)
			wrote <- err
		}()
		back := make([]byte, len(big))
		if _, err := io.ReadFull(c, back); err != nil {
			return fmt.Errorf("reading back: %w", err)
		}
		if err := <-wrote; err != nil {
			return err
		}
		if string(back) != string(big) {
			return errors.New("what came back is not what was sent")
		}
		return nil
	})

	s.check("two streams do not meet", func(ctx context.Context) error {
		port, end, err := listen(func(c net.Conn) error {
			_, err := io.Copy(c, c)
			return err
		})
		if err != nil {
			return skip(err.Error())
		}
		defer end()
		for _, word := range []string{"one", "two"} {
			c, err := d.Dial(ctx, target("127.0.0.1", port))
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.WriteString(c, word); err != nil {
				return err
			}
			b := make([]byte, len(word))
			if _, err := io.ReadFull(c, b); err != nil || string(b) != word {
				return fmt.Errorf("read %q (%v), sent %q", b, err, word)
			}
		}
		return nil
	})

	s.check("the end of the server is the end of the stream", func(ctx context.Context) error {
		port, end, err := listen(func(c net.Conn) error { return nil })
		if err != nil {
			return skip(err.Error())
		}
		defer end()
		c, err := d.Dial(ctx, target("127.0.0.1", port))
		if err != nil && err.Error() != "" && ctx.Err() == nil {
			return nil // it noticed before there was a stream
		} else if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("read %d bytes, %v", n, err)
		}
		return nil
	})

	s.check("a refused port is an error in words", func(ctx context.Context) error {
		port, end, err := listen(func(net.Conn) error { return nil })
		if err != nil {
			return skip(err.Error())
		}
		end()
		c, err := d.Dial(ctx, target("127.0.0.1", port))
		if err == nil {
			c.Close()
			return errors.New("it connected to nobody")
		}
		if err.Error() == "" {
			return errors.New("the error has no words")
		}
		return nil
	})

	s.check("ends with its context", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return soon(func() {
			if c, err := d.Dial(ctx, target("127.0.0.1", 1)); err == nil {
				c.Close()
			}
		})
	})
	switch env.Way {
	case sdk.WayJumps:
		s.jumping(d, env)
	case sdk.WayProgram:
		s.running(d, env)
	}
	return s.checks
}

// listen serves connections on loopback until end, which waits for all of them.
func listen(serve func(net.Conn) error) (port int, end func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	done := make(chan struct{})
	go func() { // ends when l closes
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the client, which the check closes
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(30 * time.Second))
				_ = serve(c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, func() { l.Close(); <-done }, nil
}

// Hops is what the ways besides a plain connection are tried out with; package
// hops is one.
type Hops interface {
	Hops() []sdk.Hop
	Refuse(hop string)
	Logins(hop string) int
	Drop(hop string)
	LostAt(ctx context.Context) string
	Heard(ctx context.Context) string
}

// jumping holds what a transport owes its host at jump hosts.
func (s *suite) jumping(d Dialer, env TransportEnv) {
	echo := func(c net.Conn) error { _, err := io.Copy(c, c); return err }
	s.check("no hop is logged in to whose key is refused", func(ctx context.Context) error {
		port, end, err := listen(echo)
		if err != nil {
			return skip(err.Error())
		}
		defer end()
		hops := env.Hops.Hops()
		last := hops[len(hops)-1].ID
		before := env.Hops.Logins(last)
		env.Hops.Refuse(last)
		defer env.Hops.Refuse("")
		c, err := d.Dial(ctx, env.Target("127.0.0.1", port))
		if err == nil {
			c.Close()
			return errors.New("it went through a hop whose key was refused")
		}
		if n := env.Hops.Logins(last) - before; n > 0 {
			return fmt.Errorf("it tried to log in there %d times", n)
		}
		return nil
	})
	s.check("a hop that is lost ends the stream, and is named", func(ctx context.Context) error {
		port, end, err := listen(echo)
		if err != nil {
			return skip(err.Error())
		}
		defer end()
		c, err := d.Dial(ctx, env.Target("127.0.0.1", port))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		hops := env.Hops.Hops()
		last := hops[len(hops)-1].ID
		env.Hops.Drop(last)
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("the stream goes on: %v", err)
		}
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if at := env.Hops.LostAt(within); at != last {
			return fmt.Errorf("%q is named, %q was lost", at, last)
		}
		return nil
	})
}

// running holds what a transport owes its host about a program.
func (s *suite) running(d Dialer, env TransportEnv) {
	s.check("what a program says is passed on, and how it failed is said", func(ctx context.Context) error {
		t := env.Target("127.0.0.1", 1)
		t.Proxy.Command = "echo conformance-word >&2 && exit 9"
		t.Proxy.Command = "sh -c '" + t.Proxy.Command + "'"
		c, err := d.Dial(ctx, t)
		if err == nil {
			c.Close()
			return errors.New("it made a stream of a program that failed")
		}
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if said := env.Hops.Heard(within); !strings.Contains(said, "conformance-word") {
			return fmt.Errorf("the person heard %q", said)
		}
		if !strings.Contains(err.Error(), "9") {
			return fmt.Errorf("the exit status 9 is not in %q", err)
		}
		return nil
	})
	s.check("the end of the stream is the end of the program", func(ctx context.Context) error {
		gone := make(chan struct{})
		port, end, err := listen(func(c net.Conn) error {
			defer close(gone)
			_, err := io.Copy(c, c)
			return err
		})
		if err != nil {
			return skip(err.Error())
		}
		defer end()
		c, err := d.Dial(ctx, env.Target("127.0.0.1", port))
		if err != nil {
			return err
		}
		c.Close()
		return soon(func() { <-gone })
	})
}
