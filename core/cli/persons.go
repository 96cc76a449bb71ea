package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

func personCommand() *command.Command {
	return &command.Command{Name: "person", Group: groupAdmin, Summary: "persons: who may log in, and with which keys",
		Help: `An owner manages every machine and the persons; a member sees every machine and
manages its own. The last owner who can log in is neither locked nor removed; when
every owner's key is lost, planed recover-owner on the plane's host helps.`,
		Sub: []*command.Command{
			{Name: "add", Args: "NAME", Summary: "invite a person; the invitation goes to --out", Min: 1, Max: 1,
				Help: "For a person who is there already the invitation adds a key, and may raise the role.",
				Flags: []ufcli.Flag{&ufcli.StringFlag{Name: "role", Usage: "`ROLE`: member or owner", Value: "member"},
					command.DurationFlag("expires", "the invitation's life, as `D`", 0), outFlag()},
				Run: personAdd},
			{Name: "ls", Summary: "list persons and the invitations that wait", Flags: command.JSONFlags(false), Run: personList},
			{Name: "show", Args: "NAME", Summary: "show a person: keys, sessions, tokens, machines", Min: 1, Max: 1, Flags: command.JSONFlags(false), Run: personShow},
			{Name: "lock", Args: "NAME", Summary: "end a person's sessions and tokens at once, and refuse their keys", Min: 1, Max: 1,
				Help: `Invitations for the person and those that they made are void. Their machines and
keys stay; unlock lets them log in again, with new sessions and new tokens.`,
				Flags: command.JSONFlags(false), Run: personChange((*planeclient.Client).LockPerson)},
			{Name: "unlock", Args: "NAME", Summary: "let a locked person log in again", Min: 1, Max: 1,
				Flags: command.JSONFlags(false), Run: personChange((*planeclient.Client).UnlockPerson)},
			{Name: "rm", Args: "NAME", Summary: "remove a person, or the invitation of one who has not come", Min: 1, Max: 1,
				Help:  "Refused while the person owns machines: fleet transfer gives them to another.",
				Flags: command.JSONFlags(false), Run: personChange((*planeclient.Client).RemovePerson)},
			{Name: "key", Summary: "a person's SSH keys: your own, or as an owner anybody's", Sub: []*command.Command{
				{Name: "add", Args: "NAME FILE", Summary: "add the public key in FILE, or - for standard input", Min: 2, Max: 2,
					Flags: command.JSONFlags(false), Run: personKeyAdd},
				{Name: "ls", Args: "NAME", Summary: "list a person's keys", Min: 1, Max: 1, Flags: command.JSONFlags(false), Run: personKeyList},
				{Name: "rm", Args: "NAME FINGERPRINT", Summary: "remove a key, and end the sessions that it opened", Min: 2, Max: 2,
					Flags: command.JSONFlags(false), Run: personKeyRemove},
			}},
		}}
}

func personAdd(ctx context.Context, c *command.Call) error {
	switch role := c.String("role"); {
	case wire.CheckName(c.Arg(0)) != nil:
		return fault.Usagef("%q: %s", c.Arg(0), wire.ErrName)
	case role != wire.RoleOwner && role != wire.RoleMember:
		return fault.Usagef("--role is member or owner, not %q", role)
	}
	if err := checkOut(c); err != nil {
		return err
	}
	p, client, err := operator.Plane(c)
	if err != nil {
		return err
	}
	defer client.Close()
	a, err := client.Invite(ctx, wire.PersonRequest{Name: c.Arg(0), Role: c.String("role"), ExpiresS: c.Span("expires").Seconds()})
	if err != nil {
		return err
	}
	if err := handOut(c, a.Invitation); err != nil {
		return err
	}
	c.Notef("%s may log in as %s until %s with", clean(a.Name), clean(a.Role), a.ExpiresAt)
	c.Notef("  fleet login %s%s --invite-file %s", p.URL(), pinFlag(p.RootsPEM()), c.String("out"))
	return nil
}

// personNamed is the person that the first argument names.
func personNamed(c *command.Call) (string, error) {
	if wire.CheckName(c.Arg(0)) != nil {
		return "", fault.Usagef("%q: %s", clean(c.Arg(0)), wire.ErrName)
	}
	return c.Arg(0), nil
}

func personList(ctx context.Context, c *command.Call) error {
	return onPlane(c, func(p *planeclient.Client) error {
		all, err := p.Persons(ctx)
		if err != nil {
			return err
		}
		if c.WantsJSON() {
			return c.Print(all)
		}
		if err := personGrid(all.Persons, time.Now()).write(screenOf(c)); err != nil {
			return err
		}
		for _, i := range all.Invitations {
			c.Notef("%s is invited as %s by %s, until %s", clean(i.Name), clean(i.Role), clean(i.By), i.ExpiresAt)
		}
		return nil
	})
}

func personGrid(list []wire.Person, now time.Time) *grid {
	g := &grid{head: []string{"NAME", "ROLE", "STATE", "KEYS", "SESSIONS", "TOKENS", "LAST LOGIN"}, flex: []int{0}}
	for _, p := range list {
		state, last := cell{text: "active"}, "never"
		if p.Locked {
			state = cell{"locked", bad}
		}
		if p.LastLogin != nil {
			last = age(now.Sub(p.LastLogin.Time)) + " ago"
		}
		g.add(cell{text: p.Name}, cell{text: p.Role}, state, cell{text: strconv.Itoa(len(p.Keys))},
			cell{text: strconv.Itoa(p.Sessions)}, cell{text: strconv.Itoa(len(p.Tokens))}, cell{text: last})
	}
	return g
}

func personShow(ctx context.Context, c *command.Call) error {
	return onPerson(ctx, c, func(v wire.Person) error { return describePerson(c.Stdout, v) })
}

// onPerson shows the named person: as their document, or to people.
func onPerson(ctx context.Context, c *command.Call, show func(wire.Person) error) error {
	name, err := personNamed(c)
	if err != nil {
		return err
	}
	return onPlane(c, func(p *planeclient.Client) error {
		v, err := p.Person(ctx, name)
		if err != nil {
			return err
		}
		if c.WantsJSON() {
			return c.Print(v)
		}
		return show(v)
	})
}

func describePerson(w io.Writer, p wire.Person) error {
	var b bytes.Buffer
	line := func(k, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", k+":", fmt.Sprintf(format, args...))
	}
	line("name", "%s", clean(p.Name))
	line("role", "%s", clean(p.Role))
	if p.LockedAt != nil {
		line("locked", "at %s by %s", p.LockedAt, clean(p.LockedBy))
	}
	line("since", "%s", p.CreatedAt)
	if p.LastLogin != nil {
		line("last login", "%s", p.LastLogin)
	}
	line("sessions", "%d", p.Sessions)
	if len(p.Tokens) > 0 {
		line("tokens", "%s", clean(strings.Join(p.Tokens, ", ")))
	}
	if p.Machines != nil {
		line("machines", "%d", *p.Machines)
	}
	for _, k := range p.Keys {
		used := "never used"
		if k.LastUsed != nil {
			used = "last used " + k.LastUsed.String()
		}
		line("key", "%s %s, %s", clean(k.Type), clean(k.Fingerprint), used)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// personChange is a command that changes the person whom its argument names.
func personChange(do func(*planeclient.Client, context.Context, string) (wire.PersonChanged, error)) func(context.Context, *command.Call) error {
	return func(ctx context.Context, c *command.Call) error {
		name, err := personNamed(c)
		if err != nil {
			return err
		}
		return onPlane(c, func(p *planeclient.Client) error {
			did, err := do(p, ctx, name)
			if err != nil {
				return err
			}
			return sayChanged(c, did)
		})
	}
}

// sayChanged says what was done, and what it ended besides.
func sayChanged(c *command.Call, did wire.PersonChanged) error {
	if c.WantsJSON() {
		return c.Print(did)
	}
	if _, err := fmt.Fprintf(c.Stdout, "%s  %s\n", clean(did.Name), strings.ReplaceAll(clean(did.Change), "_", " ")); err != nil {
		return err
	}
	if did.Sessions > 0 {
		c.Notef("sessions that ended: %d", did.Sessions)
	}
	if len(did.Tokens) > 0 {
		c.Notef("tokens that ended: %s", clean(strings.Join(did.Tokens, ", ")))
	}
	if did.Invitations > 0 {
		c.Notef("invitations that are void: %d", did.Invitations)
	}
	if did.Machines > 0 {
		c.Notef("machines that are still theirs: %d; fleet transfer gives them to another", did.Machines)
	}
	return nil
}

// maxKey bounds a public key's file.
const maxKey = 16 << 10

func personKeyAdd(ctx context.Context, c *command.Call) error {
	name, err := personNamed(c)
	if err != nil {
		return err
	}
	in := c.Stdin
	if file := c.Arg(1); file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("cannot read the public key: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxKey+1))
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the public key: %w", err)
	case len(b) > maxKey:
		return fault.Usagef("%s is no public key: it is larger than %d bytes", clean(c.Arg(1)), maxKey)
	case bytes.Contains(b, []byte("PRIVATE KEY")): // it must not travel
		return fault.Usagef("%s is a private key", clean(c.Arg(1))).WithHint("the public half is in %s.pub", clean(c.Arg(1)))
	}
	if !isPublicKey(string(b)) {
		return fault.Usagef("%s is no public key of SSH", clean(c.Arg(1))).WithHint("its line has a type and the key, as ssh-ed25519 AAAA…")
	}
	return onPlane(c, func(p *planeclient.Client) error {
		did, err := p.AddKey(ctx, name, string(b))
		if err != nil {
			return err
		}
		return sayChanged(c, did)
	})
}

// isPublicKey reports whether the text looks like a line of an authorized_keys
// file. The plane, which knows keys, looks closer.
func isPublicKey(text string) bool {
	words := strings.Fields(text)
	for i := 1; i < len(words); i++ {
		// The key's first field repeats its type, after its length.
		if b, err := base64.StdEncoding.DecodeString(words[i]); err == nil && len(b) > 4 && bytes.HasPrefix(b[4:], []byte(words[i-1])) {
			return true
		}
	}
	return false
}

func isSHA256(text string) bool {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	return err == nil && len(b) == sha256.Size
}

func personKeyList(ctx context.Context, c *command.Call) error {
	return onPerson(ctx, c, func(v wire.Person) error { return keyGrid(v.Keys, time.Now()).write(screenOf(c)) })
}

func keyGrid(list []wire.PersonKey, now time.Time) *grid {
	g := &grid{head: []string{"FINGERPRINT", "TYPE", "ADDED", "LAST USED"}, flex: []int{0, 1}}
	for _, k := range list {
		used := "never"
		if k.LastUsed != nil {
			used = age(now.Sub(k.LastUsed.Time)) + " ago"
		}
		g.add(cell{text: k.Fingerprint}, cell{text: k.Type}, cell{text: age(now.Sub(k.AddedAt.Time)) + " ago"}, cell{text: used})
	}
	return g
}

func personKeyRemove(ctx context.Context, c *command.Call) error {
	name, err := personNamed(c)
	if err != nil {
		return err
	}
	fp := c.Arg(1)
	if sum, ok := strings.CutPrefix(fp, "SHA256:"); !ok || !isSHA256(sum) {
		return fault.Usagef("%q is no fingerprint of the form SHA256:…", clean(fp)).WithHint("fleet person key ls %s shows them", name)
	}
	return onPlane(c, func(p *planeclient.Client) error {
		did, err := p.RemoveKey(ctx, name, fp)
		if err != nil {
			return err
		}
		return sayChanged(c, did)
	})
}

func transferCommand() *command.Command {
	spec := fanout.Spec{Does: "transfer", Several: true}
	return &command.Command{Name: "transfer", Group: groupMachine, Args: "MACHINE…|SELECTOR --to PERSON", Summary: "give machines to another person", Max: -1,
		Help: `The machine's credential, name and labels stay; only who manages it changes. A
member gives away its own, an owner any.`,
		Flags: append(append(command.JSONFlags(true), &ufcli.StringFlag{Name: "to", Usage: "the `PERSON` they will belong to"}), spec.Flags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			to := c.String("to")
			if wire.CheckName(to) != nil {
				if to == "" {
					return fault.Usagef("--to is missing: it names the person").WithHint("usage: %s", c.Usage)
				}
				return fault.Usagef("--to %q: %s", clean(to), wire.ErrName)
			}
			return onPlane(c, func(client *planeclient.Client) error {
				machines, err := sel.Machines(ctx, c, atPlane(client))
				if err != nil {
					return err
				}
				return sel.Each(ctx, c, machines, func(ctx context.Context, o *fanout.One) (fanout.Outcome, error) {
					m, err := client.Transfer(ctx, o.ID, to)
					if err != nil {
						return fanout.Outcome{}, err
					}
					m.Schema = wire.SchemaMachine
					return fanout.Outcome{Document: m, Words: "belongs to " + clean(m.Owner), Show: func(c *command.Call) error {
						_, err := fmt.Fprintf(c.Stdout, "%s  %s  belongs to %s\n", o.ID, clean(o.Name), clean(m.Owner))
						return err
					}}, nil
				}, nil)
			})
		}}
}
