package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// Target is one machine that a data-path command reaches. Its row has been
// matched with the agent's when a Reach returns it (R5).
type Target interface {
	agentclient.Dialer
	ID() string
	Name() string
	// Control runs `agentd start` or `agentd stop` on the machine itself, for
	// when no agent answers.
	Control(ctx context.Context, verb string) (*wire.AgentStatus, error)
	Close() error
}

// Reach finds the machine that a word of the command line means and opens the
// way to its agent.
type Reach func(ctx context.Context, c *command.Call, machine string) (Target, error)

// DataPath are the commands that talk to a machine's agent.
func DataPath(reach Reach) []*command.Command {
	return []*command.Command{
		execCommand(reach), shellCommand(reach), sessionsCommand(reach), attachCommand(reach), killCommand(reach),
		agentLogsCommand(reach), stopCommand(reach), startCommand(reach), restartCommand(reach),
		drainCommand(reach), undrainCommand(reach),
	}
}

const groupReach = "Reaching machines"

// with reaches the machine named by the first argument and closes what it opened.
func with(ctx context.Context, c *command.Call, reach Reach, f func(Target, *agentclient.Client) error) error {
	t, err := reach(ctx, c, c.Arg(0))
	if err != nil {
		return err
	}
	defer t.Close()
	client := agentclient.New(t)
	defer client.Close()
	return f(t, client)
}

func sessionsCommand(reach Reach) *command.Command {
	return &command.Command{Name: "sessions", Group: groupReach, Args: "MACHINE", Summary: "list a machine's sessions, running and ended",
		Min: 1, Max: 1, Flags: append(command.JSONFlags(true),
			&ufcli.BoolFlag{Name: "watch", Usage: "go on and print what changes"}),
		Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error { return sessions(ctx, c, a) })
		}}
}

// watchEvery is how often --watch asks.
const watchEvery = 2 * time.Second

func sessions(ctx context.Context, c *command.Call, a *agentclient.Client) error {
	list, err := a.Sessions(ctx)
	if err != nil {
		return err
	}
	switch {
	case c.Bool("watch"):
		return watchSessions(ctx, c, a, list)
	case c.Bool("jsonl"):
		for i := range list.Sessions {
			list.Sessions[i].Schema = wire.SchemaSession
			if err := c.Print(list.Sessions[i]); err != nil {
				return err
			}
		}
		return nil
	case c.Bool("json"):
		return c.Print(list)
	}
	if len(list.Sessions) == 0 {
		c.Notef("no sessions")
		return nil
	}
	w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SESSION\tSTATE\tEXIT\tUP\tCLIENTS\tCOMMAND")
	for _, s := range list.Sessions {
		fmt.Fprintln(w, sessionLine(s))
	}
	return w.Flush()
}

func sessionLine(s wire.Session) string {
	exit := "-"
	if s.Exit != nil {
		exit = fmt.Sprint(s.Exit.Code)
		if s.Exit.Signal != "" {
			exit = "SIG" + s.Exit.Signal
		}
	}
	up := (time.Duration(s.UptimeS) * time.Second).String()
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%s", s.ID, s.State, exit, up, s.Clients, fit(s.Argv0, 28))
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
			} else if _, err := fmt.Fprintln(c.Stdout, strings.ReplaceAll(sessionLine(s), "\t", "  ")); err != nil {
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

func killCommand(reach Reach) *command.Command {
	return &command.Command{Name: "kill", Group: groupReach, Args: "MACHINE SESSION", Summary: "send a signal to a session", Min: 2, Max: 2,
		Flags: append(command.JSONFlags(false), &ufcli.StringFlag{Name: "signal", Aliases: []string{"s"}, Value: "TERM", Usage: "which `SIGNAL`, as TERM or KILL"}),
		Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(_ Target, a *agentclient.Client) error {
				s, err := a.Signal(ctx, c.Arg(1), c.String("signal"))
				if err != nil {
					return err
				}
				if c.WantsJSON() {
					return c.Print(s)
				}
				return nil
			})
		}}
}

func agentLogsCommand(reach Reach) *command.Command {
	return &command.Command{Name: "logs", Group: groupReach, Args: "MACHINE", Summary: "show the agent's own log", Min: 1, Max: 1,
		Flags: []ufcli.Flag{
			&ufcli.BoolFlag{Name: "f", Aliases: []string{"follow"}, Usage: "go on with what comes"},
			&ufcli.IntFlag{Name: "n", Aliases: []string{"lines"}, Value: 100, Usage: "begin with the last `N` lines"},
		},
		Run: func(ctx context.Context, c *command.Call) error {
			if c.Int("n") < 0 {
				return fault.Usagef("-n takes a number of lines")
			}
			return with(ctx, c, reach, func(_ Target, a *agentclient.Client) error {
				return a.Logs(ctx, c.Int("n"), c.Bool("f"), c.Stdout)
			})
		}}
}

// printStatus shows an agent's state after a deed.
func printStatus(c *command.Call, t Target, s *wire.AgentStatus) error {
	if c.WantsJSON() {
		return c.Print(s)
	}
	c.Notef("%s: %s", t.Name(), s.State)
	return nil
}
