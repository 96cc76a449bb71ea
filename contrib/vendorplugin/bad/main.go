// Command bad is a vendor's plugin that does everything wrong, for the tests of
// the catalog and of the conformance suites. Its name says which way:
// fleet-probe-bad-hang, fleet-service-bad-litter and so on.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"fleet.example/fleet/plugins/sdk"
)

func main() {
	if name, ok := strings.CutPrefix(filepath.Base(os.Args[0]), "fleet-service-"); ok {
		sdk.ServeService(sdk.Description{Name: name, Version: "6.6.6", Summary: "does it wrong"}, service{way: strings.TrimPrefix(name, "bad-")})
		return
	}
	name := strings.TrimPrefix(filepath.Base(os.Args[0]), "fleet-probe-")
	way := strings.TrimPrefix(name, "bad-")
	describing := len(os.Args) > 1 && os.Args[1] == "describe"
	if rest, ok := strings.CutPrefix(way, "describe-"); ok {
		if describing {
			fail(rest)
		}
	} else if !describing {
		fail(way)
	}
	sdk.ServeProbe(sdk.Description{Name: name, Version: "6.6.6", Summary: "does it wrong"}, probe{way})
}

// fail does what goes wrong before anything is served; other ways return.
func fail(way string) {
	switch way {
	case "hang":
		forever()
	case "deaf": // hangs, and will not be asked to end
		signal.Ignore(syscall.SIGTERM)
		forever()
	case "crash":
		panic("licence server not found")
	case "exit":
		fmt.Fprintln(os.Stderr, "configuration missing")
		os.Exit(7)
	case "quiet":
		os.Exit(0)
	case "garbage":
		fmt.Println("Welcome to Acme!")
		forever()
	case "flood":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("x", 4096)); err != nil {
				os.Exit(1)
			}
		}
	case "future": // speaks a protocol that nobody knows yet
		plugin.Serve(&plugin.ServeConfig{
			HandshakeConfig:  sdk.Handshake,
			VersionedPlugins: map[int]plugin.PluginSet{99: {"probe": nothing{}}},
			GRPCServer:       plugin.DefaultGRPCServer,
		})
		os.Exit(0)
	case "socket": // names a socket where nobody listens
		fmt.Println("1|1|unix|/nonexistent/socket|grpc")
		forever()
	case "eat":
		go func() { _, _ = io.Copy(io.Discard, os.Stdin) }()
	case "children": // whose descendants keep its pipes open
		for range 2 {
			c := exec.Command("sleep", "600")
			c.Stdout, c.Stderr = os.Stdout, os.Stderr
			_ = c.Start()
		}
	}
}

func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

type nothing struct{ plugin.NetRPCUnsupportedPlugin }

func (nothing) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

func (nothing) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, sdk.ErrUnsupported
}

// probe goes wrong once it is asked.
type probe struct{ way string }

func (probe) Codes() []string { return []string{"bad.thing"} }

func (p probe) Probe(ctx context.Context, h sdk.Host) ([]sdk.Finding, error) {
	switch p.way {
	case "call-hang":
		forever()
	case "call-crash":
		panic("nil licence")
	case "call-kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		forever()
	case "call-unlisted":
		return []sdk.Finding{{Code: "bad.other", Detail: "x", Remedy: "y"}}, nil
	case "call-escape":
		return []sdk.Finding{{Code: "bad.thing", Detail: "\x1b[2Jx", Remedy: "y"}}, nil
	case "call-undescribed":
		_, err := h.Run(ctx, sdk.Command{Argv: []string{"id"}})
		return nil, err
	}
	return []sdk.Finding{{Code: "bad.thing", Severity: sdk.SeverityWarn, Detail: "something", Remedy: "nothing"}}, nil
}
