// Package proxyjump is the transport that reaches a target through any number
// of SSH servers (ssh_config's ProxyJump). It speaks the SSH of the hops and
// hands over the stream to the target unread.
//
// Of each hop it knows user, address and algorithms. Whether the hop's key is
// the right one the host decides, before anything but the handshake was sent
// there; the host also signs, through an agent that logs in to that hop and does
// nothing else. The stream lives in the plugin, which copies its bytes: when the
// host is gone, so is the plugin, and with it every connection.
//
// It must not know keys or configuration files.
package proxyjump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/sshlogin"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/transports/direct"
	"fleet.example/fleet/transports/proxycommand"
)

// Describe says what the plugin is.
func Describe(version string) sdk.Description {
	return sdk.Description{Name: "proxyjump", Version: version, Ways: []string{sdk.WayJumps}, Summary: "connects to an SSH server through other SSH servers"}
}

// maxJumps bounds how many hops one stream goes through.
const maxJumps = 16

// Transport is the transport. Its zero value is ready.
type Transport struct {
	command proxycommand.Transport

	mu     sync.Mutex
	closed bool
	open   map[*way]bool
}

// Dial logs in to one hop after the other, each through those before it.
func (t *Transport) Dial(ctx context.Context, th sdk.TransportHost, target sdk.Target) (net.Conn, error) {
	switch {
	case len(target.Jumps) == 0:
		return nil, fmt.Errorf("%w: the proxyjump transport needs a jump host", sdk.ErrUnsupported)
	case len(target.Jumps) > maxJumps:
		return nil, fmt.Errorf("%w: more than %d jump hosts", sdk.ErrInvalid, maxJumps)
	}
	w := &way{th: th, transport: t, jumps: target.Jumps}
	if !t.add(w) {
		return nil, net.ErrClosed
	}
	conn, at, err := w.dial(ctx, target)
	if err != nil {
		if hung := new(sshlogin.HungUp); errors.As(err, &hung) || errors.Is(err, io.EOF) {
			// What was behind a hop that is lost was lost with it.
			if hop, why, lost := w.lost(); lost {
				at, err = hop, errors.New(why)
			}
		}
		w.close()
		if ctx.Err() == nil {
			th.Lost(ctx, at.ID, oneLine(err.Error()))
		}
		return nil, fmt.Errorf("jump host %s: %w", name(at), err)
	}
	return &stream{Conn: conn, way: w}, nil
}

// dial returns the stream, or the hop at which it went wrong.
func (w *way) dial(ctx context.Context, target sdk.Target) (conn net.Conn, at sdk.Hop, err error) {
	at = target.Jumps[0]
	reach := func() (net.Conn, error) { return w.transport.first(ctx, w.th, target) }
	for i, hop := range target.Jumps {
		var client *ssh.Client
		err := sshlogin.Persist(ctx, func() error {
			conn, err := reach()
			if err != nil {
				return err
			}
			at = hop
			if client, err = w.login(ctx, hop, conn); err != nil {
				conn.Close()
			}
			return err
		}, func(err error) bool {
			// How a program took its end is the program's to say.
			hung := new(sshlogin.HungUp)
			return errors.As(err, &hung) && (i > 0 || target.Proxy.Command == "")
		}, func(err error) {
			w.th.Progress(ctx, fmt.Sprintf("jump host %s: %v, asking again", name(hop), err))
			if i > 0 {
				at = target.Jumps[i-1]
			}
		})
		if err != nil {
			return nil, at, err
		}
		w.add(client)
		next := target.Hop
		if i+1 < len(target.Jumps) {
			next = target.Jumps[i+1]
		}
		reach = func() (net.Conn, error) { return through(ctx, client, next) }
	}
	conn, err = reach()
	return conn, at, err
}

// first reaches the hop that is dialled from here.
func (t *Transport) first(ctx context.Context, th sdk.TransportHost, target sdk.Target) (net.Conn, error) {
	hop := target.Jumps[0]
	if target.Proxy.Command != "" {
		return t.command.Start(ctx, th, hop.ID, target.Proxy, target.ConnectTimeout)
	}
	return direct.Transport{}.Dial(ctx, th, sdk.Target{Hop: hop, AddressFamily: target.AddressFamily,
		BindAddress: target.BindAddress, ConnectTimeout: target.ConnectTimeout})
}

const (
	// connectTime bounds reaching a hop where nothing is configured.
	connectTime = 20 * time.Second
	// loginTime bounds logging in. A hardware key may wait for a touch.
	loginTime = 60 * time.Second
)

func patience(hop sdk.Hop) time.Duration {
	if hop.ConnectTimeout > 0 {
		return hop.ConnectTimeout
	}
	return connectTime
}

// through opens a channel from one hop to the next.
func through(ctx context.Context, client *ssh.Client, next sdk.Hop) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience(next), fmt.Errorf("no answer in %s", patience(next)))
	defer cancel()
	conn, err := client.DialContext(ctx, "tcp", address(next))
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("cannot connect from there to %s: %w", address(next), err)
	}
	return conn, nil
}

func address(h sdk.Hop) string { return net.JoinHostPort(h.Host, strconv.Itoa(h.Port)) }

func name(h sdk.Hop) string { return h.User + "@" + address(h) }

// Close ends all streams.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	var all []*way
	for w := range t.open {
		all = append(all, w)
	}
	t.mu.Unlock()
	for _, w := range all {
		w.close()
	}
	return t.command.Close()
}

func (t *Transport) add(w *way) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if t.open == nil {
		t.open = map[*way]bool{}
	}
	t.open[w] = true
	return true
}
