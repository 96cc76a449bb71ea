package hostcli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/remote"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/sdk"
)

func testCommand(b Build) *command.Command {
	return &command.Command{
		Name: "test", Group: "Machines", Args: "HOST", Summary: "look at what an install would meet, and change nothing", Min: 1, Max: 1,
		Help: `Exit 0: an install can go on from here, once the host key is confirmed.
Exit 9: a step failed, and its remedy is shown.

The target's key need not be confirmed yet. A jump host's must be, since fleet
logs in there: one that is not pinned ends the test with exit 6, unless
--fingerprint HOP=SHA256:… or --trust speaks for it. The test pins neither.`,
		Flags: append(append(append(command.JSONFlags(false), settings.SSHFlags()...), trustFlags()...),
			&cli.StringFlag{Name: "scope", Usage: "`SCOPE` of the service: user or system"}),
		Run: func(ctx context.Context, c *command.Call) error { return runTest(ctx, b, c) },
	}
}

func runTest(ctx context.Context, b Build, c *command.Call) error {
	if s := c.String("scope"); s != "" && s != "user" && s != "system" {
		return fault.Usagef("--scope is user or system, not %q", s)
	}
	if err := checkSSH(c, host(c)); err != nil {
		return err
	}
	e, err := newEnv(b, c)
	if err != nil {
		return err
	}
	in, err := e.installer(nil, nil)
	if err != nil {
		return err
	}
	if !c.WantsJSON() {
		in.Report = func(s wire.Step) {
			fmt.Fprintf(c.Stdout, "%-16s %-8s %5d ms  %s\n", s.Name, s.Status, s.MS, s.Detail)
			if s.Remedy != "" {
				fmt.Fprintf(c.Stdout, "%36s%s\n", "", strings.ReplaceAll(s.Remedy, "\n", "\n"+strings.Repeat(" ", 36)))
			}
		}
	}
	by := install.Confirmation{Fingerprints: c.StringSlice("fingerprint"), Trust: c.String("trust")}
	doc, err := in.Test(ctx, host(c), settings.SSH(c), by, c.String("scope"), e.runProbes)
	if c.WantsJSON() {
		if perr := c.Print(doc); perr != nil {
			return perr
		}
	}
	return err
}

// runProbes runs the probe plugins that are here over a host.
func (e *env) runProbes(ctx context.Context, h *remote.Host) (map[string][]sdk.Finding, error) {
	names, err := e.catalog.Named(sdk.KindProbe)
	if err != nil {
		return nil, err
	}
	out := map[string][]sdk.Finding{}
	var problems []error
	for _, name := range names {
		p, err := e.catalog.LaunchProbe(ctx, name)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		found, err := p.Probe(ctx, h.For(p.Description()))
		if err != nil {
			problems = append(problems, fmt.Errorf("probe %s cannot tell: %w", name, err))
		}
		out[name] = found
		problems = append(problems, p.Close())
	}
	return out, errors.Join(problems...)
}
