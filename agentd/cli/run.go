package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/agentd/agent"
	"fleet.example/fleet/agentd/latch"
	"fleet.example/fleet/agentd/locate"
	"fleet.example/fleet/agentd/logfile"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
)

func runCommand(version string) *command.Command {
	return &command.Command{Name: "run", Summary: "run the agent; service managers call this",
		Help: "With the latch of `agentd stop` in the data directory it ends at once, with exit code 0.\n" +
			"SIGTERM ends it, SIGHUP makes it read its credential files again.",
		Flags: []ufcli.Flag{&ufcli.StringFlag{Name: "listen", Usage: "serve the API at `ADDR` of the loopback interface, too, instead of what fleet install --listen said"}},
		Run:   func(ctx context.Context, c *command.Call) error { return run(ctx, c, version) }}
}

func run(ctx context.Context, c *command.Call, version string) error {
	if addr := c.String("listen"); addr != "" {
		if _, err := place.Loopback(addr); err != nil {
			return fault.Usagef("cannot listen: %s", err)
		}
	}
	umask := syscall.Umask(0o077)
	d, acct, err := dirs(ctx, c)
	if err != nil {
		return err
	}
	if err := locate.CheckPrivate(d.Data); err != nil {
		return fault.New(fault.Failure, "data_unusable", "cannot use data directory: %w", err)
	}
	rec, _ := locate.ReadService(d.Data)
	if latch.Present(d.Data) && (rec == nil || !rec.StayWhenStopped) {
		c.Notef("agentd: stopped by a person; `agentd start` starts it")
		return nil
	}
	// An agent that waits most of the time is better collected early than
	// given room. GOGC and GOMEMLIMIT in the environment still win.
	if c.Getenv("GOGC") == "" {
		debug.SetGCPercent(30)
	}
	if c.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(64 << 20)
	}
	file := logfile.Open(filepath.Join(d.Data, place.LogFile))
	log := hclog.New(&hclog.LoggerOptions{Name: "agentd", Level: hclog.Info, Output: io.MultiWriter(file, c.Stderr)})
	a := &agent.Agent{Dirs: d, Version: version, Log: log, LogFile: file, Account: acct, Getenv: c.Getenv, Umask: umask,
		Children: inherited(c.Getenv(childrenEnv)), Sockets: agent.Inherited(c.Getenv(socketsEnv)), Listen: c.String("listen")}
	os.Unsetenv(childrenEnv)
	os.Unsetenv(socketsEnv)
	err = a.Run(ctx)
	switch {
	case errors.Is(err, agent.ErrHandoff):
		// What follows begins as this program did.
		syscall.Umask(umask)
		os.Setenv(childrenEnv, bequeathed(a.Children))
		os.Setenv(socketsEnv, a.Sockets.String())
		a.Sockets.Bequeath()
		err := handOff(d, log)
		runtime.KeepAlive(a)
		return err
	case errors.Is(err, agent.ErrRunning):
		return fault.New(fault.Refused, "already_running", "%w: %s", err, d.Data)
	}
	return err
}

// socketsEnv tells it which sockets.
const socketsEnv = "FLEET_AGENTD_SOCKETS"

// childrenEnv tells the program that follows in this process which children it
// has: numbers with commas between.
const childrenEnv = "FLEET_AGENTD_CHILDREN"

func inherited(list string) (pids []int) {
	for _, f := range strings.Split(list, ",") {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

func bequeathed(pids []int) string {
	var b strings.Builder
	for i, pid := range pids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(pid))
	}
	return b.String()
}

// handOff becomes the program that `current` names now, or, if that cannot be,
// the one that this is.
func handOff(d place.Dirs, log hclog.Logger) error {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	for _, program := range []string{filepath.Join(d.Data, place.CurrentLink, "agentd"), self} {
		err = syscall.Exec(program, os.Args, os.Environ())
		log.Warn("cannot hand over", "program", filepath.Base(program), "error", err)
	}
	return err
}
