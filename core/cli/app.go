package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// Main runs fleet and returns its exit code.
func Main(args []string, std command.IO, version string) int {
	app := &command.App{Name: "fleet", Summary: "looks after machines that nobody can dial into", Version: version,
		Flags: settings.Flags(), Signals: true,
		Config: func() (map[string]string, error) { return settings.Load(state.DirsOf(std.Getenv)) },
	}
	app.Topics, app.Unknown = topics, external
	var tools []*command.Command // help lists them last
	for _, p := range passedOn {
		cmd := &command.Command{Name: p.name, Group: p.group, Summary: p.summary, Raw: passOn(p.name)}
		if p.group == groupTools {
			tools = append(tools, cmd)
			continue
		}
		app.Commands = append(app.Commands, cmd)
	}
	app.Commands = append(app.Commands, logoutCommand(), whoamiCommand(), webCommand(),
		lsCommand(), showCommand(), waitCommand(), hostCommand(), renameCommand(), labelCommand(), rotateCommand(), drillCommand(), transferCommand(), deleteCommand())
	app.Commands = append(app.Commands, sshConfigCommand())
	app.Commands = append(app.Commands, DataPath(overLinks())...)
	app.Commands = append(app.Commands, auditCommand(), tokenCommand(), personCommand())
	app.Commands = append(app.Commands, append(tools, muxCommand(), versionCommand(version))...)
	return app.Main(args, std)
}

// passedOn are the commands that fleet-host runs.
var passedOn = []struct{ name, group, summary string }{
	{"login", groupSession, "start a session at a plane, by a signature of your SSH key"},
	{"test", groupMachine, "look at what an install would meet, and change nothing"},
	{"trust", groupMachine, "pin, re-pin, list or remove host keys"},
	{"install", groupMachine, "install the agent on a machine over SSH, and link it"},
	{"approve", groupMachine, "admit the machine that waits with a code"},
	{"deny", groupMachine, "refuse the machine that waits with a code"},
	{"update", groupMachine, "bring machines to the artifact that this fleet has"},
	{"rollback", groupMachine, "bring machines back to the version before the last update"},
	{"uninstall", groupMachine, "stop and remove the agent, its service and files, and delete the machine"},
	{"plugin", groupTools, "plugins: where they come from, and which may run"},
	{"artifact", groupTools, "build, verify and trust what is installed on machines"},
}

// passOn makes this process fleet-host, with the command line as it is.
func passOn(name ...string) func(context.Context, command.IO, []string) int {
	return func(_ context.Context, std command.IO, args []string) int {
		program, err := mux.Executable()
		if err == nil {
			err = syscall.Exec(program, slices.Concat([]string{"fleet-host"}, name, args), os.Environ())
		}
		f := fault.Of(err)
		fmt.Fprintf(std.Stderr, "fleet: cannot run fleet-host: %s\n", f.Msg)
		if f.Hint != "" {
			fmt.Fprintf(std.Stderr, "hint: %s\n", f.Hint)
		}
		return f.Exit
	}
}

// PassedOn are the commands that fleet-host runs, with their summaries.
func PassedOn() map[string]string {
	out := map[string]string{}
	for _, p := range passedOn {
		out[p.name] = p.summary
	}
	return out
}

// external runs fleet-NAME from PATH, as git does. fleet's own helpers and
// plugins are not commands, wherever they are found.
func external(_ context.Context, std command.IO, name string, args []string) (exit int, known bool) {
	if wire.CheckName(name) != nil || name == "host" || name == "plugins" {
		return 0, false
	}
	for _, kind := range []string{"transport-", "service-", "probe-"} {
		if strings.HasPrefix(name, kind) {
			return 0, false
		}
	}
	program, err := exec.LookPath("fleet-" + name)
	if err != nil {
		return 0, false
	}
	err = syscall.Exec(program, append([]string{"fleet-" + name}, args...), os.Environ())
	fmt.Fprintf(std.Stderr, "fleet: cannot run %s: %s\n", program, err)
	return fault.Failure, true
}
