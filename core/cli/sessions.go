package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

func sessionsCommand(reach Reach) *command.Command {
	spec := fanout.Spec{Does: "list its sessions", Linked: true}
	return &command.Command{Name: "sessions", Group: groupReach, Args: "MACHINE|SELECTOR", Summary: "list a machine's sessions, running and ended", Max: 1,
		Help: "Of many machines, --json holds each one's list in its result, and under --jsonl each machine's sessions stand before its result.",
		Flags: append(append(command.JSONFlags(true),
			&ufcli.BoolFlag{Name: "watch", Usage: "go on and print what changes"}), spec.Flags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			if c.Bool("watch") && c.Bool("json") {
				return fault.Usagef("--watch has no end and so makes no one document").WithHint("--jsonl prints what changes")
			}
			machines, err := sel.Machines(ctx, c, reach.Find)
			if err == nil && sel.Many() && c.Bool("watch") {
				err = endless(c, "sessions --watch", machines)
			}
			if err != nil {
				return err
			}
			return sel.Each(ctx, c, machines, reached(reach, sessions), func(done []fanout.Done) error { return printSessions(c, done, true) })
		}}
}

// watchEvery is how often --watch asks.
const watchEvery = 2 * time.Second

func sessions(ctx context.Context, o *fanout.One, _ Target, a *agentclient.Client) (fanout.Outcome, error) {
	list, err := a.Sessions(ctx)
	if err != nil {
		return fanout.Outcome{}, err
	}
	if o.Bool("watch") {
		return fanout.Outcome{Printed: true}, watchSessions(ctx, o.Call, a, list)
	}
	if o.Bool("jsonl") {
		for _, s := range list.Sessions {
			s.Schema = wire.SchemaSession
			if err := o.Print(s); err != nil {
				return fanout.Outcome{}, err
			}
		}
		return fanout.Outcome{Printed: true}, nil
	}
	what := fanout.Outcome{Document: list}
	what.Show = func(c *command.Call) error {
		return printSessions(c, []fanout.Done{{Machine: o.Machine, Outcome: what}}, false)
	}
	return what, nil
}

// printSessions shows a person the sessions of one machine, or of many.
func printSessions(c *command.Call, done []fanout.Done, many bool) error {
	g := &grid{head: []string{"SESSION", "STATE", "EXIT", "UP", "CLIENTS", "COMMAND"}, flex: []int{5}}
	if many {
		g.head, g.flex = append([]string{"NAME"}, g.head...), []int{0, 6}
	}
	for _, d := range done {
		list, ok := d.Document.(*wire.Sessions)
		if !ok {
			continue
		}
		for _, s := range list.Sessions {
			row := words(sessionWords(s)...)
			if many {
				row = append(words(d.Label()), row...)
			}
			g.add(row...)
		}
	}
	if len(g.rows) == 0 {
		c.Notef("no sessions")
		return nil
	}
	return g.write(screenOf(c))
}

func sessionWords(s wire.Session) []string {
	exit := "-"
	if s.Exit != nil {
		exit = fmt.Sprint(s.Exit.Code)
		if s.Exit.Signal != "" {
			exit = "SIG" + s.Exit.Signal
		}
	}
	up := (time.Duration(s.UptimeS) * time.Second).String()
	return []string{s.ID, s.State, exit, up, fmt.Sprint(s.Clients), fit(s.Argv0, 28)}
}

// watchSessions prints each session again whenever something of it changed
// besides the time that it is up.
func watchSessions(ctx context.Context, c *command.Call, a *agentclient.Client, list *wire.Sessions) error {
	shown := map[string]string{}
	for {
		for _, s := range list.Sessions {
			still := s
			still.UptimeS = 0
			now := fmt.Sprintf("%+v %+v", still, s.Exit)
			if shown[s.ID] == now {
				continue
			}
			shown[s.ID] = now
			if c.WantsJSON() {
				s.Schema = wire.SchemaSession
				if err := c.Print(s); err != nil {
					return err
				}
			} else if _, err := fmt.Fprintln(c.Stdout, strings.Join(sessionWords(s), "  ")); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchEvery):
		}
		var err error
		if list, err = a.Sessions(ctx); err != nil {
			return err
		}
	}
}
