// Package route is the host process's side of the way to a machine: it chooses
// the transport, tells it the hops, answers what it asks about each of them, and
// owns it for as long as the stream needs it.
//
// What holds, and why:
//
//   - A jump host's key is judged here, with the pins of its own place (name,
//     port, and the chain that leads there), in the order of the chain. One that
//     is not pinned is confirmed as a target's is, before the transport may log
//     in: the agent that signs for a hop signs nothing before its key was
//     accepted (R2). Without somebody to confirm it, it is refused.
//   - Keys stay here (R40). The transport gets a socket for each hop, in the
//     private directory of its launch, which is gone with the dial.
//   - A stream that needs its plugin owns it: closing the stream ends the plugin.
//   - Whatever goes wrong at a hop names the hop. What this process said itself
//     (a refused key) wins over what the transport made of it.
//
// It must not know planes or machines, nor how plugins are started.
package route

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/sshlogin"
	"fleet.example/fleet/plugins/sdk"
)

// Transport is a launched transport plugin.
type Transport interface {
	// Dial connects; a stream that is not detached ends with the plugin.
	Dial(ctx context.Context, t sdk.Target) (conn net.Conn, detached bool, err error)
	// Dir is a private directory that goes with the plugin.
	Dir() string
	Close() error
}

// Way is one way to a target.
type Way struct {
	Chain *sshconfig.Chain
	Pins  *hostkey.Store
	// Decide says what confirms the key of a jump host that is not pinned. Nil
	// refuses every such key.
	Decide func(ctx context.Context, m hostkey.Met) (by string, err error)
	// Expected, where set, refuses a host's key whatever is pinned.
	Expected func(m hostkey.Met) error
	// Loose accepts what Decide confirms for this dial, and pins nothing.
	Loose bool
	// Met is told of every jump host's key: what confirmed it ("" where it was
	// pinned before), or why it was refused. It may be nil.
	Met func(m hostkey.Met, by string, err error)
	// Launch starts a transport plugin by name.
	Launch func(ctx context.Context, name string, th sdk.TransportHost) (Transport, error)
	// Notef takes what a person sees under -v, Output what a program on the way
	// writes on its standard error, which they always see.
	Notef  func(format string, args ...any)
	Output io.Writer
}

// TransportName is the transport that a chain needs.
func TransportName(c *sshconfig.Chain) string {
	switch {
	case len(c.Jumps) > 0:
		return "proxyjump"
	case c.Target.ProxyCommand != "":
		return "proxycommand"
	}
	return "direct"
}

const targetID = "target"

// TargetOf is the chain as a transport is told of it.
func TargetOf(c *sshconfig.Chain) (sdk.Target, error) {
	t := sdk.Target{Destination: c.Target.Alias}
	first := c.First()
	for i, hop := range c.Hops() {
		h := sdk.Hop{ID: targetID, Host: hop.HostName, Port: hop.Port, User: hop.User, ConnectTimeout: hop.ConnectTimeout}
		if i == len(c.Jumps) {
			t.Hop = h
			continue
		}
		h.ID = fmt.Sprintf("jump-%d", i+1)
		var err error
		if h.KeyExchanges, h.Ciphers, h.MACs, err = sshconn.Algorithms(hop); err != nil {
			return t, err
		}
		t.Jumps = append(t.Jumps, h)
	}
	t.AddressFamily, t.BindAddress, t.ConnectTimeout = first.AddressFamily, first.BindAddress, first.ConnectTimeout
	if first.ProxyCommand != "" {
		t.Proxy = sdk.Proxy{Command: first.ProxyCommand, PassesDescriptor: first.ProxyFD, Environ: environ(c), Dir: c.Dir}
	}
	return t, nil
}

// environ is the person's environment with the agent that the configuration
// names, as ssh gives it to a proxy command.
func environ(c *sshconfig.Chain) []string {
	env := c.Environ
	if env == nil {
		env = os.Environ()
	}
	const agent = "SSH_AUTH_SOCK="
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, agent) })
	if sock := c.First().IdentityAgent; sock != "" {
		env = append(env, agent+sock)
	}
	return env
}

const (
	// hopTime bounds one hop: reaching it, and logging in with a key that may
	// wait for a touch.
	hopTime = 80 * time.Second
	// answerTime bounds how long a person may think about one key.
	answerTime = 5 * time.Minute
)

// Patience bounds a dial; 0 leaves it to what is configured for a connection.
func (w *Way) Patience() time.Duration {
	limit := time.Duration(0)
	for _, hop := range w.Chain.Jumps {
		limit += max(hopTime, hop.ConnectTimeout+hopTime)
		if w.Decide != nil {
			limit += answerTime
		}
	}
	return limit
}

// Dial opens the stream. It may have a method `Lost() error`, which says after
// its end where it was lost.
func (w *Way) Dial(ctx context.Context) (net.Conn, error) {
	target, err := TargetOf(w.Chain)
	if err != nil {
		return nil, err
	}
	h, err := newHost(w)
	if err != nil {
		return nil, err
	}
	t, err := w.Launch(ctx, TransportName(w.Chain), h)
	if err != nil {
		return nil, err
	}
	h.dir = t.Dir()
	conn, detached, err := t.Dial(ctx, target)
	h.close()
	if err != nil {
		err = h.explain(ctx, err)
	}
	if err != nil || detached {
		// What is detached is this process's own connection.
		if closeErr := t.Close(); closeErr != nil {
			w.Notef("cannot end the transport plugin: %v", closeErr)
		}
		return conn, err
	}
	return &stream{Conn: conn, host: h, transport: t, hungUp: make(chan struct{})}, nil
}

// stream is a stream that needs its plugin.
type stream struct {
	net.Conn
	host      *host
	transport Transport
	close     sync.Once
	hungUp    chan struct{}
	ended     atomic.Bool // as a read or a write showed
}

// After the end of a stream its reason may take so long to come. A transport
// that carries the bytes itself says it before the end; how a program ended is
// known when it has, and its last words are in.
const (
	lostTime    = 300 * time.Millisecond
	programTime = 5 * time.Second
)

// Read waits, at the end, for the reason of it.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if err != nil {
		s.endsWith(err)
	}
	return n, err
}

// Write does so too: whoever is told closes the stream, and then nobody can
// tell any more.
func (s *stream) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	if err != nil {
		s.endsWith(err)
	}
	return n, err
}

func (s *stream) endsWith(err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		s.ended.Store(true)
		s.settle()
	}
}

// settle waits for the reason of an end that is not this side's.
func (s *stream) settle() {
	patience := lostTime
	if s.ended.Load() && s.host.way.Chain.First().ProxyCommand != "" {
		patience = programTime
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.host.lost:
	case <-s.hungUp:
	case <-timer.C:
	}
}

// Lost says where a stream that failed was lost, or nil.
func (s *stream) Lost() error {
	s.settle()
	return s.host.lostAt()
}

// Close ends the stream and its plugin.
func (s *stream) Close() error {
	var err error
	s.close.Do(func() {
		close(s.hungUp)
		err = s.Conn.Close()
		if closeErr := s.transport.Close(); closeErr != nil {
			s.host.way.Notef("cannot end the transport plugin: %v", closeErr)
		}
	})
	return err
}

// explain gives a failed dial its words and exit code.
func (h *host) explain(ctx context.Context, err error) error {
	h.mu.Lock()
	failed, at, reason := h.failed, h.lostHop, h.reason
	h.mu.Unlock()
	target := h.way.Chain.Target
	switch {
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return err
	case at == nil:
		return err
	case at.peer != nil && (strings.Contains(reason, "Permission denied (") || strings.Contains(reason, sshlogin.TooMany)):
		return at.peer.Refused(reason)
	}
	if f := fault.Of(err); f != nil && strings.HasPrefix(f.Code, "plugin_") {
		return err
	}
	f := fault.New(fault.Unreachable, "unreachable", "cannot reach %s: %s: %s", target, at, reason)
	if sshlogin.SaysHungUp(reason) {
		f.Code = "hung_up"
		return f.WithHint("%s", sshlogin.Crowded)
	}
	if at.peer != nil && strings.Contains(reason, "administratively prohibited") {
		return f.WithHint("%s does not let connections through (AllowTcpForwarding, PermitOpen, or restrict in authorized_keys there)", at.peer.Config)
	}
	return f
}
