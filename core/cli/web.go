package cli

import (
	"context"
	"fmt"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/planeclient"
)

func webCommand() *command.Command {
	return &command.Command{Name: "web", Group: groupSession, Summary: "print a link that signs a browser in to the plane's pages, once",
		Help: `The link is good once and for two minutes, and whoever opens it first is you there,
for an hour: open it yourself. The page takes the code of a machine that waits.`,
		Flags: command.JSONFlags(false),
		Run: func(ctx context.Context, c *command.Call) error {
			return onPlane(c, func(p *planeclient.Client) error {
				l, err := p.WebLink(ctx)
				if err != nil {
					return err
				}
				if c.WantsJSON() {
					return c.Print(l)
				}
				c.Notef("open this in your browser, before %s:", l.ExpiresAt)
				_, err = fmt.Fprintln(c.Stdout, clean(l.URL))
				return err
			})
		}}
}
