package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

func lsCommand() *command.Command {
	return &command.Command{Name: "ls", Group: groupMachine, Summary: "list the machines that the plane knows",
		Help: `Three columns, never one word: PRESENCE is how long ago the machine was last heard,
LIFECYCLE what it last said and whether it kept checking, READINESS what its
probes found.`,
		Flags: append(append(command.JSONFlags(true), selectFlags()...),
			&ufcli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on; with --jsonl print each machine that changes"}),
		Run: func(ctx context.Context, c *command.Call) error {
			f, err := filterOf(c)
			if err != nil {
				return err
			}
			return onPlane(c, func(p *planeclient.Client) error {
				if c.Bool("watch") {
					return watchMachines(ctx, c, p, f)
				}
				list, err := p.Machines(ctx, f)
				if err != nil {
					return err
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
		return c.Print(list)
	}
	return table(c.Stdout, colorsOf(c), list.Machines)
}

func sortMachines(m []wire.Machine) {
	sort.SliceStable(m, func(i, j int) bool {
		return m[i].Name < m[j].Name || m[i].Name == m[j].Name && m[i].ID < m[j].ID
	})
}

// table fits 80 columns: name 20, presence 9, age 5, lifecycle 9, readiness up
// to what is left, owner 12.
func table(w io.Writer, on colors, machines []wire.Machine) error {
	if _, err := fmt.Fprintf(w, "%-20s %-8s %5s  %-9s %-20s %s\n", "NAME", "PRESENCE", "AGE", "LIFECYCLE", "READINESS", "OWNER"); err != nil {
		return err
	}
	for _, m := range machines {
		name := m.Name
		if name == "" {
			name = m.ID
		}
		ready := m.Readiness.State
		if ready == wire.Blocked && len(m.Readiness.Blockers) > 0 {
			ready = fit(blockerWord(m.Readiness.Blockers), 20)
		}
		readiness := on.state(ready, 20)
		if m.Readiness.State == wire.Blocked && bool(on) {
			readiness = "\x1b[33m" + fmt.Sprintf("%-20s", ready) + "\x1b[0m"
		}
		if _, err := fmt.Fprintf(w, "%-20s %s %5s  %s %s %s\n", fit(name, 20), on.state(m.Presence, 8), ageOf(m.LastCheckAgeS),
			on.state(m.Lifecycle.State, 9), readiness, fit(m.Owner, 11)); err != nil {
			return err
		}
	}
	return nil
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

// watchPause is how often --watch asks.
const watchPause = 2 * time.Second

func watchMachines(ctx context.Context, c *command.Call, p *planeclient.Client, f wire.MachineFilter) error {
	seen := map[string]string{}
	terminal := command.IsTerminal(c.Stdout) && !c.WantsJSON()
	for {
		list, err := p.Machines(ctx, f)
		if err != nil {
			return err
		}
		sortMachines(list.Machines)
		switch {
		case c.WantsJSON():
			if err := printChanges(c, list.Machines, seen); err != nil {
				return err
			}
		default:
			if terminal {
				fmt.Fprint(c.Stdout, "\x1b[H\x1b[2J")
			}
			if err := table(c.Stdout, colorsOf(c), list.Machines); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchPause):
		}
	}
}

// printChanges prints the machines whose states differ from the last time. The
// age of the last check is no change.
func printChanges(c *command.Call, machines []wire.Machine, seen map[string]string) error {
	for _, m := range machines {
		still := m
		still.LastCheck, still.LastCheckAgeS = nil, nil
		b, err := json.Marshal(still)
		if err != nil {
			return err
		}
		if seen[m.ID] == string(b) {
			continue
		}
		seen[m.ID] = string(b)
		m.Schema = wire.SchemaMachine
		e := json.NewEncoder(c.Stdout)
		e.SetEscapeHTML(false)
		if err := e.Encode(m); err != nil {
			return err
		}
	}
	return nil
}
