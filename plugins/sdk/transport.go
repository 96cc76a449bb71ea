package sdk

import (
	"context"
	"net"
	"time"
)

// Transport opens byte streams to SSH servers. It never speaks SSH to the
// target: the stream that it returns is unread.
//
// A Transport that is also an io.Closer is closed when the host ends the plugin.
type Transport interface {
	// Dial connects to the target. The returned connection belongs to the SDK,
	// which hands it to the host: a TCP or UNIX connection as a descriptor, so
	// that no byte passes through the plugin, anything else by copying. After a
	// TCP or UNIX connection the host ends the plugin, unless it is a Needed.
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
	// What to offer to the hop, in order, as OpenSSH names it; nil: whatever the
	// plugin has that is not weak.
	KeyExchanges, Ciphers, MACs []string
	// ConnectTimeout bounds connecting until keys are exchanged; 0: not configured.
	ConnectTimeout time.Duration
}

// Target is where a transport is to connect to. What stands after Jumps is
// about the hop that is dialled from here: the first jump host if there is any,
// else the target.
type Target struct {
	Destination    string // as the person wrote it
	Hop            Hop    // the target itself
	Jumps          []Hop  // before it, nearest first
	Proxy          Proxy
	AddressFamily  string // any | inet | inet6, as in ssh_config
	BindAddress    string
	ConnectTimeout time.Duration // 0: the context's deadline alone
}

// Proxy is a program whose standard input and output are the way to a hop.
type Proxy struct {
	Command string // for a shell, tokens expanded; empty if there is none
	// Environ and Dir are the person's, which the plugin itself does not get.
	Environ []string
	Dir     string
	// PassesDescriptor says that the program passes a connected descriptor on
	// its standard output and ends (ProxyUseFdpass).
	PassesDescriptor bool
}

// Needed is a connection that goes to the host as a descriptor although it
// needs the plugin: the host ends the plugin when it closes the connection.
type Needed struct{ *net.UnixConn }

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
	// Output shows the person what a program on the way wrote on its standard
	// error. Like Progress, it never fails.
	Output(ctx context.Context, data []byte)
	// Lost says at which hop a stream that was handed over was lost, and how.
	// The plugin calls it before it ends the stream.
	Lost(ctx context.Context, hop, reason string)
}

// Resolved is what an alias means.
type Resolved struct {
	Hop          Hop
	Jumps        []Hop
	ProxyCommand string
}
