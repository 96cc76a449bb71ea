package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
		if err != nil {
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
