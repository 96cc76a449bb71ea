// Package hops is what the suite for transports goes through besides a plain
// connection: SSH servers on loopback that forward connections, and the
// transport's host that knows their keys, signs for them and hears what a
// transport tells.
//
// It must not know which transport is tried out, nor anything else of fleet.
package hops

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/plugins/sdk"
)

// user may log in to every hop.
const user = "conformance"

// Host is a transport's host with some jump hosts. It serves until Close.
type Host struct {
	sdk.NoTransportHost
	dir   string
	ring  agent.Agent
	list  []*hop
	agent net.Listener
	wg    sync.WaitGroup

	mu      sync.Mutex
	refused string
	said    []byte
	lost    string
	changed chan struct{} // closed when one of the two changed
}

// hop is one SSH server.
type hop struct {
	id     string
	l      net.Listener
	key    ssh.PublicKey
	config *ssh.ServerConfig

	mu     sync.Mutex
	conns  map[net.Conn]bool
	logins int
	closed bool
}

// New starts n jump hosts.
func New(n int) (_ *Host, err error) {
	h := &Host{ring: agent.NewKeyring(), changed: make(chan struct{})}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	// The path of a UNIX socket is short.
	if h.dir, err = os.MkdirTemp("/tmp", "fc"); err != nil {
		return nil, fmt.Errorf("cannot make a directory for sockets: %w", err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, err
	}
	if err := h.ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
		return nil, err
	}
	if h.agent, err = net.Listen("unix", filepath.Join(h.dir, "agent")); err != nil {
		return nil, err
	}
	h.wg.Go(h.sign)
	for i := range n {
		one, err := start(fmt.Sprintf("hop-%d", i+1), signer.PublicKey())
		if err != nil {
			return nil, err
		}
		h.list = append(h.list, one)
		h.wg.Go(func() { one.accept(&h.wg) })
	}
	return h, nil
}

// Close ends the jump hosts and every connection through them.
func (h *Host) Close() error {
	for _, one := range h.list {
		one.close()
	}
	if h.agent != nil {
		h.agent.Close()
	}
	h.wg.Wait()
	return os.RemoveAll(h.dir)
}

// Hops are the jump hosts, in the order in which they are gone through.
func (h *Host) Hops() []sdk.Hop {
	var out []sdk.Hop
	for _, one := range h.list {
		out = append(out, sdk.Hop{ID: one.id, Host: "127.0.0.1", Port: one.l.Addr().(*net.TCPAddr).Port, User: user})
	}
	return out
}

// Refuse has a hop's key refused from now on; "" has none.
func (h *Host) Refuse(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = id
}

// Logins is how many logins a hop has seen, also those that failed.
func (h *Host) Logins(id string) int {
	one := h.find(id)
	if one == nil {
		return 0
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.logins
}

// Drop closes every connection of a hop.
func (h *Host) Drop(id string) {
	if one := h.find(id); one != nil {
		one.drop()
	}
}

// LostAt waits until the transport has said at which hop a stream was lost.
func (h *Host) LostAt(ctx context.Context) string {
	return h.await(ctx, func() (string, bool) { return h.lost, h.lost != "" })
}

// Heard waits until the transport has passed on what a program wrote.
func (h *Host) Heard(ctx context.Context) string {
	return h.await(ctx, func() (string, bool) { return string(h.said), len(h.said) > 0 })
}

func (h *Host) await(ctx context.Context, get func() (string, bool)) string {
	for {
		h.mu.Lock()
		got, ok := get()
		changed := h.changed
		h.mu.Unlock()
		if ok {
			return got
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ""
		}
	}
}

func (h *Host) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Host) find(id string) *hop {
	for _, one := range h.list {
		if one.id == id {
			return one
		}
	}
	return nil
}

// HostKeyAlgorithms gives the one that the jump hosts have.
func (h *Host) HostKeyAlgorithms(_ context.Context, id string) ([]string, error) {
	if h.find(id) == nil {
		return nil, fmt.Errorf("%w: no hop %q", sdk.ErrInvalid, id)
	}
	return []string{ssh.KeyAlgoED25519}, nil
}

// VerifyHostKey accepts a hop's own key, unless it is to be refused.
func (h *Host) VerifyHostKey(_ context.Context, id string, key []byte, _ string) error {
	one := h.find(id)
	if one == nil {
		return fmt.Errorf("%w: no hop %q", sdk.ErrInvalid, id)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if id == h.refused || string(key) != string(one.key.Marshal()) {
		return fmt.Errorf("%w: the host key of %s is not confirmed", sdk.ErrDenied, id)
	}
	return nil
}

// AgentSocket gives the agent that signs for every hop.
func (h *Host) AgentSocket(_ context.Context, id string) (string, error) {
	if h.find(id) == nil {
		return "", fmt.Errorf("%w: no hop %q", sdk.ErrInvalid, id)
	}
	return h.agent.Addr().String(), nil
}

// maxSaid bounds what is kept of a program's words, in bytes.
const maxSaid = 64 << 10

// Output keeps what a program wrote.
func (h *Host) Output(_ context.Context, data []byte) {
	h.change(func() { h.said = append(h.said, data[:min(len(data), maxSaid-len(h.said))]...) })
}

// Lost keeps the hop.
func (h *Host) Lost(_ context.Context, id, _ string) {
	h.change(func() { h.lost = id })
}

// sign serves the agent. It ends when its listener does.
func (h *Host) sign() {
	for {
		c, err := h.agent.Accept()
		if err != nil {
			return
		}
		h.wg.Go(func() { // ends with its client, or in time
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_ = agent.ServeAgent(h.ring, c)
		})
	}
}

func start(id string, who ssh.PublicKey) (*hop, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, err
	}
	one := &hop{id: id, key: signer.PublicKey(), conns: map[net.Conn]bool{}}
	one.config = &ssh.ServerConfig{PublicKeyCallback: func(m ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		one.mu.Lock()
		one.logins++
		one.mu.Unlock()
		if m.User() != user || string(k.Marshal()) != string(who.Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	one.config.AddHostKey(signer)
	one.l, err = net.Listen("tcp", "127.0.0.1:0")
	return one, err
}

func (o *hop) close() {
	o.l.Close()
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.drop()
}

func (o *hop) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.conns {
		c.Close()
	}
}

// keep keeps a connection that the hop's end is to close.
func (o *hop) keep(c net.Conn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		c.Close()
		return false
	}
	o.conns[c] = true
	return true
}

func (o *hop) forget(c net.Conn) {
	c.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.conns, c)
}

// accept ends when the listener does.
func (o *hop) accept(wg *sync.WaitGroup) {
	for {
		c, err := o.l.Accept()
		if err != nil {
			return
		}
		if o.keep(c) {
			wg.Go(func() {
				defer o.forget(c)
				o.serve(c)
			})
		}
	}
}

// serve ends with the connection.
func (o *hop) serve(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	conn, channels, requests, err := ssh.NewServerConn(c, o.config)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = c.SetDeadline(time.Time{})
	go ssh.DiscardRequests(requests) // ends with the connection
	var wg sync.WaitGroup
	defer wg.Wait()
	for ch := range channels {
		// RFC 4254, 7.2
		var to struct {
			Host       string
			Port       uint32
			Origin     string
			OriginPort uint32
		}
		if ch.ChannelType() != "direct-tcpip" || ssh.Unmarshal(ch.ExtraData(), &to) != nil || to.Port > 65535 {
			_ = ch.Reject(ssh.UnknownChannelType, "only connections are forwarded")
			continue
		}
		wg.Go(func() {
			far, err := net.DialTimeout("tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))), 10*time.Second)
			if err != nil {
				_ = ch.Reject(ssh.ConnectionFailed, err.Error())
				return
			}
			if !o.keep(far) {
				_ = ch.Reject(ssh.ConnectionFailed, "the hop ends")
				return
			}
			defer o.forget(far)
			near, requests, err := ch.Accept()
			if err != nil {
				return
			}
			defer near.Close()
			go ssh.DiscardRequests(requests) // ends with the channel
			forward(near, far.(*net.TCPConn))
		})
	}
}

// forward copies both ways and passes half-closes on.
func forward(near ssh.Channel, far *net.TCPConn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(far, near)
		_ = far.CloseWrite()
	}()
	_, _ = io.Copy(near, far)
	_ = near.CloseWrite()
	<-done
}
