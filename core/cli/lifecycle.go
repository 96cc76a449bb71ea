package cli

import (
	"context"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

func stopCommand(reach Reach) *command.Command {
	return &command.Command{Name: "stop", Group: groupReach, Args: "MACHINE", Summary: "stop a machine's agent, until an explicit start", Min: 1, Max: 1,
		Help:  "The machine says that it stopped, and stays stopped through reboot, login, install and update.\nRunning sessions go on.",
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error {
				s, err := a.Stop(ctx, wire.ReasonPerson)
				if unreachable(err) {
					s, err = t.Control(ctx, "stop") // leaves the latch where no agent runs
				}
				if err != nil {
					return err
				}
				return printStatus(c, t, s)
			})
		}}
}

func startCommand(reach Reach) *command.Command {
	return &command.Command{Name: "start", Group: groupReach, Args: "MACHINE", Summary: "start a machine's agent after a stop", Min: 1, Max: 1,
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error {
				s, err := t.Control(ctx, "start")
				if err != nil {
					return err
				}
				return printStatus(c, t, s)
			})
		}}
}

// restartWait bounds how long a restarted agent is waited for.
const restartWait = 30 * time.Second

func restartCommand(reach Reach) *command.Command {
	return &command.Command{Name: "restart", Group: groupReach, Args: "MACHINE", Summary: "restart a machine's agent; sessions go on", Min: 1, Max: 1,
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error {
				before, err := a.Restart(ctx)
				if unreachable(err) {
					return fault.New(fault.Unreachable, "agent_down", "the agent of %s does not run: %w", t.Name(), err).WithHint("fleet start %s", t.Name())
				}
				if err != nil {
					return err
				}
				s, err := awaitRestart(ctx, a, before)
				if err != nil {
					return err
				}
				return printStatus(c, t, s)
			})
		}}
}

// awaitRestart waits until another run of the agent answers.
func awaitRestart(ctx context.Context, a *agentclient.Client, before *wire.AgentStatus) (*wire.AgentStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, restartWait)
	defer cancel()
	for {
		s, err := a.Status(ctx)
		if err == nil && (s.PID != before.PID || s.StartedAt != nil && before.StartedAt != nil && !s.StartedAt.Equal(before.StartedAt.Time)) {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, fault.New(fault.NotYet, "not_restarted", "the agent was told to restart and has not answered since")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// unreachable reports whether no agent answered, be it that it is down or that
// a person stopped it.
func unreachable(err error) bool {
	f := fault.Of(err)
	return f != nil && (f.Exit == fault.Unreachable || f.Code == "stopped")
}

func drainCommand(reach Reach) *command.Command {
	return &command.Command{Name: "drain", Group: groupReach, Args: "MACHINE", Summary: "let a machine take no new work", Min: 1, Max: 1,
		Help: "What runs goes on. With --wait it returns when nothing runs any more, or with exit code 8 when the time is over.",
		Flags: append(command.JSONFlags(false), &ufcli.BoolFlag{Name: "wait", Usage: "return when no session runs"},
			command.DurationFlag("timeout", "wait at most so `LONG`", 0)),
		Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error {
				s, err := a.Drain(ctx)
				if err == nil && c.Bool("wait") {
					s, err = awaitIdle(ctx, a, c.Span("timeout"))
				}
				if err != nil {
					return err
				}
				if c.WantsJSON() {
					return c.Print(s)
				}
				c.Notef("%s: draining, %d sessions run", t.Name(), s.Sessions)
				return nil
			})
		}}
}

func awaitIdle(ctx context.Context, a *agentclient.Client, limit time.Duration) (*wire.AgentStatus, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	running := 0
	for {
		s, err := a.Status(ctx)
		if err == nil && s.Sessions == 0 {
			return s, nil
		}
		if err == nil {
			running = s.Sessions
		} else if ctx.Err() == nil && !unreachable(err) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			if limit > 0 && ctx.Err() == context.DeadlineExceeded {
				return nil, fault.New(fault.NotYet, "not_yet", "after %v %d sessions still run", limit, running)
			}
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func undrainCommand(reach Reach) *command.Command {
	return &command.Command{Name: "undrain", Group: groupReach, Args: "MACHINE", Summary: "let a machine take work again", Min: 1, Max: 1,
		Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error {
				s, err := a.Undrain(ctx)
				if err != nil {
					return err
				}
				return printStatus(c, t, s)
			})
		}}
}
