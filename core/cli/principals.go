package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

func tokenCommand() *command.Command {
	return &command.Command{Name: "token", Group: groupAdmin, Summary: "automation tokens: for scripts, with scopes and an end",
		Help: "A token never admits, approves or deletes a machine, and never makes principals.",
		Sub: []*command.Command{
			{Name: "add", Args: "NAME", Summary: "make a token; its secret goes to --out once and is never shown again", Min: 1, Max: 1,
				Flags: append(command.JSONFlags(false),
					&ufcli.StringSliceFlag{Name: "scope", Usage: "`SCOPE`: read, rotate, order, logs; may be given more than once, or as a list"},
					command.DurationFlag("expires", "its life, as `D`", 0),
					outFlag()),
				Run: tokenAdd},
			{Name: "ls", Summary: "list tokens", Flags: command.JSONFlags(false), Run: tokenList},
			{Name: "rm", Args: "NAME", Summary: "end a token at once", Min: 1, Max: 1, Run: func(ctx context.Context, c *command.Call) error {
				return onPlane(c, func(p *planeclient.Client) error { return p.DeleteToken(ctx, c.Arg(0)) })
			}},
		}}
}

func outFlag() ufcli.Flag {
	return &ufcli.StringFlag{Name: "out", Usage: "new private `FILE` for the secret, or - for standard output", Required: true}
}

func tokenAdd(ctx context.Context, c *command.Call) error {
	var scopes []string
	for _, s := range c.StringSlice("scope") {
		scopes = append(scopes, strings.Split(s, ",")...)
	}
	switch {
	case len(scopes) == 0:
		return fault.Usagef("a token needs at least one --scope")
	case c.Span("expires") <= 0:
		return fault.Usagef("a token needs --expires")
	}
	return onPlane(c, func(p *planeclient.Client) error {
		t, err := p.CreateToken(ctx, wire.TokenRequest{Name: c.Arg(0), Scopes: scopes, ExpiresS: c.Span("expires").Seconds()})
		if err != nil {
			return err
		}
		if err := handOut(c, t.Secret); err != nil {
			// What nobody has can be of no use.
			return errors.Join(err, p.DeleteToken(context.WithoutCancel(ctx), t.Name))
		}
		if c.WantsJSON() && c.String("out") != "-" {
			t.Token.Schema = wire.SchemaToken
			return c.Print(t.Token)
		}
		return nil
	})
}

// handOut writes a secret to a new private file, or to standard output.
func handOut(c *command.Call, secret string) error {
	if out := c.String("out"); out != "-" {
		err := durable.CreateFile(out, []byte(secret+"\n"), 0o600)
		if errors.Is(err, fs.ErrExist) {
			return fault.Usagef("%s is there already", out)
		}
		return err
	}
	_, err := fmt.Fprintln(c.Stdout, secret)
	return err
}

func tokenList(ctx context.Context, c *command.Call) error {
	return onPlane(c, func(p *planeclient.Client) error {
		t, err := p.Tokens(ctx)
		if err != nil {
			return err
		}
		if c.WantsJSON() {
			if t.Tokens == nil {
				t.Tokens = []wire.Token{}
			}
			return c.Print(t)
		}
		fmt.Fprintf(c.Stdout, "%-20s %-12s %-22s %-20s %s\n", "NAME", "OWNER", "SCOPES", "EXPIRES", "LAST USED")
		for _, k := range t.Tokens {
			used := "never"
			if k.LastUsed != nil {
				used = age(time.Since(k.LastUsed.Time)) + " ago"
			}
			fmt.Fprintf(c.Stdout, "%-20s %-12s %-22s %-20s %s\n", fit(k.Name, 20), fit(k.Owner, 12), fit(strings.Join(k.Scopes, ","), 22),
				k.ExpiresAt.Local().Format(time.DateTime), used)
		}
		return nil
	})
}

func personCommand() *command.Command {
	return &command.Command{Name: "person", Group: groupAdmin, Summary: "persons: who may log in",
		Sub: []*command.Command{{Name: "add", Args: "NAME", Summary: "invite a person; the invitation goes to --out", Min: 1, Max: 1,
			Flags: []ufcli.Flag{&ufcli.StringFlag{Name: "role", Usage: "`ROLE`: member or owner", Value: "member"}, outFlag()},
			Run: func(ctx context.Context, c *command.Call) error {
				return onPlane(c, func(p *planeclient.Client) error {
					a, err := p.Invite(ctx, wire.PersonRequest{Name: c.Arg(0), Role: c.String("role")})
					if err != nil {
						return err
					}
					c.Notef("%s may log in with the invitation until %s", clean(a.Name), a.ExpiresAt.Local().Format(time.DateTime))
					return handOut(c, a.Invitation)
				})
			}}}}
}
