// Package sshconn is one SSH connection to a host: its authentication, its
// host key and whether that key has been confirmed, and what fleet does over
// it (scripts, uploads, channels to UNIX sockets).
//
// The invariant (R2): until a host key is confirmed, nothing leaves for the
// host but the SSH handshake and the fixed read-only probes of Probe. Every
// other method asks `confirmed` first, so that no caller can forget to. A key
// that contradicts a pin ends the handshake; no method changes a pin except
// Confirm.
//
// The package knows nothing of planes or machines. How bytes reach the host is
// given to it as a function.
package sshconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshlogin"
)

// Dialer opens the byte stream that SSH is spoken over.
type Dialer func(ctx context.Context, c *sshconfig.Config) (net.Conn, error)

// Params are what a connection is made from.
type Params struct {
	Config *sshconfig.Config
	Dial   Dialer
	Pins   *hostkey.Store
	// Chain is the chain of the place that the host's key is pinned for: see
	// PlacesOf. Empty when it is dialled directly.
	Chain string
	// Patience bounds Dial where more is on the way than a connection; 0: what is
	// configured for one.
	Patience time.Duration
	// Anew leaves what is pinned for the host aside, for a person who is about
	// to pin what it presents now.
	Anew bool
	// Expected, where set, refuses the host's key whatever is pinned, before
	// anybody logs in.
	Expected func(m hostkey.Met) error
	// Notef takes what a person sees under -v. It may be nil.
	Notef func(format string, args ...any)
}

const (
	// dialTimeout bounds connecting where ConnectTimeout is not configured.
	dialTimeout = 20 * time.Second
	// handshakeTimeout bounds key exchange and authentication. A hardware key
	// may wait for a touch.
	handshakeTimeout = 60 * time.Second

	keepaliveEvery   = 30 * time.Second
	keepaliveTimeout = 15 * time.Second
)

// Conn is a connection to one host as one account. Its methods may be used
// from several goroutines.
type Conn struct {
	Config   *sshconfig.Config
	Place    hostkey.Place
	Key      ssh.PublicKey // what the host presented: a key, or a certificate over one
	Pinned   bool          // the key was pinned before this connection
	Evidence []hostkey.Evidence

	client    *ssh.Client
	stream    net.Conn // as the dialer gave it
	pins      *hostkey.Store
	notef     func(string, ...any)
	confirmed atomic.Bool
	keyed     chan struct{} // closed when keys were exchanged
	closed    chan struct{} // by Close
	ended     chan struct{} // when the connection has, for whatever reason
	closing   sync.Once
	wg        sync.WaitGroup

	rtt     time.Duration // the round trip, as the handshake showed it
	shellMu sync.Mutex
	idle    *shell

	params   Params // that it was made with
	siblings chan struct{}
	sessions sessions
	channels atomic.Int32 // to UNIX sockets, that were opened so far
}

// Dial connects, authenticates and compares the host key with the pins. A key
// that is not pinned yet is not an error here: see Pinned and Confirm.
func Dial(ctx context.Context, p Params) (c *Conn, err error) {
	err = sshlogin.Persist(ctx, func() error {
		c, err = dial(ctx, p)
		return err
	}, func(err error) bool {
		hung := new(sshlogin.HungUp)
		return errors.As(err, &hung)
	}, func(err error) {
		if p.Notef != nil {
			p.Notef("%v, asking again", err)
		}
	})
	return c, err
}

func dial(ctx context.Context, p Params) (*Conn, error) {
	c := &Conn{Config: p.Config, params: p, siblings: make(chan struct{}, maxSiblings), sessions: sessions{changed: make(chan struct{}, 1)}, pins: p.Pins, notef: p.Notef, keyed: make(chan struct{}), closed: make(chan struct{}),
		Place: hostkey.Place{Name: p.Config.HostKeyName(), Chain: p.Chain}}
	if c.notef == nil {
		c.notef = func(string, ...any) {}
	}
	peer, err := NewPeer(p.Config, c.Place, p.Pins, p.Anew, c.notef)
	if err != nil {
		return nil, err
	}
	defer peer.Close()
	peer.Expected = p.Expected
	login := &sshlogin.Login{Signers: peer.Keys}
	var keyErr error
	var keyed sync.Once // keys are exchanged again later
	conf := &ssh.ClientConfig{
		User: p.Config.User,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			keyed.Do(func() { close(c.keyed) })
			keyErr = peer.Judge(key)
			c.Key, c.Pinned, c.Evidence = key, peer.Pinned, peer.Evidence
			return keyErr
		},
		ClientVersion: "SSH-2.0-fleet",
		AuthCallback:  login.Next,
	}
	if err := honour(conf, p.Config); err != nil {
		return nil, err
	}
	if conf.HostKeyAlgorithms, err = peer.HostKeyAlgorithms(); err != nil {
		return nil, err
	}
	timeout := p.Patience
	if timeout <= 0 {
		timeout = p.Config.ConnectTimeout
	}
	if timeout <= 0 {
		timeout = dialTimeout
	}
	dialCtx, cancel := context.WithTimeout(ctx, timeout)
	raw, err := p.Dial(dialCtx, p.Config)
	if err != nil && errors.Is(dialCtx.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("no connection in %s", timeout)
	}
	cancel()
	if err != nil {
		return nil, unreachable(p.Config, err)
	}
	c.stream = raw
	greeting := &sshlogin.Door{Conn: gathered(promptly(raw))}
	watched := &paced{Conn: greeting}
	raw = watched
	if err := c.handshake(ctx, raw, conf, peer.auth); err != nil {
		raw.Close()
		if keyErr != nil {
			return nil, keyErr
		}
		return nil, c.atTheDoor(ctx, err, greeting)
	}
	c.rtt = watched.roundTrip()
	c.confirmed.Store(c.Pinned)
	c.ended = make(chan struct{})
	go func() { // ends with the connection, which Close ends
		c.client.Wait()
		close(c.ended)
	}()
	c.wg.Go(c.keepalive)
	return c, nil
}

func unreachable(c *sshconfig.Config, err error) error {
	if f := new(fault.Error); errors.As(err, &f) {
		return err
	}
	if c.ProxyCommand != "" && !strings.Contains(err.Error(), "proxy command") {
		err = fmt.Errorf("%w (over the proxy command %q)", err, c.ProxyCommand)
	}
	return fault.New(fault.Unreachable, "unreachable", "cannot reach %s: %w", c, err)
}

func (c *Conn) handshake(ctx context.Context, raw net.Conn, conf *ssh.ClientConfig, auth *auth) error {
	type result struct {
		conn  ssh.Conn
		chans <-chan ssh.NewChannel
		reqs  <-chan *ssh.Request
		err   error
	}
	done := make(chan result, 1)
	go func() { // ends with the handshake, which closing raw ends
		var r result
		r.conn, r.chans, r.reqs, r.err = ssh.NewClientConn(raw, net.JoinHostPort(c.Config.HostName, strconv.Itoa(c.Config.Port)), conf)
		done <- r
	}()
	// ConnectTimeout counts until keys are exchanged, as it does for ssh. Who
	// logs in after that may have to touch a key.
	limit := handshakeTimeout
	if t := c.Config.ConnectTimeout; t > 0 {
		limit = t
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	keyed := c.keyed
	var why error
	for why == nil {
		select {
		case r := <-done:
			if r.err != nil {
				return c.explain(r.err, auth)
			}
			c.client = ssh.NewClient(r.conn, r.chans, c.announced(r.reqs))
			return nil
		case <-keyed:
			keyed, limit = nil, handshakeTimeout
			timer.Reset(limit)
		case <-ctx.Done():
			why = context.Cause(ctx)
		case <-timer.C:
			why = fmt.Errorf("no SSH handshake in %s", limit)
		}
	}
	raw.Close()
	<-done
	if errors.Is(why, context.Canceled) {
		return why
	}
	return unreachable(c.Config, why)
}

// explain gives a failed handshake its exit code, and keeps SSH's own words.
func (c *Conn) explain(err error, auth *auth) error {
	text := strings.TrimPrefix(err.Error(), "ssh: handshake failed: ")
	switch {
	case sshlogin.Refused(err) != nil, sshlogin.TooManyKeys(err):
		return refused(c.Config, text, auth)
	case c.Lost() != nil:
		return c.Lost()
	case strings.Contains(text, "no common algorithm for host key"):
		return fault.New(fault.HostKey, "host_key_type", "%s: %s", c.Place, text).
			WithHint("the host no longer has a key of the pinned type: fleet trust HOST --fingerprint SHA256:… re-pins it")
	default:
		return unreachable(c.Config, errors.New(text))
	}
}

// refused is the error for a login that a server refused, in its own words.
func refused(c *sshconfig.Config, text string, auth *auth) error {
	text = strings.TrimPrefix(text, "ssh: handshake failed: ")
	f := fault.New(fault.Unreachable, "auth_failed", "cannot log in to %s: %s", c, text)
	if strings.Contains(text, sshlogin.TooMany) {
		return f.WithHint("the server hangs up before all keys were offered: name the right one with -i or IdentityFile, and it is offered first;\n" +
			"IdentitiesOnly yes keeps the ssh-agent's other keys back")
	}
	if hint := auth.hint(); hint != "" {
		return f.WithHint("%s", hint)
	}
	return f
}

// Refused gives the words with which a jump host refused a login their exit
// code and hint.
func (p *Peer) Refused(text string) error { return refused(p.Config, text, p.auth) }

// Lost says how the way to the host was lost, where that is known: at a jump
// host, or with a program that was the way. Otherwise it is nil.
func (c *Conn) Lost() error {
	if l, ok := c.stream.(interface{ Lost() error }); ok {
		return l.Lost()
	}
	return nil
}

// keepalive asks the host for a sign of life, and closes the connection if
// none comes in time. One question is under way at most.
func (c *Conn) keepalive() {
	every, patience := heartbeat(c.Config)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-c.closed:
			return
		case <-tick.C:
		}
		if !c.ProveAlive(patience) {
			return
		}
	}
}

// Close ends the connection and waits for what it started.
func (c *Conn) Close() error {
	var err error
	c.closing.Do(func() {
		close(c.closed)
		err = c.client.Close()
	})
	c.wg.Wait()
	return err
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.ended }

// ProveAlive asks the host for a sign of life, and closes the connection if
// none comes in the time given.
func (c *Conn) ProveAlive(within time.Duration) bool {
	answered := make(chan error, 1)
	go func() { // ends when the answer comes or the connection is closed
		_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	}()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case err := <-answered:
		if err == nil {
			return true
		}
	case <-timer.C:
		c.notef("no sign of life from %s in %s, closing the connection", c.Config, within)
	case <-c.closed:
	}
	c.client.Close()
	<-answered
	return false
}

// StillPinned reports whether the pins, as they are now, say of the host's key
// what they have to say for the connection to be used.
func (c *Conn) StillPinned() bool {
	pins, err := c.pins.Pins(c.Place)
	if err != nil {
		return false
	}
	ok, err := hostkey.Check(c.Place, pins, c.Key)
	return ok && err == nil
}

// Confirm records that a person confirmed the host's key, in the way given,
// and opens the connection for use.
func (c *Conn) Confirm(ctx context.Context, by string) error {
	if err := c.pins.Set(ctx, c.Place, hostkey.Plain(c.Key), by); err != nil {
		return err
	}
	c.confirmed.Store(true)
	return nil
}

// ErrUnconfirmed is returned by everything but Probe until the key is confirmed.
func (c *Conn) checkConfirmed() error {
	if c.confirmed.Load() {
		return nil
	}
	return Unconfirmed(c)
}

// Unconfirmed is the error for a host key that nobody confirmed.
func Unconfirmed(c *Conn) error { return UnconfirmedKey(c.Met()) }

// UnconfirmedKey is the error for a host key that nobody confirmed.
func UnconfirmedKey(m hostkey.Met) error {
	what := m.Place.String()
	if m.Jump {
		what = "jump host " + what
	}
	f := fault.New(fault.HostKey, "host_key_unknown", "host key unknown: %s: got %s", what, hostkey.Describe(m.Key))
	return f.WithHint("compare it with the host's own (ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub there), then give it:\n%s",
		shortType(hostkey.Plain(m.Key).Type()), m.Flag())
}

// Met is the host's key as it was met.
func (c *Conn) Met() hostkey.Met {
	return hostkey.Met{Place: c.Place, Key: c.Key, Evidence: c.Evidence, Host: c.Config.String(), Names: Names(c.Config)}
}

func shortType(t string) string {
	switch {
	case t == ssh.KeyAlgoED25519:
		return "ed25519"
	case t == ssh.KeyAlgoRSA:
		return "rsa"
	case strings.HasPrefix(t, "ecdsa-"):
		return "ecdsa"
	}
	return "*"
}
