package hostcli

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
	"fleet.example/fleet/plugins/sdk/conformance/hops"
)

func pluginTestFlags() []cli.Flag {
	flags := append(command.JSONFlags(false), settings.SSHFlags()...)
	return append(append(flags, trustFlags()...),
		&cli.StringFlag{Name: "host", Usage: "run against `HOST` over SSH"},
		&cli.StringFlag{Name: "scope", Usage: "`SCOPE` of a service there: user or system"})
}

func runPluginTest(ctx context.Context, e *env) error {
	path, _, err := pluginPath(e)
	if err != nil {
		return err
	}
	o := install.Options{Host: e.call.String("host"), SSH: e.sshFlags(), Scope: e.call.String("scope"),
		Fingerprints: e.call.StringSlice("fingerprint"), Trust: e.call.String("trust")}
	var doc catalog.TestDoc
	switch {
	case o.Scope != "" && o.Scope != "user" && o.Scope != "system":
		return fault.Usagef("--scope is user or system, not %q", o.Scope)
	case o.Host != "":
		doc, err = e.testThere(ctx, path, o)
	case o.Scope != "" || o.Trust != "" || len(o.Fingerprints) > 0 || len(o.SSH.Args()) > 0:
		return fault.Usagef("--scope, --fingerprint, --trust and ssh's flags are about a machine, and --host names none")
	default:
		doc, err = e.testHere(ctx, path)
	}
	if err != nil {
		return err
	}
	return e.printTest(doc)
}

// testHere tries a plugin out on this machine and changes nothing.
func (e *env) testHere(ctx context.Context, path string) (catalog.TestDoc, error) {
	facts, err := localhost.Gather()
	if err != nil {
		return catalog.TestDoc{}, err
	}
	facts.Phase, facts.DataDir = sdk.PhaseUnconfirmed, facts.Home
	return e.catalog.Test(ctx, path, catalog.Ground{Host: &localhost.Host{F: facts}, Hops: jumpHosts, Relay: relay})
}

// testThere tries a plugin out on a machine over SSH.
func (e *env) testThere(ctx context.Context, path string, o install.Options) (catalog.TestDoc, error) {
	in, err := e.installer(nil, nil)
	if err != nil {
		return catalog.TestDoc{}, err
	}
	show := newProgress(e.call)
	defer show.done()
	in.Report, in.Notice, in.Sent = show.step, show.notice, show.sent
	if e.call.Interactive() && !e.call.WantsJSON() {
		in.Ask = show.ask(e.call)
	}
	t, err := in.Tryout(ctx, o)
	if err != nil {
		return catalog.TestDoc{}, err
	}
	defer t.Close()
	return e.catalog.Test(ctx, path, catalog.Ground{
		Name: o.Host, Host: t.Host(), Hops: jumpHosts, Relay: relay,
		Service: func(ctx context.Context) (env conformance.ServiceEnv, err error) {
			env.Host = t.Host()
			if env.Spec, err = t.Prepare(ctx); err != nil {
				return env, err
			}
			env.Live = true
			env.Write = func(f []sdk.File) error { return t.Write(ctx, f) }
			env.Remove = func(f []sdk.File) error { return t.Remove(ctx, f) }
			env.SetLatch = func(on bool) error { return t.SetLatch(ctx, on) }
			env.Facts, err = env.Host.Facts(ctx)
			return env, err
		},
		Clean: t.Clean,
		Reach: func(ctx context.Context, d conformance.Dialer) error {
			return t.Reach(ctx, d.Dial)
		},
	})
}

// jumpHosts are what a transport through jump hosts is tried out with.
func jumpHosts() (catalog.Hops, error) {
	h, err := hops.New(2)
	if err != nil {
		return nil, err // not h, which is a nil of its own type
	}
	return h, nil
}

// relay is this program as a proxy command.
func relay(host string, port int) string {
	self, err := os.Executable()
	if err != nil {
		self = "fleet-host"
	}
	return fmt.Sprintf("'%s' plugin relay '%s' %d", strings.ReplaceAll(self, "'", `'\''`), host, port)
}

// runRelay connects standard input and output with an address.
func runRelay(ctx context.Context, c *command.Call) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(c.Arg(0), c.Arg(1)))
	if err != nil {
		return fault.New(fault.Unreachable, "unreachable", "%w", err)
	}
	defer conn.Close()
	go func() { // ends with standard input, or with the process
		_, _ = io.Copy(conn, c.Stdin)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(c.Stdout, conn)
	return err
}

func (e *env) printTest(doc catalog.TestDoc) error {
	if e.call.WantsJSON() {
		if err := e.call.Print(doc); err != nil {
			return err
		}
	}
	failed := 0
	for _, k := range doc.Checks {
		if k.Status == "failed" {
			failed++
		}
		if e.call.WantsJSON() {
			continue
		}
		line := fmt.Sprintf("%-8s%s", k.Status, k.Name)
		if k.Detail != "" {
			line += ": " + k.Detail
		}
		if _, err := fmt.Fprintln(e.call.Stdout, line); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fault.New(fault.Failure, "plugin_nonconforming", "%d of %d checks failed", failed, len(doc.Checks))
	}
	return nil
}
