package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	ufcli "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// Target is one machine that a data-path command reaches. Its row has been
// matched with the agent's when it is opened (R5).
type Target interface {
	agentclient.Dialer
	ID() string
	Name() string
	// Control runs `agentd start` or `agentd stop` on the machine itself, for
	// when no agent answers.
	Control(ctx context.Context, verb string) (*wire.AgentStatus, error)
	Close() error
}

// Reach is the way to machines.
type Reach struct {
	// Find says which machine a word of the command line means.
	Find fanout.Find
	// Open opens the way to a machine's agent. One machine's command and each
	// part of a command on many call it alike.
	Open func(ctx context.Context, c *command.Call, m fanout.Machine) (Target, error)
	// Behalf is whose command it is, if it is another process's.
	Behalf Behalf
}

// DataPath are the commands that talk to a machine's agent.
func DataPath(reach Reach) []*command.Command {
	return []*command.Command{
		execCommand(reach), shellCommand(reach), sessionsCommand(reach), attachCommand(reach), killCommand(reach),
		agentLogsCommand(reach), cpCommand(reach), fileCommand(reach), forwardCommand(reach), workspaceCommand(reach),
		stopCommand(reach), startCommand(reach), restartCommand(reach),
		drainCommand(reach), undrainCommand(reach),
	}
}

const groupReach = "Reaching machines"

// with reaches the machine named by the first argument and closes what it opened.
func with(ctx context.Context, c *command.Call, reach Reach, f func(*fanout.One, Target, *agentclient.Client) error) error {
	if err := fanout.CheckWord(c.Arg(0)); err != nil {
		return err
	}
	m, err := reach.Find(ctx, c, c.Arg(0))
	if err != nil {
		return err
	}
	return opened(ctx, fanout.Alone(c, m), reach, f)
}

func opened(ctx context.Context, o *fanout.One, reach Reach, f func(*fanout.One, Target, *agentclient.Client) error) error {
	t, err := reach.Open(ctx, o.Call, o.Machine)
	if err != nil {
		return err
	}
	defer t.Close()
	client := agentclient.New(t)
	defer client.Close()
	return f(o, t, client)
}

// deed is what a command does to one machine's agent.
type deed func(ctx context.Context, o *fanout.One, t Target, a *agentclient.Client) (fanout.Outcome, error)

// onAgents does a deed to the agents of the machines that the call means.
func onAgents(ctx context.Context, c *command.Call, reach Reach, spec fanout.Spec, do deed) error {
	sel, err := spec.Parse(c)
	if err != nil {
		return err
	}
	machines, err := sel.Machines(ctx, c, reach.Find)
	if err != nil {
		return err
	}
	return sel.Each(ctx, c, machines, reached(reach, do), nil)
}

// reached opens the way to each machine for its part, and closes it behind it.
func reached(reach Reach, do deed) fanout.Do {
	return func(ctx context.Context, o *fanout.One) (what fanout.Outcome, err error) {
		err = opened(ctx, o, reach, func(o *fanout.One, t Target, a *agentclient.Client) error {
			var err error
			what, err = do(ctx, o, t, a)
			return err
		})
		return what, err
	}
}

// endless refuses what goes on for ever on more machines than are worked on at
// once: the others would never have their turn.
func endless(c *command.Call, what string, machines []fanout.Machine) error {
	if n := c.Int("parallel"); !c.Bool("dry-run") && len(machines) > n {
		return fault.Usagef("%s has no end, %d machines are selected, and --parallel is %d", what, len(machines), n).
			WithHint("--parallel %d", len(machines))
	}
	return nil
}

// agentDeed is a command that changes a machine's agent and shows its state.
func agentDeed(reach Reach, cmd command.Command, does string, do func(context.Context, *fanout.One, Target, *agentclient.Client) (*wire.AgentStatus, error)) *command.Command {
	spec := fanout.Spec{Does: does, Linked: true}
	cmd.Group, cmd.Args, cmd.Max = groupReach, "MACHINE|SELECTOR", 1
	cmd.Flags = append(append(command.JSONFlags(true), cmd.Flags...), spec.Flags()...)
	cmd.Run = func(ctx context.Context, c *command.Call) error {
		return onAgents(ctx, c, reach, spec, func(ctx context.Context, o *fanout.One, t Target, a *agentclient.Client) (fanout.Outcome, error) {
			s, err := do(ctx, o, t, a)
			if err != nil {
				return fanout.Outcome{}, err
			}
			return fanout.Outcome{Document: s, Words: stateWords(s)}, nil
		})
	}
	return &cmd
}

func killCommand(reach Reach) *command.Command {
	return &command.Command{Name: "kill", Group: groupReach, Args: "MACHINE SESSION", Summary: "send a signal to a session", Min: 2, Max: 2,
		Flags: append(command.JSONFlags(false), &ufcli.StringFlag{Name: "signal", Aliases: []string{"s"}, Value: "TERM", Usage: "which `SIGNAL`, as TERM or KILL"}),
		Help:  "Without --signal it is TERM, which asks the command to end; KILL ends it. The signal goes to the session's process group, and fleet sessions says how it ended.",
		Run: func(ctx context.Context, c *command.Call) error {
			if err := checkSignal(c.String("signal")); err != nil {
				return err
			}
			if err := checkSession(c.Arg(1)); err != nil {
				return err
			}
			return with(ctx, c, reach, func(_ *fanout.One, _ Target, a *agentclient.Client) error {
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

// otherSignals are those that only some systems have: the machine may be
// another one than this computer.
var otherSignals = []string{"EMT", "INFO", "PWR", "STKFLT", "POLL", "IO"}

// checkSignal refuses what names a signal nowhere.
func checkSignal(name string) error {
	short := strings.TrimPrefix(strings.ToUpper(name), "SIG")
	if unix.SignalNum("SIG"+short) == 0 && !slices.Contains(otherSignals, short) {
		return fault.Usagef("--signal: no signal is named %q", command.Clean(name)).WithHint("a name, as TERM, INT, HUP, USR1 or KILL")
	}
	return nil
}

// checkSession refuses what is no session's id.
func checkSession(word string) error {
	if !wire.IsSessionID(word) {
		return fault.Usagef("%q is no session's id such as s_a2b3c4d5e6", command.Clean(word)).WithHint("fleet sessions MACHINE lists them")
	}
	return nil
}

func agentLogsCommand(reach Reach) *command.Command {
	spec := fanout.Spec{Does: "show its log", Linked: true, Streams: true}
	return &command.Command{Name: "logs", Group: groupReach, Args: "MACHINE|SELECTOR", Summary: "show the agent's own log", Max: 1,
		Help: "On many machines each line begins with the machine's name. Under --jsonl a line is an object with data, " +
			"or data_b64 where it is no UTF-8, and each machine's result follows its last line.",
		Flags: append([]ufcli.Flag{
			&ufcli.BoolFlag{Name: "f", Aliases: []string{"follow"}, Usage: "go on with what comes"},
			&ufcli.IntFlag{Name: "n", Aliases: []string{"lines"}, Value: 100, Usage: "begin with the last `N` lines"},
			&ufcli.BoolFlag{Name: "jsonl", Usage: "print JSON Lines"},
		}, spec.Flags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			if c.Int("n") < 0 {
				return fault.Usagef("-n takes a number of lines, not %d", c.Int("n"))
			}
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			machines, err := sel.Machines(ctx, c, reach.Find)
			if err == nil && sel.Many() && c.Bool("f") {
				err = endless(c, "logs -f", machines)
			}
			if err != nil {
				return err
			}
			return sel.Each(ctx, c, machines, reached(reach, func(ctx context.Context, o *fanout.One, _ Target, a *agentclient.Client) (fanout.Outcome, error) {
				return fanout.Outcome{Printed: true}, a.Logs(ctx, c.Int("n"), c.Bool("f"), o.Out)
			}), nil)
		}}
}

// remoteExit makes an outcome of a remote command's exit code.
func remoteExit(err error) (fanout.Outcome, error) {
	var exit *command.Exit
	if errors.As(err, &exit) {
		return fanout.Outcome{Exit: exit.Status, Printed: true}, nil
	}
	return fanout.Outcome{Printed: true}, err
}
