package hostcli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// deed is what update, rollback and uninstall do to one linked machine.
type deed func(in *install.Env, ctx context.Context, l state.Link) (*wire.Install, error)

func updateCommand(b Build) *command.Command {
	cmd := onMachines(b, "update", "bring machines to the artifact that this fleet has", `The former version stays on the machine for fleet rollback. A machine whose
sessions run is left alone and reported as deferred; --wait waits for their end. If
the new version does not check in, the former one comes back by itself.

Without being asked, the process that shares connections (fleet help mux) updates a
machine that you connect to when what lies here is newer, once no session runs there
and nothing is forwarded; the next command says so on standard error, and fleet mux
status shows it. Not where the versions cannot be compared, and not to a version that
was left again by fleet rollback or that did not check in: fleet update brings such a
one. --updates notice, FLEET_UPDATES or updates = "notice" in the configuration only
say it; never does neither.`, fanout.Spec{Does: "update"}, (*install.Env).Update)
	cmd.Flags = append(cmd.Flags,
		&cli.BoolFlag{Name: "wait", Usage: "where sessions run, wait for their end"},
		command.DurationFlag("timeout", "with --wait, for at most `D`; 0 means for ever", 5*time.Minute))
	run := cmd.Run
	cmd.Run = func(ctx context.Context, c *command.Call) error {
		if c.IsSet("timeout") && !c.Bool("wait") {
			return fault.Usagef("--timeout goes with --wait")
		}
		return run(ctx, c)
	}
	return cmd
}

// deferredEvery is how often an update that waits for sessions is tried again.
const deferredEvery = 3 * time.Second

// whenIdle does a deed, and again while it is deferred and may wait.
func whenIdle(ctx context.Context, c *command.Call, do func(context.Context) (*wire.Install, error)) (*wire.Install, error) {
	wait, limit := c.Bool("wait"), c.Span("timeout")
	for end := time.Now().Add(limit); ; {
		doc, err := do(ctx)
		if !wait || err == nil || fault.Of(err).Code != wire.CodeDeferred || limit > 0 && time.Now().After(end) || !pause(ctx, deferredEvery) {
			return doc, err
		}
	}
}

func rollbackCommand(b Build) *command.Command {
	return onMachines(b, "rollback", "bring machines back to the version before the last update", "", fanout.Spec{Does: "roll back"}, (*install.Env).Rollback)
}

func uninstallCommand(b Build) *command.Command {
	return onMachines(b, "uninstall", "stop and remove the agent, its service and files, and delete the machine",
		"A machine is named by its id or its exact name; --all and selectors need --yes.",
		fanout.Spec{Does: "uninstall", Destructive: true}, (*install.Env).Uninstall)
}

// onMachines is a command that does a deed to linked machines.
func onMachines(b Build, name, summary, help string, spec fanout.Spec, do deed) *command.Command {
	spec.Several, spec.Linked = true, true
	find := fanout.Linked
	if spec.Destructive {
		find = fanout.LinkedExactly
	}
	return &command.Command{
		Name: name, Group: "Machines", Args: "MACHINE…|SELECTOR", Summary: summary, Help: help, Max: -1,
		Flags: append(command.JSONFlags(true), spec.Flags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			machines, err := sel.Machines(ctx, c, find)
			if err != nil {
				return err
			}
			if c.Bool("dry-run") {
				return sel.Each(ctx, c, machines, nil, nil)
			}
			e, err := newEnv(b, c)
			if err != nil {
				return err
			}
			p, client, err := e.plane()
			if err != nil {
				return err
			}
			defer client.Close()
			in, err := e.installer(p, client)
			if err != nil {
				return err
			}
			return sel.Each(ctx, c, machines, func(ctx context.Context, o *fanout.One) (fanout.Outcome, error) {
				if o.Link == nil {
					return fanout.Outcome{}, fanout.NoDestination(o.Machine, o.Label())
				}
				one := *in
				if !sel.Many() {
					show := newProgress(c)
					defer show.done()
					one.Report, one.Notice, one.Sent = show.step, show.notice, show.sent
				}
				doc, err := whenIdle(ctx, c, func(ctx context.Context) (*wire.Install, error) { return do(&one, ctx, *o.Link) })
				return fanout.Outcome{Document: doc, Words: doneWords(name, doc), Show: func(c *command.Call) error {
					_, err := fmt.Fprintf(c.Stdout, "%s  %s  %s\n", o.ID, command.Clean(o.Name), command.Clean(doneWords(name, doc)))
					return err
				}}, err
			}, nil)
		},
	}
}

// doneWords tells an update that had nothing to do from one that did.
func doneWords(name string, doc *wire.Install) string {
	if n := len(doc.Steps); n > 0 && doc.Steps[n-1].Status == wire.StepSkipped && doc.Steps[n-1].Detail != "" {
		return doc.Steps[n-1].Detail
	}
	return name + " done"
}

func linkCommand(b Build) *command.Command {
	return &command.Command{
		Name: "link", Args: "MACHINE HOST", Summary: "record which SSH destination reaches a machine", Min: 2, Max: 2,
		Help: `The link is written once three facts agree: the account that SSH authenticated, the
pinned host key, and the row that the plane has for the agent there.`,
		Flags: append(command.JSONFlags(false), settings.SSHFlags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			if err := fanout.CheckWord(c.Arg(0)); err != nil {
				return err
			}
			if err := checkSSH(c, c.Arg(1)); err != nil {
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
			in, err := e.installer(p, client)
			if err != nil {
				return err
			}
			m, err := fanout.AtPlane(ctx, client, c.Arg(0), false)
			if err != nil {
				return err
			}
			l, err := in.Link(ctx, m.ID, c.Arg(1), e.sshFlags())
			if err != nil {
				return err
			}
			if c.WantsJSON() {
				return c.Print(l)
			}
			fmt.Fprintf(c.Stdout, "%s  %s  %s\n", l.Machine, l.Name, l.Host)
			for _, old := range attachedElsewhere(ctx, c, l) {
				c.Notef("%d attached over %s go on there; what comes now takes %s", old.Clients, command.Clean(old.Host), command.Clean(l.Host))
			}
			return nil
		},
	}
}

// attachedElsewhere are the shared connections by which a machine is being used
// over another destination than its link's.
func attachedElsewhere(ctx context.Context, c *command.Call, l state.Link) []wire.MuxConnection {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	o, err := operator.Mux(c)
	if err != nil {
		return nil
	}
	s, err := mux.Running(ctx, o)
	if s == nil || err != nil {
		return nil
	}
	a, err := s.AskAsIs(ctx, mux.Hello{Op: mux.OpStatus})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(a.Mux.Connections, func(w wire.MuxConnection) bool {
		return w.Clients == 0 || w.Host == l.Host || !slices.Contains(w.Machines, l.Machine)
	})
}
