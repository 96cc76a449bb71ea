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
	d := state.DirsOf(c.Getenv)
	run, err := d.Runtime()
	if err != nil {
		return mux.Options{}, err
	}
	st, err := d.State()
	if err != nil {
		return mux.Options{}, err
	}
	o := mux.Options{Program: program, Runtime: run, Private: c.Bool("no-mux"), MayStart: hasTerminal(), Stderr: c.Stderr,
		World: []string{st, c.Getenv("HOME"), c.Getenv("XDG_DATA_HOME"), c.Getenv("XDG_CONFIG_HOME"), c.Getenv("FLEET_PLUGIN_DIR")}}
	if c.Bool("verbose") {
		o.Note = func(text string) { c.Notef("%s", command.Clean(text)) }
	}
	return o, nil
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
