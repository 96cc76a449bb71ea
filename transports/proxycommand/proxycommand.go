// Package proxycommand is the transport whose way to a target is a program of
// the person's: its standard input and output are the stream (ssh_config's
// ProxyCommand).
//
// The program gets one end of a socket pair and the host the other, so that no
// byte passes through the plugin. The plugin stays for as long as the program
// does: it passes on what the program writes on standard error, says how it
// ended, and ends it when the host lets go. The program is in the plugin's
// process group and, on Linux, dies with the plugin, so that it is not left
// behind whoever is killed.
//
// It must not know SSH, keys or configuration files: the command comes with its
// tokens expanded.
package proxycommand

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// Describe says what the plugin is.
func Describe(version string) sdk.Description {
	return sdk.Description{Name: "proxycommand", Version: version, Ways: []string{sdk.WayProgram}, Summary: "connects to an SSH server through a program's standard input and output"}
}

const (
	// silence is how long a program may say nothing before the stream is handed
	// over: most that fail do so at once, and most servers speak first.
	silence = time.Second
	// endTime is how long a program that has closed its output may take to end.
	endTime = time.Second
	// hangupTime is how long a program may take to end after SIGHUP.
	hangupTime = 300 * time.Millisecond
)

// Transport is the transport. Its zero value is ready.
type Transport struct {
	mu      sync.Mutex
	closed  bool
	running map[*program]bool
}

// Dial starts the program.
func (t *Transport) Dial(ctx context.Context, th sdk.TransportHost, target sdk.Target) (net.Conn, error) {
	switch {
	case len(target.Jumps) > 0:
		return nil, fmt.Errorf("%w: the proxycommand transport uses no jump hosts", sdk.ErrUnsupported)
	case target.Proxy.Command == "":
		return nil, fmt.Errorf("%w: the proxycommand transport needs a proxy command", sdk.ErrUnsupported)
	}
	return t.Start(ctx, th, target.Hop.ID, target.Proxy, target.ConnectTimeout)
}

// Start starts a proxy command that leads to a hop. It returns once the program
// has said something, or was given time to: one that fails at once is an error
// here. Nothing of what it said has been read.
func (t *Transport) Start(ctx context.Context, th sdk.TransportHost, hop string, proxy sdk.Proxy, timeout time.Duration) (net.Conn, error) {
	p, conn, err := t.start(ctx, th, proxy)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (net.Conn, error) {
		conn.Close()
		t.end(p)
		return nil, err
	}
	wait := silence
	if timeout > 0 {
		wait = min(wait, timeout)
	}
	if proxy.PassesDescriptor {
		if timeout > 0 {
			wait = timeout
		} else {
			wait = passTime
		}
		passed, err := receive(ctx, conn, time.Now().Add(wait))
		if err != nil {
			return fail(p.explain(ctx, err))
		}
		conn.Close()
		t.mu.Lock()
		delete(t.running, p) // it has done its work and ends by itself, or with the plugin
		t.mu.Unlock()
		return passed, nil
	}
	switch err := firstByte(ctx, conn, time.Now().Add(wait)); {
	case err == nil, errors.Is(err, errSilent):
	default:
		return fail(p.explain(ctx, err))
	}
	p.after(func(how string) { th.Lost(context.Background(), hop, "the proxy command "+how) })
	return sdk.Needed{UnixConn: conn}, nil
}

// passTime bounds how long a program may take to pass a descriptor.
const passTime = 20 * time.Second

var errSilent = errors.New("it says nothing")

// Close hangs up on the programs that still run, and waits until they are gone.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	var all []*program
	for p := range t.running {
		all = append(all, p)
	}
	t.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range all {
		wg.Go(func() { t.end(p) })
	}
	wg.Wait()
	return nil
}

func (t *Transport) end(p *program) {
	p.hangUp()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, p)
}

func (t *Transport) add(p *program) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if t.running == nil {
		t.running = map[*program]bool{}
	}
	t.running[p] = true
	return true
}

// firstByte waits until there is something to read, and reads nothing. A stream
// that ended is io.EOF.
func firstByte(ctx context.Context, conn *net.UnixConn, until time.Time) error {
	return await(ctx, conn, until, func(fd uintptr) (bool, error) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
			return false, nil
		case err != nil:
			return true, err
		case n == 0:
			return true, errEnded
		}
		return true, nil
	})
}

var errEnded = errors.New("it closed its output")

// await calls try whenever conn is readable until it is done.
func await(ctx context.Context, conn *net.UnixConn, until time.Time, try func(fd uintptr) (bool, error)) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if err := conn.SetReadDeadline(until); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		_ = conn.SetReadDeadline(time.Time{})
	}()
	var tried error
	err = raw.Read(func(fd uintptr) bool {
		done, err := try(fd)
		tried = err
		return done
	})
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &timeout) && timeout.Timeout():
		return errSilent
	case err != nil:
		return err
	}
	return tried
}

// receive takes the descriptor that a program passes.
func receive(ctx context.Context, conn *net.UnixConn, until time.Time) (net.Conn, error) {
	b, oob := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
	var n, oobn int
	err := await(ctx, conn, until, func(fd uintptr) (bool, error) {
		var err error
		n, oobn, _, _, err = syscall.Recvmsg(int(fd), b, oob, syscall.MSG_DONTWAIT)
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
			return false, nil
		}
		return true, err
	})
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, errEnded
	}
	return connOf(oob[:oobn])
}
