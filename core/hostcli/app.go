// Package hostcli is fleet-host: the part of fleet that speaks SSH and hosts
// plugins. fleet starts it for the commands that need either, as git starts its
// helpers, and hands it the command line as it is; people never call it by name.
//
// What needs neither SSH nor plugins belongs to package cli, which starts in a
// few milliseconds because it links neither.
package hostcli

import (
	"strings"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/state"
)

// Build is what the linker says of this program.
type Build struct {
	Version string
	// ArtifactSigner is the public key, in authorized_keys form, whose artifacts
	// are trusted besides those that the person names. It may be empty.
	ArtifactSigner string
}

// Main runs fleet-host and returns its exit code.
func Main(args []string, std command.IO, b Build) int {
	app := &command.App{
		// People called fleet, and messages speak of what they called.
		Name: "fleet", Summary: "the part of fleet that speaks SSH and hosts plugins", Version: b.Version,
		Flags: settings.Flags(), Signals: true,
		Config:   func() (map[string]string, error) { return settings.Load(state.DirsOf(std.Getenv)) },
		Commands: commands(b),
	}
	return app.Main(args, std)
}

func commands(b Build) []*command.Command {
	return []*command.Command{
		loginCommand(b), testCommand(b), trustCommand(b), installCommand(b), approveCommand(b), denyCommand(b), updateCommand(b), rollbackCommand(b), uninstallCommand(b),
		{Name: "host", Hidden: true, Sub: []*command.Command{linkCommand(b)}}, signStatementCommand(b), pluginCommand(b), artifactCommand(b), muxCommand(b),
	}
}

// Names are the commands that fleet passes on, with their summaries, for the
// front's own help. A test holds the front's copy against it.
func Names() map[string]string {
	out := map[string]string{}
	for _, c := range commands(Build{}) {
		if !c.Hidden {
			out[c.Name] = c.Summary
		}
	}
	return out
}

// host is the argument that names an SSH destination.
func host(c *command.Call) string { return strings.TrimSpace(c.Arg(0)) }
