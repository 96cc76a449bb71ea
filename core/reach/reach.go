// Package reach opens byte streams to the agent of a machine over an SSH
// connection: a channel to its UNIX socket, or, where the server refuses such
// channels, a bridge program on the machine that speaks to the socket for us.
// It also mints the API tokens that every request there needs; they live in
// this process's memory and are never written down (R31).
//
// It knows the agent's two sockets, not what is said over them.
package reach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// Agent is the agent of one installation behind one connection. Its methods
// may be used from several goroutines.
type Agent struct {
	conn  *sshconn.Conn
	dirs  place.Dirs
	notef func(string, ...any)

	mu     sync.Mutex
	bridge bool // channels to UNIX sockets are refused
}

// New returns the agent behind a connection.
func New(c *sshconn.Conn, d place.Dirs, notef func(string, ...any)) *Agent {
	return &Agent{conn: c, dirs: d, notef: notef}
}

// dialTimeout bounds the opening of one stream.
const dialTimeout = 20 * time.Second

// Dial opens a stream to the agent's API socket.
func (a *Agent) Dial(ctx context.Context) (net.Conn, error) { return a.dial(ctx, place.AgentSocket) }

func (a *Agent) dial(ctx context.Context, socket string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	a.mu.Lock()
	bridge := a.bridge
	a.mu.Unlock()
	if !bridge {
		at := path.Join(a.dirs.Runtime, socket)
		conn, err := a.conn.DialUnix(ctx, at)
		var refused *ssh.OpenChannelError
		if err == nil || !errors.As(err, &refused) {
			return conn, err
		}
		// A refused channel says the same whether the socket is missing or the
		// server forbids it, so the machine is asked.
		if err := a.running(ctx, socket); err != nil {
			return nil, err
		}
		// The socket may have come between the two questions.
		if conn, err = a.conn.DialUnix(ctx, at); err == nil {
			return conn, nil
		}
		why, err := a.conn.WhyRefused(ctx, at, err)
		switch {
		case err != nil:
			return nil, err
		case why == sshconn.RefusedMissing:
			return nil, a.down()
		case why == sshconn.RefusedExhausted:
			// For this stream only: others may end.
			a.notef("the SSH server opens no more channels on this connection (%s), using a bridge", refused.Message)
		default:
			a.notef("the SSH server refuses channels to UNIX sockets (%s: %s), using a bridge", why, refused.Message)
			a.mu.Lock()
			a.bridge = true
			a.mu.Unlock()
		}
	}
	s := sshconn.Script{Args: []string{a.dirs.Data}, Body: `exec "$1/current/agentd" bridge --data "$1"`}
	if socket == place.MintSocket {
		s.Body += " --mint"
	}
	return a.conn.Stream(ctx, s)
}

// Bridged reports whether each stream is a program that runs on the machine.
func (a *Agent) Bridged() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bridge
}

// running tells why no socket is there, or returns nil if one is.
func (a *Agent) running(ctx context.Context, socket string) error {
	r, err := a.conn.Run(ctx, sshconn.Script{Args: []string{a.dirs.Data, path.Join(a.dirs.Runtime, socket)}, Body: `
[ -d "$1" ] || exit 10
[ -e "$1/latch" ] && exit 11
[ -S "$2" ] || exit 12
true`})
	if err != nil {
		return err
	}
	switch r.Exit {
	case 0:
		return nil
	case 10:
		return fault.New(fault.NotFound, "not_installed", "no agent is installed for %s", a.conn.Config).WithHint("fleet install HOST")
	case 11:
		return fault.New(fault.Refused, "stopped", "the agent at %s was stopped by a person", a.conn.Config).WithHint("fleet start MACHINE")
	default:
		return a.down()
	}
}

func (a *Agent) down() error {
	return fault.New(fault.Unreachable, "agent_down", "the agent at %s does not run", a.conn.Config).WithHint("fleet start MACHINE, or look at its service's log there")
}

// Mint asks the agent for an API token.
func (a *Agent) Mint(ctx context.Context, workspace string) (secret.Text, error) {
	body, err := json.Marshal(wire.TokenMint{Workspace: workspace})
	if err != nil {
		return secret.Text{}, err
	}
	client := &http.Client{Timeout: dialTimeout, Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return a.dial(ctx, place.MintSocket) },
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+wire.PathTokens, bytes.NewReader(body))
	if err != nil {
		return secret.Text{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		var f *fault.Error
		if errors.As(err, &f) {
			return secret.Text{}, f
		}
		return secret.Text{}, fault.New(fault.Unreachable, "agent_down", "cannot mint a token at %s: %w", a.conn.Config, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return secret.Text{}, fmt.Errorf("cannot mint a token at %s: %w", a.conn.Config, err)
	}
	var minted wire.TokenMinted
	if resp.StatusCode/100 != 2 || json.Unmarshal(b, &minted) != nil || minted.Token == "" {
		return secret.Text{}, fault.New(fault.Refused, "no_token", "the agent at %s mints no token: %s", a.conn.Config, resp.Status)
	}
	return secret.Of(minted.Token), nil
}
