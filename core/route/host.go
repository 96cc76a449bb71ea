package route

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hopagent"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/plugins/sdk"
)

// host answers a transport's questions during one dial, and hears from it while
// its stream lives.
type host struct {
	way  *Way
	dir  string // for sockets
	hops map[string]*hop
	list []*hop

	judging sync.Mutex // one key at a time: a person may be asked

	mu      sync.Mutex
	done    bool  // the dial is over: nothing more is answered
	failed  error // the first key that was refused
	lostHop *hop
	reason  string
	lost    chan struct{} // closed when reason is set
}

// hop is a jump host, or the target, of which only its words are known here.
type hop struct {
	id   string
	peer *sshconn.Peer // nil for the target: its SSH is spoken elsewhere
	conf *sshconfig.Config

	mu       sync.Mutex
	accepted ssh.PublicKey
	agent    *hopagent.Server
}

func (h *hop) String() string {
	if h.peer != nil {
		return "jump host " + h.conf.String()
	}
	if h.conf.ProxyCommand != "" {
		return fmt.Sprintf("proxy command %q", h.conf.ProxyCommand)
	}
	return h.conf.String()
}

func (h *hop) key() ssh.PublicKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.accepted
}

func newHost(w *Way) (*host, error) {
	h := &host{way: w, hops: map[string]*hop{}, lost: make(chan struct{})}
	places := sshconn.PlacesOf(w.Chain)
	for i, c := range w.Chain.Jumps {
		p, err := sshconn.NewPeer(c, places[i], w.Pins, false, w.Notef)
		if err != nil {
			return nil, err
		}
		p.Jump, p.Expected = true, w.Expected
		one := &hop{id: fmt.Sprintf("jump-%d", i+1), peer: p, conf: c}
		h.list = append(h.list, one)
		h.hops[one.id] = one
	}
	h.hops[targetID] = &hop{id: targetID, conf: w.Chain.Target}
	return h, nil
}

// close ends what a dial needs: agents, and everything that is asked.
func (h *host) close() {
	h.mu.Lock()
	h.done = true
	h.mu.Unlock()
	for _, one := range h.list {
		one.mu.Lock()
		agent := one.agent
		one.mu.Unlock()
		if agent != nil {
			if err := agent.Close(); err != nil {
				h.way.Notef("cannot end the agent for %s: %v", one.conf, err)
			}
		}
		one.peer.Close()
	}
}

// jump finds a jump host by the name that the transport was given for it.
func (h *host) jump(id string) (*hop, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.hops[id]
	switch {
	case h.done:
		return nil, fmt.Errorf("%w: the dial is over", sdk.ErrDenied)
	case one == nil || one.peer == nil:
		return nil, fmt.Errorf("%w: %q is no jump host on this way", sdk.ErrInvalid, id)
	}
	return one, nil
}

// Resolve is not needed: what is to be dialled comes resolved.
func (h *host) Resolve(context.Context, string) (sdk.Resolved, error) {
	return sdk.Resolved{}, fmt.Errorf("%w: all hops were given with the target", sdk.ErrUnsupported)
}

func (h *host) HostKeyAlgorithms(_ context.Context, id string) ([]string, error) {
	one, err := h.jump(id)
	if err != nil {
		return nil, err
	}
	algorithms, err := one.peer.HostKeyAlgorithms()
	if err != nil {
		return nil, h.refuse(one, err)
	}
	return algorithms, nil
}

// refuse keeps what this process itself found wrong.
func (h *host) refuse(one *hop, err error) error {
	if f := fault.Of(err); f != nil && !strings.Contains(f.Msg, "jump host ") {
		err = &fault.Error{Code: f.Code, Exit: f.Exit, Msg: fmt.Sprintf("jump host %s: %s", one.conf, f.Msg), Hint: f.Hint}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == nil {
		h.failed = err
	}
	return err
}

func (h *host) VerifyHostKey(ctx context.Context, id string, wire []byte, _ string) error {
	one, err := h.jump(id)
	if err != nil {
		return err
	}
	key, err := ssh.ParsePublicKey(wire)
	if err != nil {
		return fmt.Errorf("%w: malformed host key", sdk.ErrInvalid)
	}
	h.judging.Lock()
	defer h.judging.Unlock()
	if before := one.key(); before != nil {
		if string(before.Marshal()) != string(key.Marshal()) {
			return h.refuse(one, errors.New("another host key than a moment ago"))
		}
		return nil
	}
	for _, nearer := range h.list {
		if nearer == one {
			break
		}
		if nearer.key() == nil {
			return fmt.Errorf("%w: %s comes first", sdk.ErrInvalid, nearer)
		}
	}
	by, err := h.judge(ctx, one, key)
	if h.way.Met != nil {
		h.way.Met(one.peer.Met(), by, err)
	}
	if err != nil {
		return h.refuse(one, err)
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.accepted = key
	return nil
}

// judge accepts a key that is pinned, or that is confirmed now.
func (h *host) judge(ctx context.Context, one *hop, key ssh.PublicKey) (by string, err error) {
	if err := one.peer.Judge(key); err != nil || one.peer.Pinned {
		return "", err
	}
	if h.way.Decide == nil {
		return "", sshconn.UnconfirmedKey(one.peer.Met())
	}
	if by, err = h.way.Decide(ctx, one.peer.Met()); err != nil {
		return "", err
	}
	if h.way.Loose {
		return by, nil
	}
	return by, one.peer.Confirm(ctx, by)
}

func (h *host) AgentSocket(_ context.Context, id string) (string, error) {
	one, err := h.jump(id)
	if err != nil {
		return "", err
	}
	path := filepath.Join(h.dir, "a"+strings.TrimPrefix(id, "jump-"))
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.agent == nil {
		if one.agent, err = hopagent.Listen(path, hopagent.Hop{User: one.conf.User, Keys: one.peer.Keys, Accepted: one.key,
			Refused: func(err error) { h.way.Notef("the agent for %s: %v", one.conf, err) }}); err != nil {
			return "", err
		}
	}
	return path, nil
}

func (h *host) Progress(_ context.Context, message string) { h.way.Notef("%s", message) }

func (h *host) Output(_ context.Context, data []byte) {
	if h.way.Output != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		_, _ = h.way.Output.Write(data) // they are only words
	}
}

// Lost keeps the first report: what fails behind it fails because of it.
func (h *host) Lost(_ context.Context, id, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.hops[id]
	if one == nil || h.lostHop != nil {
		return
	}
	h.lostHop, h.reason = one, reason
	close(h.lost)
}

func (h *host) lostAt() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lostHop == nil {
		return nil
	}
	return fault.New(fault.Unreachable, "connection_lost", "lost the way to %s: %s: %s", h.way.Chain.Target, h.lostHop, h.reason)
}

var _ sdk.TransportHost = (*host)(nil)
