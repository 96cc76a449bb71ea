package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fleet.example/fleet/agentd/latch"
	"fleet.example/fleet/agentd/locate"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
)

const (
	endWait   = 15 * time.Second
	startWait = 15 * time.Second
)

func stopCommand(version string) *command.Command {
	return &command.Command{Name: "stop", Summary: "stop the agent, until `agentd start`", Flags: command.JSONFlags(false),
		Help: "It stays stopped through reboot, login, install and update. Running sessions go on.",
		Run:  func(ctx context.Context, c *command.Call) error { return stop(ctx, c, version) }}
}

// stop leaves the latch, then tells the running agent, which says so to the
// plane and ends.
func stop(ctx context.Context, c *command.Call, version string) error {
	d, _, err := dirs(ctx, c)
	if err != nil {
		return err
	}
	if _, err := os.Stat(d.Data); err != nil {
		return fault.New(fault.NotFound, "not_installed", "no agent is installed in %s", d.Data)
	}
	if err := latch.Set(d.Data); err != nil {
		return err
	}
	var s wire.AgentStatus
	err = newLocal(d.Runtime).call(ctx, "POST", wire.PathStop, wire.StopRequest{Reason: wire.ReasonPerson}, &s)
	running := err == nil
	if err != nil && !errors.Is(err, errNotRunning) {
		return err
	}
	rec, _ := locate.ReadService(d.Data)
	if running && (rec == nil || !rec.StayWhenStopped) && !awaitEnd(ctx, d.Data, endWait) {
		return fault.New(fault.NotYet, "not_stopped", "the latch is left, but agentd has not ended yet")
	}
	return status(ctx, c, version)
}

// awaitEnd waits until nobody holds the lock of the data directory.
func awaitEnd(ctx context.Context, data string, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); ; {
		if !locked(data) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// locked reports whether an agentd serves the data directory.
func locked(data string) bool {
	f, err := os.Open(filepath.Join(data, place.LockFile))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

func startCommand(version string) *command.Command {
	return &command.Command{Name: "start", Summary: "start the agent after a stop", Flags: command.JSONFlags(false),
		Run: func(ctx context.Context, c *command.Call) error { return start(ctx, c, version) }}
}

// start removes the latch and starts the service, if it does not run.
func start(ctx context.Context, c *command.Call, version string) error {
	d, _, err := dirs(ctx, c)
	if err != nil {
		return err
	}
	if _, err := os.Stat(d.Data); err != nil {
		return fault.New(fault.NotFound, "not_installed", "no agent is installed in %s", d.Data)
	}
	if err := latch.Clear(d.Data); err != nil {
		return err
	}
	mint := newLocal(d.Runtime)
	err = mint.call(ctx, "POST", wire.PathStart, nil, nil)
	if errors.Is(err, errNotRunning) {
		if err := startService(ctx, d); err != nil {
			return err
		}
		if err := awaitAnswer(ctx, mint); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return status(ctx, c, version)
}

// startService runs the command that the installer recorded.
func startService(ctx context.Context, d place.Dirs) error {
	rec, err := locate.ReadService(d.Data)
	if err != nil || len(rec.Start) == 0 {
		return fault.New(fault.Failure, "no_service", "the latch is removed, but how this machine's service is started is not recorded").
			WithHint("start it with its service manager, or install the machine again")
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, rec.Start[0], rec.Start[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	cmd.Env = os.Environ()
	if os.Getenv("XDG_RUNTIME_DIR") == "" { // su and cron leave it out, systemctl --user needs it
		cmd.Env = append(cmd.Env, fmt.Sprintf("XDG_RUNTIME_DIR=/run/user/%d", os.Getuid()))
	}
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fault.New(fault.Failure, "start_failed", "cannot start service: %s: %w: %s", strings.Join(rec.Start, " "), err, strings.TrimSpace(out.String()))
	}
	return nil
}

// awaitAnswer waits until the started agent answers: a start is judged by
// that, not by the command's exit code.
func awaitAnswer(ctx context.Context, mint *local) error {
	for deadline := time.Now().Add(startWait); ; {
		err := mint.call(ctx, "GET", wire.PathStatus, nil, nil)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fault.New(fault.NotYet, "not_started", "the service was started, but agentd does not answer: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
