package sdk

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	hostv1 "fleet.example/fleet/plugins/proto/fleet/host/v1"
	probev1 "fleet.example/fleet/plugins/proto/fleet/probe/v1"
	servicev1 "fleet.example/fleet/plugins/proto/fleet/service/v1"
	transportv1 "fleet.example/fleet/plugins/proto/fleet/transport/v1"
)

// Handshake is fixed for ever: a plugin of any age and a host of any age find
// out from it that they belong together, and only then which protocol they share.
var Handshake = plugin.HandshakeConfig{
	MagicCookieKey:   "FLEET_PLUGIN_COOKIE",
	MagicCookieValue: "d1c6a9a0fleetplugin",
}

// ProtocolVersion is go-plugin's number for version 1 of every kind.
const ProtocolVersion = 1

// MaxMessage bounds every message between a plugin and its host, in bytes.
const MaxMessage = 4 << 20

// EnvRunDir names the directory of one launch. The host makes it and both sides
// remove it: the host when it ends well, the plugin when the host does not.
const EnvRunDir = "FLEET_PLUGIN_RUN_DIR"

// Plugin is one plugin before it is served.
type Plugin struct {
	Description Description
	register    func(s *grpc.Server, a *attachment)
	close       func() error // nil: there is nothing to close
}

// Service is a service manager as a plugin.
func Service(d Description, m ServiceManager) Plugin {
	return Plugin{Description: d.complete(KindService), register: func(s *grpc.Server, a *attachment) {
		servicev1.RegisterServiceManagerServiceServer(s, serviceServer{m: m, a: a})
	}}
}

// ProbePlugin is a probe as a plugin.
func ProbePlugin(d Description, p Probe) Plugin {
	return Plugin{Description: d.complete(KindProbe), register: func(s *grpc.Server, a *attachment) {
		probev1.RegisterProbeServiceServer(s, probeServer{p: p, a: a})
	}}
}

// TransportPlugin is a transport as a plugin.
func TransportPlugin(d Description, t Transport) Plugin {
	p := Plugin{Description: d.complete(KindTransport), register: func(s *grpc.Server, a *attachment) {
		transportv1.RegisterTransportServiceServer(s, transportServer{t: t, a: a})
	}}
	if c, ok := t.(io.Closer); ok {
		p.close = c.Close
	}
	return p
}

// ServeService is the whole main of a service manager plugin.
func ServeService(d Description, m ServiceManager) { os.Exit(Service(d, m).Main(os.Args)) }

// ServeProbe is the whole main of a probe plugin.
func ServeProbe(d Description, p Probe) { os.Exit(ProbePlugin(d, p).Main(os.Args)) }

// ServeTransport is the whole main of a transport plugin.
func ServeTransport(d Description, t Transport) { os.Exit(TransportPlugin(d, t).Main(os.Args)) }

// Main runs the plugin's command line and returns the exit code: `describe`,
// `--version`, or serving, which ends when the host says so or is gone.
func (p Plugin) Main(args []string) int {
	return p.main(args, os.Stdout, os.Stderr)
}

func (p Plugin) main(args []string, stdout, stderr io.Writer) int {
	name := p.Description.FileName()
	if err := p.Description.Check(); err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", name, err)
		return 1
	}
	switch {
	case len(args) == 2 && args[1] == "describe":
		if err := p.Description.write(stdout); err != nil {
			fmt.Fprintf(stderr, "%s: cannot write: %s\n", name, err)
			return 1
		}
		return 0
	case len(args) == 2 && (args[1] == "--version" || args[1] == "version"):
		fmt.Fprintf(stdout, "%s %s\n", name, p.Description.Version)
		return 0
	case len(args) > 1:
		fmt.Fprintf(stderr, "%s: unknown arguments; it takes describe or --version\n", name)
		return 2
	case os.Getenv(Handshake.MagicCookieKey) != Handshake.MagicCookieValue:
		fmt.Fprintf(stderr, "%s is a plugin that fleet starts by itself. `%s describe` says what it is.\n", name, name)
		return 2
	}
	p.serve()
	if p.close != nil {
		_ = p.close() // the host has let go, and nobody is left to tell
	}
	return 0
}

var logger = hclog.NewNullLogger()

// Logger is the plugin's log, which its host writes into its own. It says
// nothing before the plugin is served.
func Logger() hclog.Logger { return logger }

func (p Plugin) serve() {
	logger = hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Debug, JSONFormat: true})
	if err := watchHost(); err != nil {
		logger.Error("cannot watch the host", "error", err)
		return
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake,
		VersionedPlugins: map[int]plugin.PluginSet{
			ProtocolVersion: {string(p.Description.Kind): served{p: p}},
		},
		Logger: hclog.NewNullLogger(), // go-plugin's own words about itself help nobody
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(MaxMessage))...)
		},
	})
}

// served is the go-plugin side of a Plugin.
type served struct {
	plugin.NetRPCUnsupportedPlugin
	p Plugin
}

func (s served) GRPCServer(b *plugin.GRPCBroker, g *grpc.Server) error {
	a := &attachment{dial: func(id uint32) (*grpc.ClientConn, error) {
		return b.DialWithOptions(id, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage)))
	}}
	hostv1.RegisterPluginServiceServer(g, a)
	s.p.register(g, a)
	return nil
}

func (served) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, ErrUnsupported
}
