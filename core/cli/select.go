package cli

import (
	"context"
	"strings"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

// selectFlags select many machines.
func selectFlags() []ufcli.Flag {
	return []ufcli.Flag{
		&ufcli.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "labels, as `K=V,K2!=V2`"},
		&ufcli.StringFlag{Name: "presence", Usage: "`STATE`: present, absent or never"},
		&ufcli.StringFlag{Name: "lifecycle", Usage: "`STATE`: running, stopped, unknown or never"},
		&ufcli.StringFlag{Name: "blocker", Usage: "`CODE` of a blocker"},
		&ufcli.StringFlag{Name: "agent-version", Usage: "`VERSION` that the agent says it is"},
	}
}

// filterOf reads selectFlags and checks what can be checked here.
func filterOf(c *command.Call) (wire.MachineFilter, error) {
	f := wire.MachineFilter{Selector: c.String("selector"), Presence: c.String("presence"), Lifecycle: c.String("lifecycle"),
		Blocker: c.String("blocker"), AgentVersion: c.String("agent-version")}
	for _, one := range []struct {
		flag, value string
		allowed     []string
	}{
		{"presence", f.Presence, []string{wire.Present, wire.Absent, wire.Never}},
		{"lifecycle", f.Lifecycle, []string{wire.LifecycleRunning, wire.LifecycleStopped, wire.LifecycleUnknown, wire.LifecycleNever}},
	} {
		if one.value != "" && !contains(one.allowed, one.value) {
			return f, fault.Usagef("--%s is one of %s, not %q", one.flag, strings.Join(one.allowed, ", "), one.value)
		}
	}
	return f, nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// selects reports whether the call selects machines by anything but name.
func selects(f wire.MachineFilter) bool { return f != (wire.MachineFilter{}) }

// one finds the machine that a word means: an exact id, an exact name, then a
// unique prefix. exact leaves prefixes out, for what cannot be undone.
func one(ctx context.Context, p *planeclient.Client, word string, exact bool) (wire.Machine, error) {
	var none wire.Machine
	if wire.IsMachineID(word) {
		return p.Machine(ctx, word)
	}
	if err := wire.CheckName(word); err != nil {
		return none, fault.Usagef("%q is neither a machine's id nor a name: %s", clean(word), err)
	}
	found, err := p.Machines(ctx, wire.MachineFilter{Match: word})
	if err != nil {
		return none, err
	}
	var fit []wire.Machine
	for _, m := range found.Machines {
		if !exact || m.ID == word || m.Name == word {
			fit = append(fit, m)
		}
	}
	switch len(fit) {
	case 1:
		return fit[0], nil
	case 0:
		err := fault.New(fault.NotFound, wire.CodeNotFound, "no machine %q", word)
		if len(found.Machines) > 0 {
			err = err.WithHint("what cannot be undone takes no prefix; give the exact name or the id")
		}
		return none, err
	}
	names := make([]string, 0, len(fit))
	for _, m := range fit {
		names = append(names, clean(m.Name)+" ("+m.ID+")")
	}
	return none, fault.New(fault.Usage, "ambiguous", "%q means %d machines: %s", word, len(fit), strings.Join(names, ", "))
}
