package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

func showCommand() *command.Command {
	return &command.Command{Name: "show", Group: groupMachine, Args: "MACHINE", Summary: "show all that the plane knows of a machine", Min: 1, Max: 1,
		Help:  "The id of a deleted machine says when it was deleted, by whom, and when its\ncredential was last presented; the exit code is then 5.",
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			if err := fanout.CheckWord(c.Arg(0)); err != nil {
				return err
			}
			return onPlane(c, func(p *planeclient.Client) error {
				m, err := fanout.AtPlane(ctx, p, c.Arg(0), false)
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
	if at := m.Credential.ExpiresAt; at != nil {
		cred += ", certificate until " + at.String()
	}
	if m.Credential.NextPending {
		cred += ", next one pending"
	}
	if m.Requests.Rotate != nil {
		cred += ", asked to rotate"
		if to := m.Requests.RotateKind; to != nil && *to != m.Credential.Kind {
			cred += " to " + clean(*to)
		}
	}
	if barred(m) {
		cred += "; its bearer alone was presented since the last check, where a certificate is wanted"
	}
	if behind(m) {
		cred += "; a superseded one was presented since the last check"
	}
	row("credential", "%s", cred)
	if words := agentWords(m.Agent); words != "" {
		row("agent", "%s", words)
	}
	if m.CloneSuspected {
		row("clone", "two machines present this identity, as after a copied disk: fleet rotate leaves it to the one that")
		fmt.Fprintf(&b, "%-12s %s\n", "", "checks first, and the other is refused and installed again; fleet delete refuses both")
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
