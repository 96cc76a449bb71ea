package hostcli

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
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
	return e.catalog.Test(ctx, path, catalog.Ground{Host: &localhost.Host{F: facts}})
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
		Name: o.Host, Host: t.Host(),
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
