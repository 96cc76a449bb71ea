package hostcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func loginCommand(b Build) *command.Command {
	return &command.Command{
		Name: "login", Group: "Session", Args: "[URL]", Summary: "start a session at a plane, by a signature of your SSH key", Max: 1,
		Help: `Without URL the plane is the one that --plane names, else the one of the last login.
The key is --key, else the one that logged in to this plane before, else the only
one that the ssh-agent and ~/.ssh have. A private plane is recognised by --ca-pin
the first time, by the pin that planed init printed; afterwards its root is remembered. A
key that the plane does not know yet comes with an invitation, in --invite-file: planed
init and fleet person add write one. The session ends after 12 hours.`,
		Flags: append(command.JSONFlags(false),
			&cli.StringFlag{Name: "invite-file", Usage: "`FILE` with the invitation that adds this key, or - for standard input"},
			&cli.StringFlag{Name: "ca-pin", Usage: "`sha256:HEX` of the plane's root key, as planed init printed it"},
			&cli.StringFlag{Name: "key", Usage: "private key `FILE`, or the public half of one that the ssh-agent holds"},
		),
		Run: func(ctx context.Context, c *command.Call) error { return runLogin(ctx, b, c) },
	}
}

func runLogin(ctx context.Context, b Build, c *command.Call) error {
	e, err := newEnv(b, c)
	if err != nil {
		return err
	}
	url, err := e.loginURL(c)
	if err != nil {
		return err
	}
	known, err := e.dirs.OpenPlane(url)
	if err != nil && !errors.Is(err, state.ErrNoPlane) {
		return err
	}
	roots := planeclient.SystemRoots
	switch pin := c.String("ca-pin"); {
	case pin != "":
		if roots, err = planeclient.VerifyPin(ctx, url, pin); err != nil {
			return err
		}
	case known != nil:
		roots = known.RootsPEM()
	}
	invite, err := readInvite(c)
	if err != nil {
		return err
	}
	remembered := ""
	if known != nil {
		remembered = known.Key()
	}
	key, done, err := e.loginKey(c.String("key"), remembered)
	if err != nil {
		return err
	}
	defer done()
	client, err := planeclient.New(planeclient.Options{URL: url, RootsPEM: roots})
	if err != nil {
		return err
	}
	defer client.Close()
	challenge, err := client.Challenge(ctx)
	if err != nil {
		return err
	}
	sig, err := artifact.Sign(wire.LoginMessage(challenge.Nonce, url), key, wire.NamespaceLogin)
	if err != nil {
		return err
	}
	answer, err := client.Login(ctx, wire.LoginRequest{Nonce: challenge.Nonce, URL: url,
		PublicKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey()))), Signature: string(sig), Invite: invite.Reveal()})
	if err != nil {
		return err
	}
	fp := ssh.FingerprintSHA256(key.PublicKey())
	saved, err := e.dirs.SaveLogin(ctx, url, roots, fp, answer)
	if err != nil {
		return err
	}
	if err := saved.KeepKey(ctx, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey())))); err != nil {
		return err
	}
	if c.WantsJSON() {
		return c.Print(wire.Whoami{Schema: wire.SchemaWhoami, Plane: url, Kind: "person", Name: answer.Person, Role: answer.Role, Key: fp, ExpiresAt: &answer.ExpiresAt})
	}
	fmt.Fprintf(c.Stdout, "logged in to %s as %s (%s), until %s\n", url, answer.Person, answer.Role, answer.ExpiresAt.Local().Format(time.DateTime))
	return nil
}

// loginURL is the plane that a login is for.
func (e *env) loginURL(c *command.Call) (string, error) {
	given, selected := c.Arg(0), c.String("plane")
	switch {
	case given != "" && selected != "" && c.Given("plane"):
		a, err := state.NormalURL(given)
		if err != nil {
			return "", err
		}
		if b, err := state.NormalURL(selected); err != nil || a != b {
			return "", fault.Usagef("URL is %s and --plane is %s", given, selected)
		}
		return a, nil
	case given != "":
		return state.NormalURL(given)
	case selected != "":
		return state.NormalURL(selected)
	}
	p, err := e.dirs.OpenPlane("")
	if errors.Is(err, state.ErrNoPlane) {
		return "", fault.Usagef("URL is missing: no plane is known here").WithHint("usage: %s", c.Usage)
	}
	if err != nil {
		return "", err
	}
	c.Notef("logging in to %s, the plane of the last login", p.URL())
	return p.URL(), nil
}

func readInvite(c *command.Call) (secret.Text, error) {
	switch f := c.String("invite-file"); f {
	case "":
		return secret.Text{}, nil
	case "-":
		b, err := io.ReadAll(io.LimitReader(c.Stdin, 4096))
		if err != nil {
			return secret.Text{}, fmt.Errorf("cannot read the invitation: %w", err)
		}
		return secret.Of(string(b)), nil
	default:
		b, err := durable.ReadPrivate(f, 4096)
		if err != nil {
			return secret.Text{}, fmt.Errorf("cannot read the invitation: %w", err)
		}
		return secret.Of(string(b)), nil
	}
}

// candidate is a key that could log in.
type candidate struct {
	signer ssh.Signer
	from   string
}

// loginKey chooses the key that signs: the named one, the remembered one, the
// only one. done closes the connection to the agent.
func (e *env) loginKey(named, remembered string) (s ssh.Signer, done func(), err error) {
	held, done, agentErr := e.heldKeys()
	fail := func(err error) (ssh.Signer, func(), error) {
		done()
		return nil, nil, err
	}
	if named != "" {
		s, err := namedKey(named, held)
		if err != nil {
			return fail(err)
		}
		return s, done, nil
	}
	var all []candidate
	seen := map[string]bool{}
	for _, c := range append(held, e.keyFiles(held)...) {
		fp := ssh.FingerprintSHA256(c.signer.PublicKey())
		if fp == remembered {
			return c.signer, done, nil
		}
		if !seen[fp] {
			seen[fp] = true
			all = append(all, c)
		}
	}
	switch len(all) {
	case 1:
		return all[0].signer, done, nil
	case 0:
		f := fault.New(fault.Usage, "no_key", "no SSH key to log in with: none in the ssh-agent, none in ~/.ssh")
		if agentErr != nil {
			f = f.WithHint("the ssh-agent cannot be reached: %s; --key FILE names a key", agentErr)
		} else {
			f = f.WithHint("--key FILE names a key")
		}
		return fail(f)
	}
	var list []string
	for _, c := range all {
		list = append(list, fmt.Sprintf("%s %s (%s)", c.signer.PublicKey().Type(), ssh.FingerprintSHA256(c.signer.PublicKey()), c.from))
	}
	return fail(fault.New(fault.Usage, "which_key", "%d keys could log in; name one with --key", len(all)).WithHint("%s", strings.Join(list, "\n")))
}

// heldKeys are the ssh-agent's.
func (e *env) heldKeys() ([]candidate, func(), error) {
	sock := e.call.Getenv("SSH_AUTH_SOCK")
	if sock == "" {
		return nil, func() {}, nil
	}
	conn, err := net.DialTimeout("unix", sock, 5*time.Second)
	if err != nil {
		return nil, func() {}, err
	}
	conn.SetDeadline(time.Now().Add(2 * time.Minute)) // a hardware key waits for a touch
	signers, err := agent.NewClient(conn).Signers()
	var out []candidate
	for _, s := range signers {
		if _, isCert := s.PublicKey().(*ssh.Certificate); !isCert {
			out = append(out, candidate{s, "ssh-agent"})
		}
	}
	return out, func() { conn.Close() }, err
}

// keyFiles are the unencrypted keys under ssh's default names.
func (e *env) keyFiles(held []candidate) []candidate {
	home, err := os.UserHomeDir()
	if h := e.call.Getenv("HOME"); h != "" {
		home, err = h, nil
	}
	if err != nil {
		return nil
	}
	var out []candidate
	for _, n := range []string{"id_rsa", "id_ecdsa", "id_ed25519"} {
		path := filepath.Join(home, ".ssh", n)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if s, err := namedKey(path, held); err == nil {
			out = append(out, candidate{s, path})
		} else {
			e.notef("%v", err)
		}
	}
	return out
}

// namedKey reads a private key, or finds the agent's where only the public half
// or an encrypted key is in the file.
func namedKey(path string, held []candidate) (ssh.Signer, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the key: %w", err)
	}
	inAgent := func(pub ssh.PublicKey) ssh.Signer {
		for _, c := range held {
			if pub != nil && ssh.FingerprintSHA256(c.signer.PublicKey()) == ssh.FingerprintSHA256(pub) {
				return c.signer
			}
		}
		return nil
	}
	s, err := ssh.ParsePrivateKey(b)
	if err == nil {
		return s, nil
	}
	var needs *ssh.PassphraseMissingError
	if errors.As(err, &needs) {
		if s := inAgent(needs.PublicKey); s != nil {
			return s, nil
		}
		return nil, fault.New(fault.Failure, "key_encrypted", "%s is encrypted", path).WithHint("load this key into ssh-agent first: ssh-add %s", path)
	}
	if pub, _, _, _, perr := ssh.ParseAuthorizedKey(b); perr == nil {
		if s := inAgent(pub); s != nil {
			return s, nil
		}
		return nil, fault.New(fault.Failure, "key_not_in_agent", "the ssh-agent does not hold the key of %s", path)
	}
	return nil, fmt.Errorf("cannot read the key: %s: %w", path, err)
}
