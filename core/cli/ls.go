package cli

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"sort"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

func lsCommand() *command.Command {
	return &command.Command{Name: "ls", Group: groupMachine, Summary: "list the machines that the plane knows",
		Help: `Three columns, never one word: PRESENCE is how long ago the machine was last heard,
LIFECYCLE what it last said and whether it kept checking, READINESS what its
probes found.`,
		Flags: append(append(command.JSONFlags(true), fanout.SelectFlags()...),
			&ufcli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on; with --jsonl print each machine that changes"}),
		Run: func(ctx context.Context, c *command.Call) error {
			f, err := fanout.Filter(c)
			if err != nil {
				return err
			}
			if c.Bool("watch") && c.Bool("json") {
				return fault.Usagef("--watch has no end and so makes no one document").WithHint("--jsonl prints what changes")
			}
			return onPlane(c, func(p *planeclient.Client) error {
				if c.Bool("watch") {
					return watchMachines(ctx, c, func(ctx context.Context) (wire.Machines, error) { return p.Machines(ctx, f) })
				}
				list, err := p.Machines(ctx, f)
				if err != nil {
					return err
				}
				if g := list.GateRefused; g != nil {
					c.Notef("%s turned away at the gate since %s: a machine whose gate token does not fit looks absent", many(int(g.Requests), "request was", "requests were"), g.Since)
				}
				return printMachines(c, list)
			})
		}}
}

func printMachines(c *command.Call, list wire.Machines) error {
	sortMachines(list.Machines)
	switch {
	case c.Bool("jsonl"):
		for _, m := range list.Machines {
			m.Schema = wire.SchemaMachine
			if err := c.Print(m); err != nil {
				return err
			}
		}
		return nil
	case c.Bool("json"):
		if list.Machines == nil {
			list.Machines = []wire.Machine{}
		}
		list.Schema = wire.SchemaMachines
		return c.Print(list)
	case len(list.Machines) == 0:
		c.Notef("no machines")
		return nil
	}
	return machineGrid(list.Machines).write(screenOf(c))
}

func sortMachines(m []wire.Machine) {
	sort.SliceStable(m, func(i, j int) bool {
		return m[i].Name < m[j].Name || m[i].Name == m[j].Name && m[i].ID < m[j].ID
	})
}

func machineGrid(machines []wire.Machine) *grid {
	g := &grid{head: []string{"NAME", "PRESENCE", "AGE", "LIFECYCLE", "READINESS", "OWNER"}, flex: []int{0, 4, 5}}
	for _, m := range machines {
		ready := m.Readiness.State
		if ready == wire.Blocked && len(m.Readiness.Blockers) > 0 {
			ready = blockerWord(m.Readiness.Blockers)
		}
		g.add(cell{text: shown(m.Name, m.ID)}, cell{m.Presence, shadeOf(m.Presence)}, cell{text: ageOf(m.LastCheckAgeS)},
			cell{m.Lifecycle.State, shadeOf(m.Lifecycle.State)}, cell{ready, shadeOf(m.Readiness.State)}, cell{text: m.Owner})
	}
	return g
}

// blockerWord names the first blocking finding, and how many more there are.
func blockerWord(b []wire.Blocker) string {
	n, first := 0, ""
	for _, x := range b {
		if x.Severity == wire.SeverityWarn {
			continue
		}
		if n++; first == "" {
			first = x.Code
		}
	}
	if n > 1 {
		return fmt.Sprintf("%s +%d", first, n-1)
	}
	return first
}

// watchMachines shows the list as it changes until the context ends. A plane
// that stops answering is said once and asked again.
func watchMachines(ctx context.Context, c *command.Call, fetch func(context.Context) (wire.Machines, error)) error {
	list, err := fetch(ctx)
	if err != nil {
		return err
	}
	draw := watchLines(c)
	if !c.Bool("jsonl") && command.IsTerminal(c.Stdout) && c.Getenv("TERM") != "dumb" {
		draw = watchScreen(c)
	}
	lost := false
	for {
		f := fault.Of(err)
		switch {
		case err == nil:
			lost = false
			sortMachines(list.Machines)
			if err := draw(list.Machines); err != nil {
				return err
			}
		case f.Exit != fault.Unreachable:
			return err
		case !lost:
			lost = true
			c.Notef("fleet: %s; asking again", clean(f.Msg))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchEvery):
		}
		list, err = fetch(ctx)
	}
}

// watchScreen draws the whole list over the last one.
func watchScreen(c *command.Call) func([]wire.Machine) error {
	return func(list []wire.Machine) error {
		var b bytes.Buffer
		s := screenOf(c)
		s.w = &b
		b.WriteString("\x1b[H\x1b[2J")
		if err := machineGrid(list).write(s); err != nil {
			return err
		}
		_, err := c.Stdout.Write(b.Bytes())
		return err
	}
}

// watchLines prints a machine again whenever something of it differs besides
// the time of its last check, and says which ones left the list.
func watchLines(c *command.Call) func([]wire.Machine) error {
	before := map[string]wire.Machine{}
	return func(list []wire.Machine) error {
		now := make(map[string]wire.Machine, len(list))
		for _, m := range list {
			m.Schema = wire.SchemaMachine
			still := m
			still.LastCheck, still.LastCheckAgeS = nil, nil
			now[m.ID] = still
			if was, ok := before[m.ID]; ok && reflect.DeepEqual(was, still) {
				continue
			}
			if err := printChange(c, m); err != nil {
				return err
			}
		}
		left := make([]wire.Machine, 0)
		for id, m := range before {
			if _, ok := now[id]; !ok {
				left = append(left, m)
			}
		}
		sortMachines(left)
		for _, m := range left {
			if err := printLeft(c, m); err != nil {
				return err
			}
		}
		before = now
		return nil
	}
}

func printChange(c *command.Call, m wire.Machine) error {
	if c.Bool("jsonl") {
		return c.Print(m)
	}
	_, err := fmt.Fprintf(c.Stdout, "%s  %s  %s  %s\n", shown(m.Name, m.ID), clean(m.Presence), clean(m.Lifecycle.State), clean(m.Readiness.State))
	return err
}

func printLeft(c *command.Call, m wire.Machine) error {
	if c.Bool("jsonl") {
		return c.Print(wire.MachineLeft{Schema: wire.SchemaMachineLeft, ID: m.ID, Name: m.Name})
	}
	_, err := fmt.Fprintf(c.Stdout, "%s  left the list\n", shown(m.Name, m.ID))
	return err
}
