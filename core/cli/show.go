package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

func showCommand() *command.Command {
	return &command.Command{Name: "show", Group: groupMachine, Args: "MACHINE", Summary: "show all that the plane knows of a machine", Min: 1, Max: 1,
		Help:  "The id of a deleted machine says when it was deleted, by whom, and when its\ncredential was last presented; the exit code is then 5.",
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			return onPlane(c, func(p *planeclient.Client) error {
				m, err := one(ctx, p, c.Arg(0), false)
				var gone *planeclient.DeletedError
				if errors.As(err, &gone) && c.WantsJSON() {
					if err := c.Print(deletedDoc(gone)); err != nil {
						return err
					}
				}
				if err != nil {
					return err
				}
				if c.WantsJSON() {
					m.Schema = wire.SchemaMachine
					return c.Print(m)
				}
				return describe(c.Stdout, m)
			})
		}}
}

func deletedDoc(gone *planeclient.DeletedError) wire.DeletedMachine {
	return wire.DeletedMachine{Schema: wire.SchemaDeleted, State: wire.CodeDeleted, Deleted: gone.Deleted}
}

func describe(w io.Writer, m wire.Machine) error {
	var b strings.Builder
	row := func(k, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", k+":", fmt.Sprintf(format, args...))
	}
	row("id", "%s", m.ID)
	if m.Name != "" {
		row("name", "%s", clean(m.Name))
	}
	row("owner", "%s", clean(m.Owner))
	if len(m.Labels) > 0 {
		row("labels", "%s", pairs(m.Labels))
	}
	if m.LastCheckAgeS == nil {
		row("presence", "%s", clean(m.Presence))
	} else {
		row("presence", "%s (last check %s ago, interval %gs)", clean(m.Presence), ageOf(m.LastCheckAgeS), m.IntervalS)
	}
	life := m.Lifecycle.State
	if m.Lifecycle.Said != nil && *m.Lifecycle.Said != life {
		life += ", said " + clean(*m.Lifecycle.Said)
	}
	if m.Lifecycle.Reason != nil {
		life += " (" + clean(*m.Lifecycle.Reason) + ")"
	}
	row("lifecycle", "%s", life)
	row("readiness", "%s", m.Readiness.State)
	for _, x := range m.Readiness.Blockers {
		severity := x.Severity
		if severity == "" {
			severity = wire.SeverityBlock
		}
		fmt.Fprintf(&b, "  %s %s: %s\n", clean(severity), clean(x.Code), clean(x.Detail))
		if x.Remedy != "" {
			fmt.Fprintf(&b, "    remedy: %s\n", clean(x.Remedy))
		}
	}
	row("accepting", "%t", m.Accepting)
	cred := fmt.Sprintf("%s, generation %d", m.Credential.Kind, m.Credential.Generation)
	if m.Credential.NextPending {
		cred += ", next one pending"
	}
	row("credential", "%s", cred)
	if words := agentWords(m.Agent); words != "" {
		row("agent", "%s", words)
	}
	if m.CloneSuspected {
		row("clone", "two machines present this identity")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// agentWords leaves out what the machine has not said yet.
func agentWords(a wire.MachineAgent) string {
	var parts []string
	add := func(part string, given ...string) {
		if strings.Join(given, "") != "" {
			parts = append(parts, clean(part))
		}
	}
	add(a.Version, a.Version)
	add(a.OS+"/"+a.Arch, a.OS, a.Arch)
	add(a.Scope+" scope", a.Scope)
	add(a.ServiceManager, a.ServiceManager)
	return strings.Join(parts, ", ")
}

func waitCommand() *command.Command {
	return &command.Command{Name: "wait", Group: groupMachine, Args: "MACHINE", Summary: "wait until a machine is in a state", Min: 1, Max: 1,
		Help: "Exit 8 when --timeout is over first. A ready machine is one that is present, runs, and\nreported that nothing blocks it.",
		Flags: append(command.JSONFlags(false),
			&ufcli.StringFlag{Name: "for", Usage: "`STATE`: present, ready, stopped or absent", Value: wire.Present},
			command.DurationFlag("timeout", "give up after `D`; 0 waits for ever", 0)),
		Run: func(ctx context.Context, c *command.Call) error {
			test, ok := waitTests[c.String("for")]
			if !ok {
				return fault.Usagef("--for is one of present, ready, stopped, absent, not %q", c.String("for"))
			}
			return onPlane(c, func(p *planeclient.Client) error { return waitFor(ctx, c, p, test) })
		}}
}

var waitTests = map[string]func(wire.Machine) bool{
	"present": func(m wire.Machine) bool { return m.Presence == wire.Present },
	"absent":  func(m wire.Machine) bool { return m.Presence == wire.Absent },
	"stopped": func(m wire.Machine) bool { return m.Lifecycle.State == wire.LifecycleStopped },
	"ready": func(m wire.Machine) bool {
		return m.Presence == wire.Present && m.Lifecycle.State == wire.LifecycleRunning && m.Readiness.State == wire.Ready
	},
}

// The first look after a miss comes soon; later ones keep a pace at which the
// plane learns something new.
const (
	firstLook = 200 * time.Millisecond
	slowLook  = 5 * time.Second
)

func waitFor(ctx context.Context, c *command.Call, p *planeclient.Client, test func(wire.Machine) bool) error {
	m, err := one(ctx, p, c.Arg(0), false)
	if err != nil {
		return err
	}
	m, err = await(ctx, m, test, c.String("for"), c.Span("timeout"), func(ctx context.Context) (wire.Machine, error) { return p.Machine(ctx, m.ID) })
	if err != nil {
		return err
	}
	if c.WantsJSON() {
		m.Schema = wire.SchemaMachine
		return c.Print(m)
	}
	_, err = fmt.Fprintf(c.Stdout, "%s  %s  %s  %s\n", shown(m.Name, m.ID), clean(m.Presence), clean(m.Lifecycle.State), clean(m.Readiness.State))
	return err
}

// await asks for the machine, from m on, until test holds. A plane that does
// not answer for a while is waited for too. A limit of 0 is none.
func await(ctx context.Context, m wire.Machine, test func(wire.Machine) bool, want string, limit time.Duration, fetch func(context.Context) (wire.Machine, error)) (wire.Machine, error) {
	within := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for look := firstLook; !test(m); look = min(look*3/2, slowLook) {
		var next wire.Machine
		var err error
		select {
		case <-within.Done():
			err = within.Err()
		case <-time.After(look):
			next, err = fetch(within)
		}
		switch {
		case err == nil:
			m = next
		case ctx.Err() != nil:
			return m, ctx.Err()
		case within.Err() != nil:
			return m, fault.New(fault.NotYet, "not_yet", "after %v %s is not %s: it is %s, %s, %s", limit, shown(m.Name, m.ID), want,
				m.Presence, m.Lifecycle.State, m.Readiness.State)
		case fault.Of(err).Exit != fault.Unreachable:
			return m, err
		}
	}
	return m, nil
}
