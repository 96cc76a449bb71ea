package operator

import (
	"os"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/state"
)

// Mux says which fleet-host serves the call's connections: the one that the
// person's commands with the same state and plugins share, unless --no-mux.
func Mux(c *command.Call) (mux.Options, error) {
	program, err := mux.Executable()
	if err != nil {
		return mux.Options{}, err
	}
	o, err := Shared(program, c.Getenv)
	if err != nil {
		return mux.Options{}, err
	}
	o.Private, o.MayStart, o.Stderr = c.Bool("no-mux"), hasTerminal(), c.Stderr
	if c.Bool("verbose") {
		o.Note = func(text string) { c.Notef("%s", command.Clean(text)) }
	}
	return o, nil
}

// Shared says which shared fleet-host belongs to an environment.
func Shared(program string, getenv func(string) string) (mux.Options, error) {
	d := state.DirsOf(getenv)
	run, err := d.Runtime()
	if err != nil {
		return mux.Options{}, err
	}
	st, err := d.State()
	if err != nil {
		return mux.Options{}, err
	}
	return mux.Options{Program: program, Runtime: run,
		World: []string{st, getenv("HOME"), getenv("XDG_DATA_HOME"), getenv("XDG_CONFIG_HOME"), getenv("FLEET_PLUGIN_DIR")}}, nil
}

// hasTerminal reports whether somebody is there, unlike under cron: processes
// that stay are started only then.
func hasTerminal() bool {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}
