package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func deleteCommand() *command.Command {
	spec := fanout.Spec{Does: "delete", Several: true, Destructive: true}
	return &command.Command{Name: "delete", Group: groupMachine, Args: "MACHINE…|SELECTOR", Summary: "delete machines: their credentials are dead at once", Max: -1,
		Help: `The row goes, its installation id is free again, and the link here is forgotten.
The agent on the machine is told once it checks, stops checking, and waits for a
person; fleet uninstall also removes it there. A machine is named by its id or
its exact name; --all and selectors need --yes.`,
		Flags: append(command.JSONFlags(true), spec.Flags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			p, client, err := operator.Plane(c)
			if err != nil {
				return err
			}
			defer client.Close()
			machines, err := sel.Machines(ctx, c, func(ctx context.Context, _ *command.Call, word string) (fanout.Machine, error) {
				m, err := fanout.AtPlane(ctx, client, word, true)
				if err != nil && !c.Bool("dry-run") {
					err = errors.Join(err, forgetDeleted(ctx, p, err))
				}
				return fanout.Machine{ID: m.ID, Name: m.Name}, err
			})
			if err != nil {
				return err
			}
			return sel.Each(ctx, c, machines, func(ctx context.Context, o *fanout.One) (fanout.Outcome, error) {
				if _, err := client.Delete(ctx, o.ID); err != nil {
					return fanout.Outcome{}, err
				}
				_, err := p.RemoveLink(ctx, o.ID)
				return fanout.Outcome{Words: "deleted", Show: func(c *command.Call) error {
					_, err := fmt.Fprintf(c.Stdout, "%s  %s  deleted\n", o.ID, clean(o.Name))
					return err
				}}, err
			}, nil)
		}}
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

func renameCommand() *command.Command {
	return &command.Command{Name: "rename", Group: groupMachine, Args: "MACHINE NAME", Summary: "give a machine a name, which wins for ever over its own", Min: 2, Max: 2,
		Help:  "Names need not be unique; where another machine has the same one, that is said, and a command that\ntakes one MACHINE asks for the id.",
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			if err := fanout.CheckWord(c.Arg(0)); err != nil {
				return err
			}
			if err := wire.CheckName(c.Arg(1)); err != nil {
				return fault.Usagef("%q: %s", clean(c.Arg(1)), err)
			}
			p, client, err := operator.Plane(c)
			if err != nil {
				return err
			}
			defer client.Close()
			m, err := fanout.AtPlane(ctx, client, c.Arg(0), false)
			if err != nil {
				return err
			}
			if m, err = client.Rename(ctx, m.ID, c.Arg(1)); err != nil {
				return err
			}
			// The link keeps the last name that is known.
			if err := p.UpdateLink(ctx, m.ID, func(l *state.Link) { l.Name = m.Name }); err != nil {
				return err
			}
			// Said, not refused: machines suggest names for themselves, so that two
			// of one name exist anyway. The name is given, whether or not this can be told.
			if same, err := client.Machines(ctx, wire.MachineFilter{Match: m.Name}); err == nil {
				for _, other := range same.Machines {
					if other.Name == m.Name && other.ID != m.ID {
						c.Notef("fleet: %s is named %s, too; only the id tells them apart", other.ID, other.Name)
					}
				}
			}
			if c.WantsJSON() {
				m.Schema = wire.SchemaMachine
				return c.Print(m)
			}
			return describe(c.Stdout, m)
		}}
}

func labelCommand() *command.Command {
	spec := fanout.Spec{Does: "label", Trailing: true}
	return &command.Command{Name: "label", Group: groupMachine, Args: "MACHINE|SELECTOR K=V… K-…", Summary: "set labels, or remove them with a dash", Max: -1,
		Help:  "Where a selector or --all selects machines, no MACHINE stands before the labels.",
		Flags: append(command.JSONFlags(true), spec.Flags()...), Run: func(ctx context.Context, c *command.Call) error {
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			req, err := labelRequest(sel.Rest)
			if err != nil {
				return err
			}
			return onPlane(c, func(client *planeclient.Client) error {
				machines, err := sel.Machines(ctx, c, atPlane(client))
				if err != nil {
					return err
				}
				return sel.Each(ctx, c, machines, func(ctx context.Context, o *fanout.One) (fanout.Outcome, error) {
					m, err := client.Label(ctx, o.ID, req)
					if err != nil {
						return fanout.Outcome{}, err
					}
					m.Schema = wire.SchemaMachine
					return fanout.Outcome{Document: m, Words: "labelled", Show: func(c *command.Call) error { return describe(c.Stdout, m) }}, nil
				}, nil)
			})
		}}
}

func labelRequest(args []string) (wire.LabelRequest, error) {
	req := wire.LabelRequest{Set: map[string]string{}}
	if len(args) == 0 {
		return req, fault.Usagef("a label is missing: KEY=VALUE sets one, KEY- removes it")
	}
	for _, a := range args {
		k, v, set := strings.Cut(a, "=")
		switch {
		case set && wire.CheckName(k) == nil && wire.CheckLabelValue(v) == nil:
			req.Set[k] = v
		case !set && strings.HasSuffix(a, "-") && wire.CheckName(strings.TrimSuffix(a, "-")) == nil:
			req.Remove = append(req.Remove, strings.TrimSuffix(a, "-"))
		default:
			return req, fault.Usagef("label %q is neither KEY=VALUE nor KEY-", clean(a))
		}
	}
	return req, nil
}

// atPlane finds the machine that a word means among all that the plane knows.
func atPlane(client *planeclient.Client) fanout.Find {
	return func(ctx context.Context, _ *command.Call, word string) (fanout.Machine, error) {
		m, err := fanout.AtPlane(ctx, client, word, false)
		return fanout.Machine{ID: m.ID, Name: m.Name}, err
	}
}
