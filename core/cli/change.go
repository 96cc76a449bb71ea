package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	ufcli "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func deleteCommand() *command.Command {
	return &command.Command{Name: "delete", Group: groupMachine, Args: "MACHINE…", Summary: "delete machines: their credentials are dead at once", Max: -1,
		Help: `The row goes, its installation id is free again, and the link here is forgotten.
The agent on the machine is told once it checks, stops checking, and waits for a
person; fleet uninstall also removes it there. A machine is named by its id or
its exact name; --all and selectors need --yes.`,
		Flags: append(append(command.JSONFlags(true), selectFlags()...),
			&ufcli.BoolFlag{Name: "all", Usage: "every machine"},
			&ufcli.BoolFlag{Name: "yes", Usage: "do not ask"},
			&ufcli.BoolFlag{Name: "dry-run", Usage: "name what would be deleted, and delete nothing"},
			&ufcli.IntFlag{Name: "parallel", Usage: "how many at once", Value: 16},
			&ufcli.IntFlag{Name: "max-failed", Usage: "stop after `N` failures; 0 means never"}),
		Run: runDelete}
}

func runDelete(ctx context.Context, c *command.Call) error {
	f, err := filterOf(c)
	if err != nil {
		return err
	}
	many := c.Bool("all") || selects(f)
	switch {
	case many && len(c.Args) > 0:
		return fault.Usagef("name machines or select them, not both")
	case !many && len(c.Args) == 0:
		return fault.Usagef("a MACHINE is missing").WithHint("usage: fleet delete MACHINE…")
	case c.Bool("all") && selects(f):
		return fault.Usagef("--all and a selector do not go together")
	case c.Int("parallel") < 1 || c.Int("max-failed") < 0:
		return fault.Usagef("--parallel takes a number from 1, --max-failed one from 0")
	case many && !c.Bool("yes") && !c.Bool("dry-run"):
		return fault.Usagef("deleting many machines needs --yes").WithHint("--dry-run names them")
	}
	p, client, err := operator.Plane(c)
	if err != nil {
		return err
	}
	defer client.Close()
	var machines []wire.Machine
	if many {
		list, err := client.Machines(ctx, f)
		if err != nil {
			return err
		}
		machines = list.Machines
	}
	for _, a := range c.Args {
		m, err := one(ctx, client, a, true)
		if err != nil {
			return errors.Join(err, forgetDeleted(ctx, p, err))
		}
		machines = append(machines, m)
	}
	sortMachines(machines)
	machines = slices.CompactFunc(machines, func(a, b wire.Machine) bool { return a.ID == b.ID })
	if c.Bool("dry-run") {
		return printMachines(c, wire.Machines{Schema: wire.SchemaMachines, Machines: machines})
	}
	return forEach(ctx, c, machines, func(ctx context.Context, m wire.Machine) error {
		if _, err := client.Delete(ctx, m.ID); err != nil {
			return err
		}
		_, err := p.RemoveLink(ctx, m.ID)
		return err
	}, "deleted")
}

// forgetDeleted drops the link of a machine that somebody else has deleted.
func forgetDeleted(ctx context.Context, p *state.Plane, err error) error {
	var gone *planeclient.DeletedError
	if !errors.As(err, &gone) {
		return nil
	}
	_, err = p.RemoveLink(ctx, gone.Deleted.Machine)
	return err
}

// forEach does a deed to every machine, several at once, and says for each how
// it went. One machine that was named fails as the command.
func forEach(ctx context.Context, c *command.Call, machines []wire.Machine, do func(context.Context, wire.Machine) error, done string) error {
	single := len(machines) == 1 && len(c.Args) == 1
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(max(c.Int("parallel"), 1))
	sum := wire.Summary{Schema: wire.SchemaSummary}
	var first error
	for _, m := range machines {
		group.Go(func() error {
			err := do(ctx, m)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				sum.Failed++
				if first == nil {
					first = err
				}
				if n := c.Int("max-failed"); n > 0 && sum.Failed >= n {
					stop()
				}
			} else {
				sum.OK++
			}
			return result(c, m, err, done, single)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if c.WantsJSON() && !single {
		if err := line(c, sum); err != nil {
			return err
		}
	}
	switch {
	case sum.Failed == 0:
		return nil
	case single:
		return first
	}
	return &command.Exit{Status: fault.Partial}
}

func result(c *command.Call, m wire.Machine, err error, done string, single bool) error {
	if c.WantsJSON() {
		if single && err != nil {
			return nil // the error document says it
		}
		r := wire.Result{Machine: m.ID, Name: m.Name, OK: err == nil}
		if f := fault.Of(err); f != nil {
			r.Exit, r.Error = f.Exit, &wire.CLIErrorDetail{Code: f.Code, Message: f.Msg, Hint: f.Hint, Exit: f.Exit}
		}
		return line(c, r)
	}
	if err == nil {
		_, err = fmt.Fprintf(c.Stdout, "%s  %s  %s\n", m.ID, clean(m.Name), done)
		return err
	}
	if !single {
		c.Notef("%s: %s", clean(m.Name), err)
	}
	return nil
}

// line prints one JSON Line.
func line(c *command.Call, v any) error {
	e := json.NewEncoder(c.Stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func renameCommand() *command.Command {
	return &command.Command{Name: "rename", Group: groupMachine, Args: "MACHINE NAME", Summary: "give a machine a name, which wins for ever over its own", Min: 2, Max: 2,
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			if err := wire.CheckName(c.Arg(1)); err != nil {
				return fault.Usagef("%q: %s", clean(c.Arg(1)), err)
			}
			return changed(ctx, c, func(p *planeclient.Client, m wire.Machine) (wire.Machine, error) {
				return p.Rename(ctx, m.ID, c.Arg(1))
			})
		}}
}

func labelCommand() *command.Command {
	return &command.Command{Name: "label", Group: groupMachine, Args: "MACHINE K=V… K-…", Summary: "set labels, or remove them with a dash", Min: 2, Max: -1,
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			req := wire.LabelRequest{Set: map[string]string{}}
			for _, a := range c.Args[1:] {
				k, v, set := strings.Cut(a, "=")
				switch {
				case set && wire.CheckName(k) == nil && wire.CheckLabelValue(v) == nil:
					req.Set[k] = v
				case !set && strings.HasSuffix(a, "-") && wire.CheckName(strings.TrimSuffix(a, "-")) == nil:
					req.Remove = append(req.Remove, strings.TrimSuffix(a, "-"))
				default:
					return fault.Usagef("label %q is neither KEY=VALUE nor KEY-", clean(a))
				}
			}
			return changed(ctx, c, func(p *planeclient.Client, m wire.Machine) (wire.Machine, error) { return p.Label(ctx, m.ID, req) })
		}}
}

// changed applies a change to the one machine that the first argument means,
// keeps the link's last known name, and shows the machine as it is now.
func changed(ctx context.Context, c *command.Call, do func(*planeclient.Client, wire.Machine) (wire.Machine, error)) error {
	p, client, err := operator.Plane(c)
	if err != nil {
		return err
	}
	defer client.Close()
	m, err := one(ctx, client, c.Arg(0), false)
	if err != nil {
		return err
	}
	if m, err = do(client, m); err != nil {
		return err
	}
	if err := p.UpdateLink(ctx, m.ID, func(l *state.Link) { l.Name = m.Name }); err != nil {
		return err
	}
	if c.WantsJSON() {
		m.Schema = wire.SchemaMachine
		return c.Print(m)
	}
	return describe(c.Stdout, m)
}
