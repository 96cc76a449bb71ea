package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
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
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			return onPlane(c, func(p *planeclient.Client) error {
				m, err := one(ctx, p, c.Arg(0), false)
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

func describe(w io.Writer, m wire.Machine) error {
	var b strings.Builder
	row := func(k, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", k+":", fmt.Sprintf(format, args...))
	}
	row("id", "%s", m.ID)
	row("name", "%s", clean(m.Name))
	row("owner", "%s", clean(m.Owner))
	if len(m.Labels) > 0 {
		var l []string
		for k, v := range m.Labels {
			l = append(l, clean(k+"="+v))
		}
		sort.Strings(l)
		row("labels", "%s", strings.Join(l, ","))
	}
	row("presence", "%s (last check %s ago, interval %gs)", m.Presence, ageOf(m.LastCheckAgeS), m.IntervalS)
	life := m.Lifecycle.State
	if m.Lifecycle.Said != nil {
		life += ", said " + clean(*m.Lifecycle.Said)
	}
	if m.Lifecycle.Reason != nil {
		life += " (" + clean(*m.Lifecycle.Reason) + ")"
	}
	row("lifecycle", "%s", life)
	row("readiness", "%s", m.Readiness.State)
	for _, x := range m.Readiness.Blockers {
		row("", "%s %s: %s", clean(x.Severity), clean(x.Code), clean(x.Detail))
		if x.Remedy != "" {
			row("", "  %s", clean(x.Remedy))
		}
	}
	row("accepting", "%t", m.Accepting)
	cred := fmt.Sprintf("%s, generation %d", m.Credential.Kind, m.Credential.Generation)
	if m.Credential.NextPending {
		cred += ", next one pending"
	}
	row("credential", "%s", cred)
	row("agent", "%s, %s/%s, %s scope, %s", clean(m.Agent.Version), clean(m.Agent.OS), clean(m.Agent.Arch), clean(m.Agent.Scope), clean(m.Agent.ServiceManager))
	if m.CloneSuspected {
		row("clone", "two machines present this identity")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func waitCommand() *command.Command {
	return &command.Command{Name: "wait", Group: groupMachine, Args: "MACHINE", Summary: "wait until a machine is in a state", Min: 1, Max: 1,
		Help: "Exit 8 when --timeout is over first.",
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
	"ready":   func(m wire.Machine) bool { return m.Presence == wire.Present && m.Readiness.State == wire.Ready },
}

func waitFor(ctx context.Context, c *command.Call, p *planeclient.Client, test func(wire.Machine) bool) error {
	if d := c.Span("timeout"); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	m, err := one(ctx, p, c.Arg(0), false)
	pause := 100 * time.Millisecond
	for {
		switch {
		case err == nil && test(m):
			if c.WantsJSON() {
				m.Schema = wire.SchemaMachine
				return c.Print(m)
			}
			_, err = fmt.Fprintf(c.Stdout, "%s  %s  %s  %s\n", clean(m.Name), m.Presence, m.Lifecycle.State, m.Readiness.State)
			return err
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return fault.New(fault.NotYet, "timeout", "%s is not %s yet: it is %s, %s, %s", clean(c.Arg(0)), c.String("for"),
				m.Presence, m.Lifecycle.State, m.Readiness.State)
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && fault.Of(err).Exit != fault.Unreachable:
			return err
		}
		select {
		case <-ctx.Done():
			continue
		case <-time.After(pause):
			// The plane learns nothing new more often than the machine checks.
			pause = min(pause*3/2, max(time.Second, time.Duration(m.IntervalS*float64(time.Second))/4))
		}
		if m.ID == "" {
			m, err = one(ctx, p, c.Arg(0), false)
		} else {
			var next wire.Machine
			if next, err = p.Machine(ctx, m.ID); err == nil {
				m = next
			}
		}
	}
}
