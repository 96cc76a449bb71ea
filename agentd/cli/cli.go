// Package cli is the commands of agentd: the daemon itself, and the short
// commands with which a person, or fleet over SSH, installs its credential,
// asks it, stops and starts it. They meet the running agent on its mint
// socket, and the disk where none runs.
package cli

import (
	"context"
	"fmt"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/agentd/locate"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
)

// Main runs one command and returns its exit code.
func Main(args []string, std command.IO, version string) int {
	app := &command.App{
		Name: "agentd", Summary: "keep this machine known to its plane, and reachable for its people", Version: version,
		Flags: []ufcli.Flag{
			&ufcli.StringFlag{Name: "data", Usage: "the installation's data `DIR`"},
			&ufcli.StringFlag{Name: "runtime", Usage: "the `DIR` of its sockets"},
		},
		Commands: []*command.Command{
			runCommand(version), enrollCommand(version), credentialCommand(), idCommand(), tokenCommand(), bridgeCommand(),
			stopCommand(version), startCommand(version), statusCommand(version), versionCommand(version),
		},
	}
	return app.Main(args, std)
}

// dirs finds the installation that the command means.
func dirs(ctx context.Context, c *command.Call) (place.Dirs, account.Account, error) {
	a := account.Current(ctx)
	d, err := locate.Find(a, c.Getenv, c.String("data"), c.String("runtime"))
	return d, a, err
}

func versionCommand(version string) *command.Command {
	return &command.Command{Name: "version", Summary: "print the version", Flags: command.JSONFlags(false),
		Run: func(_ context.Context, c *command.Call) error {
			if c.WantsJSON() {
				return c.Print(struct {
					Schema  string `json:"schema"`
					Version string `json:"version"`
				}{wire.SchemaVersion, version})
			}
			fmt.Fprintf(c.Stdout, "agentd %s\n", version)
			return nil
		}}
}
