package planed

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/datadir"
)

// schemaNewRoot names newRootDoc.
const schemaNewRoot = "fleet.plane-new-root/v1"

// newRootDoc is fleet.plane-new-root/v1: a root that waits for fleet rotate ca.
type newRootDoc struct {
	Schema  string         `json:"schema"`
	Root    certificateDoc `json:"root"`
	RootKey string         `json:"root_key"` // the file
}

func newRootCommand() *command.Command {
	return &command.Command{
		Name: "new-root", Summary: "make a root beside the one in use, for fleet rotate ca",
		Help: "It vouches for the present intermediate, too. From the next SIGHUP on the plane presents a\n" +
			"certificate that verifies by either root, which changes nothing for anybody; fleet rotate ca\n" +
			"--to PIN then brings the new one to the machines, and retires the old. Move the key away.",
		Flags: append(command.JSONFlags(false), dataFlag(),
			&cli.StringFlag{Name: "root-key-out", Usage: "write the new root's key to `FILE` (default: root.next.key in the data directory)"}),
		Run: func(_ context.Context, c *command.Call) error {
			dir, err := dataDir(c)
			if err != nil {
				return err
			}
			file := c.String("root-key-out")
			if file == "" {
				file = filepath.Join(dir, "root.next.key")
			}
			if file, err = filepath.Abs(file); err != nil {
				return err
			}
			root, err := datadir.NewRoot(dir, file, time.Now())
			if err != nil {
				return err
			}
			if c.WantsJSON() {
				return c.Print(newRootDoc{schemaNewRoot, certificateOf(root, rootAhead), file})
			}
			fmt.Fprintf(c.Stdout, "%s\n", ca.Pin(root))
			c.Notef("its key is in %s: move it off this host", file)
			c.Notef("kill -HUP the plane that serves, then: fleet rotate ca --to %s", ca.Pin(root))
			return nil
		},
	}
}
