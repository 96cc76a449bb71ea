package hostcli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func installCommand(b Build) *command.Command {
	flags := append(command.JSONFlags(true), settings.SSHFlags()...)
	flags = append(flags, trustFlags()...)
	return &command.Command{
		Name: "install", Group: "Machines", Args: "HOST", Summary: "install the agent on a machine over SSH, and link it", Min: 0, Max: 1,
		Help: `Steps: connect, host-key, platform, admit, upload, verify, credential, service,
first-check, match. It may be interrupted anywhere and run again.

A host key that is not pinned yet is shown and must be confirmed: by answering,
by --fingerprint, or by naming the evidence that counts with --trust.

With --hosts, each line of FILE is: HOST [fingerprint=SHA256:…] [name=NAME]
[label.KEY=VALUE]; results are JSON Lines with a summary.`,
		Flags: append(flags,
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the machine; it wins over what the machine suggests"},
			&cli.StringSliceFlag{Name: "label", Usage: "label `K=V`; may be given more than once"},
			&cli.StringFlag{Name: "scope", Usage: "`SCOPE` of the service: user or system"},
			&cli.StringFlag{Name: "service-manager", Usage: "service-manager plugin `NAME`", Value: "auto"},
			&cli.StringFlag{Name: "hosts", Usage: "install on every line of `FILE`, or - for standard input"},
			&cli.IntFlag{Name: "parallel", Usage: "how many at once, with --hosts", Value: 16},
		),
		Run: func(ctx context.Context, c *command.Call) error { return runInstall(ctx, b, c) },
	}
}

func trustFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "fingerprint", Usage: "the host key's `SHA256:…`, which confirms it; HOP=SHA256:… for a jump host"},
		&cli.StringFlag{Name: "trust", Usage: "`EVIDENCE` that confirms host keys, of jump hosts too: known_hosts or cert-authority"},
	}
}

func runInstall(ctx context.Context, b Build, c *command.Call) error {
	o := install.Options{Host: host(c), SSH: settings.SSH(c), Name: c.String("name"), Scope: c.String("scope"),
		Manager: c.String("service-manager"), Fingerprints: c.StringSlice("fingerprint"), Trust: c.String("trust")}
	var err error
	if o.Labels, err = labels(c.StringSlice("label")); err != nil {
		return err
	}
	many := c.String("hosts")
	if err := checkInstall(o, many); err != nil {
		return err
	}
	e, err := newEnv(b, c)
	if err != nil {
		return err
	}
	p, client, err := e.plane()
	if err != nil {
		return err
	}
	if many != "" {
		return installMany(ctx, e, p, client, o, many)
	}
	in, err := e.installer(p, client)
	if err != nil {
		return err
	}
	show := newProgress(c)
	in.Report, in.Notice, in.Sent = show.step, show.notice, show.sent
	if c.Interactive() && !c.WantsJSON() {
		in.Ask = show.ask(c)
	}
	doc, err := in.Install(ctx, o)
	show.done()
	if c.WantsJSON() {
		if printErr := c.Print(doc); printErr != nil {
			return printErr
		}
		return err
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Stdout, "%s  %s  %s\n", doc.Machine.ID, doc.Machine.Name, doc.Machine.Presence)
	return nil
}

func checkInstall(o install.Options, many string) error {
	switch {
	case o.Scope != "" && o.Scope != "user" && o.Scope != "system":
		return fault.Usagef("--scope is user or system, not %q", o.Scope)
	case o.Name != "" && wire.CheckName(o.Name) != nil:
		return fault.Usagef("--name %q: %s", o.Name, wire.ErrName)
	case many == "" && o.Host == "":
		return fault.Usagef("a HOST is missing").WithHint("usage: fleet install HOST")
	case many != "" && (o.Host != "" || o.Name != "" || len(o.Fingerprints) > 0):
		return fault.Usagef("--hosts takes hosts, names and fingerprints from its file, not from arguments")
	}
	return nil
}

func labels(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok || wire.CheckName(k) != nil || wire.CheckLabelValue(v) != nil {
			return nil, fault.Usagef("label %q is not of the form KEY=VALUE", a)
		}
		out[k] = v
	}
	return out, nil
}

// installMany installs on every host of a list, several at once, and prints a
// line for each.
func installMany(ctx context.Context, e *env, p *state.Plane, client *planeclient.Client, o install.Options, file string) error {
	f := e.call.Stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("cannot read the hosts: %w", err)
		}
		defer opened.Close()
		f = opened
	}
	hosts, err := parseHosts(f, o)
	if err != nil {
		return err
	}
	parallel := e.call.Int("parallel")
	if parallel < 1 {
		return fault.Usagef("--parallel is at least 1")
	}
	var mu sync.Mutex
	sum := wire.Summary{Schema: wire.SchemaSummary}
	lines := lineWriter{w: e.call.Stdout}
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, one := range hosts {
		group.Go(func() error {
			in, err := e.installer(p, client)
			if err != nil {
				return err
			}
			doc, err := in.Install(ctx, one)
			mu.Lock()
			defer mu.Unlock()
			sum.OK++
			if err != nil {
				sum.OK, sum.Failed = sum.OK-1, sum.Failed+1
				f := fault.Of(err)
				doc.Error = &wire.CLIErrorDetail{Code: f.Code, Message: f.Msg, Hint: f.Hint, Exit: f.Exit}
			}
			return lines.print(doc)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := lines.print(sum); err != nil {
		return err
	}
	switch {
	case sum.Failed == 0:
		return nil
	case sum.OK == 0 && len(hosts) == 1:
		return &command.Exit{Status: fault.Failure}
	}
	return &command.Exit{Status: fault.Partial}
}
