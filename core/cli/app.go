package cli

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/state"
)

// Main runs fleet and returns its exit code.
func Main(args []string, std command.IO, version string) int {
	app := &command.App{Name: "fleet", Summary: "looks after machines that nobody can dial into", Version: version,
		Flags: settings.Flags(), Signals: true,
		Config: func() (map[string]string, error) { return settings.Load(state.DirsOf(std.Getenv)) },
	}
	for _, p := range passedOn {
		app.Commands = append(app.Commands, &command.Command{Name: p.name, Group: p.group, Summary: p.summary, Raw: passOn(p.name)})
	}
	app.Commands = append(app.Commands, DataPath(reachThroughHost)...)
	return app.Main(args, std)
}

// passedOn are the commands that fleet-host runs.
var passedOn = []struct{ name, group, summary string }{
	{"login", "Session", "start a session at a plane, by a signature of your SSH key"},
	{"test", "Machines", "look at what an install would meet, and change nothing"},
	{"trust", "Machines", "pin, re-pin, list or remove host keys"},
	{"install", "Machines", "install the agent on a machine over SSH, and link it"},
	{"update", "Machines", "bring machines to the artifact that this fleet has"},
	{"rollback", "Machines", "bring machines back to the version before the last update"},
	{"uninstall", "Machines", "stop and remove the agent, its service and files, and delete the machine"},
	{"plugin", "Tools", "plugins: where they come from, and which may run"},
	{"artifact", "Tools", "build, verify and trust what is installed on machines"},
}

// passOn makes this process fleet-host, with the command line as it is.
func passOn(name string) func(context.Context, command.IO, []string) int {
	return func(_ context.Context, std command.IO, args []string) int {
		program, err := mux.Executable()
		if err == nil {
			err = syscall.Exec(program, append([]string{"fleet-host", name}, args...), os.Environ())
		}
		f := fault.Of(err)
		fmt.Fprintf(std.Stderr, "fleet: cannot run fleet-host: %s\n", f.Msg)
		if f.Hint != "" {
			fmt.Fprintf(std.Stderr, "hint: %s\n", f.Hint)
		}
		return f.Exit
	}
}
