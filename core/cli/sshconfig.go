package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/settings"
)

func sshConfigCommand() *command.Command {
	return &command.Command{
		Name: "ssh-config", Group: groupMachine, Args: "HOST", Summary: "show the SSH client configuration that reaches a host", Min: 1, Max: 1,
		Help: `The configuration is what your own OpenSSH makes of its files for HOST (ssh -G), with
the tokens, variables and ~ expanded that ssh expands when it connects. With --json,
the keywords of ssh -G are fields; those that may have several values are lists.

Nothing is dialled, and no file of OpenSSH's is written. With -v, what is configured
and that fleet does not connect by is named on standard error.`,
		Flags: append(append(command.JSONFlags(false), settings.SSHFlags()...),
			&cli.StringFlag{Name: "l", Usage: "log in as `USER`"}),
		Run: sshConfig,
	}
}

func sshConfig(ctx context.Context, c *command.Call) error {
	flags := settings.SSHAsGiven(c)
	flags.User = c.String("l")
	conf, err := settings.Resolver(c.Getenv).Inspect(ctx, strings.TrimSpace(c.Arg(0)), flags)
	if err != nil {
		return err
	}
	for _, w := range conf.Warnings() {
		c.Notef("ssh: %s", clean(w))
	}
	if c.Bool("verbose") {
		c.Notef("%s", clean(conf.Origin()))
		for _, l := range conf.NotHonoured() {
			c.Notef("not honoured: %s %s", l.Keyword, clean(l.Value))
		}
	}
	if c.WantsJSON() {
		return c.Print(conf.Document())
	}
	var b strings.Builder
	for _, l := range conf.Fields() {
		fmt.Fprintf(&b, "%s %s\n", l.Keyword, l.Value)
	}
	_, err = fmt.Fprint(c.Stdout, b.String())
	return err
}
