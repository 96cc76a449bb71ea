// Package planed is the plane's program: its command line, and a running plane
// put together from its parts. The parts are in the packages below it:
//
//	api       the HTTP interface, with the table of routes
//	store     what the plane keeps, and bolt, which keeps it in one file
//	machine   what is known of a machine and how it changes
//	identity  a credential's states
//	enrol     machines that wait for approval, and what guessing a code is worth
//	audit     the hash-chained log
//	login     nonces and signatures
//	ca        certificates
//	gate      the fleet-wide token in front of the machine endpoints
//	rotation  how all machines come to hold another version of something
//	keystore  where the authority's keys are
//	datadir   the data directory
//	restore   a backup becomes a store again
//	admin     the socket for the host's administrator
//	web       pages for a person's browser: approving a machine
//	addrfree  keeps network addresses out
//
// The plane never dials and never imports anything of agentd.
package planed

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/admin"
	"fleet.example/fleet/planed/datadir"
)

// Main runs planed and returns its exit code.
func Main(args []string, io command.IO, version string) int {
	app := &command.App{
		Name:    "planed",
		Summary: "the plane: keeps the fleet's machines known",
		Version: version,
		Commands: []*command.Command{
			initCommand(),
			serveCommand(version),
			gateCommand(),
			statusCommand(),
			checkCommand(),
			backupCommand(),
			restoreCommand(),
			recoverCommand(),
			caCommand(),
			{
				Name: "version", Summary: "print the version", Flags: command.JSONFlags(false),
				Run: func(_ context.Context, c *command.Call) error {
					if c.WantsJSON() {
						return c.Print(wire.Version{Schema: wire.SchemaVersion, Version: version})
					}
					_, err := fmt.Fprintf(c.Stdout, "planed %s\n", version)
					return err
				},
			},
		},
	}
	return app.Main(args, io)
}

func dataFlag() cli.Flag {
	return &cli.StringFlag{Name: "data", Usage: "the plane's data `DIR`", Required: false}
}

// dataDir is the value of --data, which every command wants.
func dataDir(c *command.Call) (string, error) {
	dir := c.String("data")
	if dir == "" {
		return "", fault.Usagef("--data DIR is missing").WithHint("it names the plane's data directory")
	}
	return dir, nil
}

// running connects to the plane that has the directory open, or returns nil if
// there is none.
func running(dir string) (*admin.Client, error) {
	c, err := admin.Dial(dir, datadir.FileSocket)
	if errors.Is(err, admin.ErrNotRunning) {
		return nil, nil
	}
	return c, err
}
