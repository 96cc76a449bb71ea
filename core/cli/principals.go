package cli

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/state"
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
				if wire.CheckName(c.Arg(0)) != nil {
					return fault.Usagef("%q: %s", clean(c.Arg(0)), wire.ErrName)
				}
				return onPlane(c, func(p *planeclient.Client) error { return p.DeleteToken(ctx, c.Arg(0)) })
			}},
		}}
}

// tokenScopes are what a token may be for.
var tokenScopes = []string{"read", "rotate", "order", "logs"}

func unknownScope(s string) bool { return !slices.Contains(tokenScopes, s) }

func outFlag() ufcli.Flag {
	return &ufcli.StringFlag{Name: "out", Usage: "new private `FILE` for the secret, or - for standard output"}
}

func tokenAdd(ctx context.Context, c *command.Call) error {
	var scopes []string
	for _, s := range c.StringSlice("scope") {
		scopes = append(scopes, strings.Split(s, ",")...)
	}
	switch {
	case wire.CheckName(c.Arg(0)) != nil:
		return fault.Usagef("%q: %s", c.Arg(0), wire.ErrName)
	case len(scopes) == 0:
		return fault.Usagef("a token needs at least one --scope")
	case slices.ContainsFunc(scopes, unknownScope):
		return fault.Usagef("--scope: %q is none of %s", clean(scopes[slices.IndexFunc(scopes, unknownScope)]), strings.Join(tokenScopes, ", "))
	case c.Span("expires") <= 0:
		return fault.Usagef("a token needs --expires")
	}
	if err := checkOut(c); err != nil {
		return err
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
		if c.WantsJSON() {
			t.Token.Schema = wire.SchemaToken
			return c.Print(t.Token)
		}
		return nil
	})
}

// checkOut looks at --out before a secret is made, so that none is made in vain.
func checkOut(c *command.Call) error {
	out := c.String("out")
	switch {
	case out == "":
		return fault.Usagef("--out names the file for the secret, or - for standard output")
	case out == "-" && c.WantsJSON():
		return fault.Usagef("--out - and --json both want standard output")
	case out != "-" && state.Exists(out):
		return fault.Usagef("%s is there already", out).WithHint("--out names a new file")
	case out != "-" && !state.Exists(filepath.Dir(out)):
		return fault.Usagef("--out: there is no directory %s", filepath.Dir(out))
	}
	return nil
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
		if len(t.Tokens) == 0 {
			c.Notef("no tokens")
			return nil
		}
		return tokenGrid(t.Tokens, time.Now()).write(screenOf(c))
	})
}

func tokenGrid(list []wire.Token, now time.Time) *grid {
	g := &grid{head: []string{"NAME", "OWNER", "SCOPES", "ENDS IN", "LAST USED"}, flex: []int{0, 1, 2}}
	for _, k := range list {
		used, ends := "never", cell{"ended", bad}
		if k.LastUsed != nil {
			used = age(now.Sub(k.LastUsed.Time)) + " ago"
		}
		if left := k.ExpiresAt.Sub(now); left > 0 {
			ends = cell{text: age(left)}
		}
		g.add(cell{text: k.Name}, cell{text: k.Owner}, cell{text: strings.Join(k.Scopes, ",")}, ends, cell{text: used})
	}
	return g
}

// pinFlag is the flag by which another operator knows the plane's root, empty
// where the system vouches for it.
func pinFlag(rootsPEM string) string {
	block, _ := pem.Decode([]byte(rootsPEM))
	if block == nil {
		return ""
	}
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" --ca-pin sha256:%x", sha256.Sum256(root.RawSubjectPublicKeyInfo))
}
