package sdk

import (
	"context"
	"net"
	"time"
)

// Transport opens byte streams to SSH servers. It never speaks SSH to the
// target: the stream that it returns is unread.
type Transport interface {
	// Dial connects to the target. The returned connection belongs to the SDK,
	// which hands it to the host: a TCP or UNIX connection as a descriptor, so
	// that no byte passes through the plugin, anything else by copying.
	//
	// A *net.OpError's words reach the person as they are.
	Dial(ctx context.Context, th TransportHost, t Target) (net.Conn, error)
}

// Hop is one SSH server on the way.
type Hop struct {
	ID   string // names the hop in the calls of TransportHost
	Host string // a name or an address, without brackets
	Port int
	User string
}

// Target is where a transport is to connect to.
type Target struct {
	Destination    string // as the person wrote it
	Hop            Hop    // the target itself
	Jumps          []Hop  // before it, nearest first
	ProxyCommand   string // tokens expanded; empty if there is none
	AddressFamily  string // any | inet | inet6, as in ssh_config
	BindAddress    string
	ConnectTimeout time.Duration // 0: the context's deadline alone
}

// TransportHost is what a transport may ask of its host. Keys, trust and
// credentials stay there.
type TransportHost interface {
	// Resolve gives the effective client configuration of an alias.
	Resolve(ctx context.Context, alias string) (Resolved, error)
	// HostKeyAlgorithms gives the algorithms to offer to a hop, in order; empty
	// means that nothing is pinned.
	HostKeyAlgorithms(ctx context.Context, hop string) ([]string, error)
	// VerifyHostKey returns nil if the hop may have this key (SSH wire format).
	VerifyHostKey(ctx context.Context, hop string, key []byte, remote string) error
	// AgentSocket gives the path of a UNIX socket that speaks the agent protocol
	// and signs user authentication for that hop's user alone; empty means that
	// there is no agent for it.
	AgentSocket(ctx context.Context, hop string) (string, error)
	// Progress shows the person one line. It never fails and may do nothing.
	Progress(ctx context.Context, message string)
}

// Resolved is what an alias means.
type Resolved struct {
	Hop          Hop
	Jumps        []Hop
	ProxyCommand string
}
