package hostcli

import (
	"context"
	"fmt"
	"sync"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// deed is what update, rollback and uninstall do to one linked machine.
type deed func(in *install.Env, ctx context.Context, l state.Link) (*wire.Install, error)

func updateCommand(b Build) *command.Command {
	return onMachines(b, "update", "bring machines to the artifact that this fleet has", `The former version stays on the machine for fleet rollback. A machine whose
sessions run is left alone and reported as deferred. If the new version does not
check in, the former one comes back by itself.`, true, (*install.Env).Update)
}

func rollbackCommand(b Build) *command.Command {
	return onMachines(b, "rollback", "bring machines back to the version before the last update", "", true, (*install.Env).Rollback)
}

func uninstallCommand(b Build) *command.Command {
	return onMachines(b, "uninstall", "stop and remove the agent, its service and files, and delete the machine",
		"The machine is named by its id or its exact name.", false, (*install.Env).Uninstall)
}

func onMachines(b Build, name, summary, help string, prefix bool, do deed) *command.Command {
	return &command.Command{
		Name: name, Group: "Machines", Args: "MACHINE…", Summary: summary, Help: help, Min: 1, Max: -1,
		Flags: append(command.JSONFlags(true), &cli.IntFlag{Name: "parallel", Usage: "how many at once", Value: 16}),
		Run: func(ctx context.Context, c *command.Call) error {
			e, err := newEnv(b, c)
			if err != nil {
				return err
			}
			p, client, err := e.plane()
			if err != nil {
				return err
			}
			links, err := e.linksOf(p, c.Args, prefix)
			if err != nil {
				return err
			}
			in, err := e.installer(p, client)
			if err != nil {
				return err
			}
			if len(links) == 1 {
				return e.doOne(ctx, in, links[0], name, do)
			}
			return e.doMany(ctx, in, links, do)
		},
	}
}

// linksOf finds the links of the machines that were named.
func (e *env) linksOf(p *state.Plane, names []string, prefix bool) ([]state.Link, error) {
	all, err := p.Links()
	if err != nil {
		return nil, err
	}
	var out []state.Link
	for _, n := range names {
		l, found, err := state.FindLink(all, n)
		if err != nil {
			return nil, err
		}
		if !found || !prefix && l.Machine != n && l.Name != n {
			return nil, fault.New(fault.NotFound, "no_destination", "no SSH destination is known for %q", n).WithHint("fleet host link %s HOST", n)
		}
		out = append(out, l)
	}
	return out, nil
}

func (e *env) doOne(ctx context.Context, in *install.Env, l state.Link, name string, do deed) error {
	show := newProgress(e.call)
	in.Report, in.Notice = show.step, show.notice
	doc, err := do(in, ctx, l)
	show.done()
	if e.call.WantsJSON() {
		if perr := e.call.Print(doc); perr != nil {
			return perr
		}
		return err
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(e.call.Stdout, "%s  %s  %s done\n", l.Machine, l.Name, name)
	return nil
}

func (e *env) doMany(ctx context.Context, in *install.Env, links []state.Link, do deed) error {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(max(e.call.Int("parallel"), 1))
	sum := wire.Summary{Schema: wire.SchemaSummary}
	lines := lineWriter{w: e.call.Stdout}
	for _, l := range links {
		group.Go(func() error {
			one := *in
			_, err := do(&one, ctx, l)
			res := wire.Result{Machine: l.Machine, Name: l.Name, OK: err == nil}
			if err != nil {
				f := fault.Of(err)
				res.Exit = f.Exit
				res.Error = &wire.CLIErrorDetail{Code: f.Code, Message: f.Msg, Hint: f.Hint, Exit: f.Exit}
			}
			mu.Lock()
			defer mu.Unlock()
			if sum.OK++; err != nil {
				sum.OK, sum.Failed = sum.OK-1, sum.Failed+1
			}
			if e.call.WantsJSON() {
				return lines.print(res)
			}
			if err != nil {
				e.call.Notef("%s: %s", l.Name, err)
				return nil
			}
			_, werr := fmt.Fprintf(e.call.Stdout, "%s  %s  done\n", l.Machine, l.Name)
			return werr
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if e.call.WantsJSON() {
		if err := lines.print(sum); err != nil {
			return err
		}
	}
	if sum.Failed > 0 {
		return &command.Exit{Status: fault.Partial}
	}
	return nil
}

func linkCommand(b Build) *command.Command {
	return &command.Command{
		Name: "link", Args: "MACHINE HOST", Summary: "record which SSH destination reaches a machine", Min: 2, Max: 2, Hidden: true,
		Help: `The link is written once three facts agree: the account that SSH authenticated, the
pinned host key, and the row that the plane has for the agent there.`,
		Flags: append(command.JSONFlags(false), settings.SSHFlags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			e, err := newEnv(b, c)
			if err != nil {
				return err
			}
			p, client, err := e.plane()
			if err != nil {
				return err
			}
			in, err := e.installer(p, client)
			if err != nil {
				return err
			}
			found, err := client.Machines(ctx, wire.MachineFilter{Match: c.Arg(0)})
			if err != nil {
				return err
			}
			if len(found.Machines) != 1 {
				return fault.New(fault.NotFound, wire.CodeNotFound, "%q names %d machines", c.Arg(0), len(found.Machines))
			}
			l, err := in.Link(ctx, found.Machines[0].ID, c.Arg(1), e.sshFlags())
			if err != nil {
				return err
			}
			if c.WantsJSON() {
				return c.Print(l)
			}
			fmt.Fprintf(c.Stdout, "%s  %s  %s\n", l.Machine, l.Name, l.Host)
			return nil
		},
	}
}
