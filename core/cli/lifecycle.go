package cli

import (
	"context"
	"fmt"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

func stopCommand(reach Reach) *command.Command {
	return agentDeed(reach, command.Command{Name: "stop", Summary: "stop a machine's agent, until an explicit start",
		Help: "The machine says that it stopped, and stays stopped through reboot, login, install and update. Running sessions go on."},
		"stop", func(ctx context.Context, _ *fanout.One, t Target, a *agentclient.Client) (*wire.AgentStatus, error) {
			s, err := a.Stop(ctx, wire.ReasonPerson)
			if unreachable(err) {
				return t.Control(ctx, "stop") // leaves the latch where no agent runs
			}
			return s, err
		})
}

func startCommand(reach Reach) *command.Command {
	return agentDeed(reach, command.Command{Name: "start", Summary: "start a machine's agent after a stop"},
		"start", func(ctx context.Context, _ *fanout.One, t Target, _ *agentclient.Client) (*wire.AgentStatus, error) {
			return t.Control(ctx, "start")
		})
}

// restartWait bounds how long a restarted agent is waited for.
const restartWait = 30 * time.Second

func restartCommand(reach Reach) *command.Command {
	return agentDeed(reach, command.Command{Name: "restart", Summary: "restart a machine's agent; sessions go on"},
		"restart", func(ctx context.Context, _ *fanout.One, t Target, a *agentclient.Client) (*wire.AgentStatus, error) {
			before, err := a.Restart(ctx)
			if unreachable(err) {
				return nil, fault.New(fault.Unreachable, "agent_down", "the agent of %s does not run: %w", t.Name(), err).WithHint("fleet start %s", t.Name())
			}
			if err != nil {
				return nil, err
			}
			return awaitRestart(ctx, a, before)
		})
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
	cmd := agentDeed(reach, command.Command{Name: "drain", Summary: "let a machine take no new work",
		Help: `What runs goes on, and can be attached to. No session begins, a person's neither:
fleet exec and fleet shell are refused until fleet undrain. Files, copies and forwards
work as before. It outlives restarts and reboots of the machine.

With --wait the command returns when no session runs any more, or with exit code 8
when --timeout is over; the machine goes on draining.`,
		Flags: []ufcli.Flag{&ufcli.BoolFlag{Name: "wait", Usage: "return when no session runs"},
			command.DurationFlag("timeout", "with --wait, give up after `D`, for each machine; 0 waits for ever", 0)}},
		"drain", func(ctx context.Context, o *fanout.One, _ Target, a *agentclient.Client) (*wire.AgentStatus, error) {
			s, err := a.Drain(ctx)
			if err == nil && o.Bool("wait") {
				return awaitIdle(ctx, a, o.Span("timeout"))
			}
			return s, err
		})
	run := cmd.Run
	cmd.Run = func(ctx context.Context, c *command.Call) error {
		if c.IsSet("timeout") && !c.Bool("wait") {
			return fault.Usagef("--timeout goes with --wait")
		}
		return run(ctx, c)
	}
	return cmd
}

// stateWords say how an agent is after a deed.
func stateWords(s *wire.AgentStatus) string {
	if s.Draining {
		return fmt.Sprintf("draining, %d sessions run", s.Sessions)
	}
	return s.State
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
	return agentDeed(reach, command.Command{Name: "undrain", Summary: "let a machine take work again"},
		"undrain", func(ctx context.Context, _ *fanout.One, _ Target, a *agentclient.Client) (*wire.AgentStatus, error) {
			return a.Undrain(ctx)
		})
}
