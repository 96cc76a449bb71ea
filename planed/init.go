package planed

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/datadir"
)

func initCommand() *command.Command {
	return &command.Command{
		Name:    "init",
		Summary: "make a plane's data directory: authority, store, first invitation",
		Help: "The root key is written to a file of its own. It is needed again only to replace the\n" +
			"intermediate; move it off the host. Run again after an interruption, init finishes.",
		Flags: append(command.JSONFlags(false), dataFlag(),
			&cli.StringFlag{Name: "url", Usage: "the `URL` that everybody dials: https://HOST[:PORT]"},
			&cli.StringFlag{Name: "owner", Usage: "the first owner's `NAME` (default: the login name)"},
			&cli.StringFlag{Name: "root-key-out", Usage: "write the root key to `FILE` (default: root.key in the data directory)"},
		),
		Run: runInit,
	}
}

func runInit(ctx context.Context, c *command.Call) error {
	dir, err := dataDir(c)
	if err != nil {
		return err
	}
	if c.String("url") == "" {
		return fault.Usagef("--url URL is missing").WithHint("it is what machines and persons dial, as https://plane.example")
	}
	url, err := wire.PlaneURL(c.String("url"))
	if err != nil {
		return fault.Usagef("--url: %s", err)
	}
	owner := c.String("owner")
	if owner == "" {
		owner = loginName()
	}
	if err := wire.CheckName(owner); err != nil {
		return fault.Usagef("--owner: %s", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	made, err := datadir.Init(ctx, datadir.Options{Dir: dir, URL: url, Owner: owner, RootKey: c.String("root-key-out"), Now: time.Now()})
	if err != nil {
		return err
	}
	if c.WantsJSON() {
		return c.Print(wire.Plane{Schema: wire.SchemaPlane, URL: url, CAPin: made.Plane.CAPin, InviteFile: made.Invitation})
	}
	fmt.Fprintf(c.Stdout, "url         %s\nca_pin      %s\ninvite_file %s\nroot_key    %s\n", url, made.Plane.CAPin, made.Invitation, made.RootKey)
	c.Notef("\nThe root key is needed only to replace the intermediate: move %s off this host.", made.RootKey)
	c.Notef("Serve:  planed serve --data %s", dir)
	c.Notef("Log in: fleet login %s --ca-pin %s --invite-file %s", url, made.Plane.CAPin, made.Invitation)
	return nil
}

// loginName is the account's name where that is a name of ours, else owner.
func loginName() string {
	if u, err := user.Current(); err == nil && wire.CheckName(u.Username) == nil {
		return u.Username
	}
	if n := os.Getenv("USER"); wire.CheckName(n) == nil {
		return n
	}
	return "owner"
}
