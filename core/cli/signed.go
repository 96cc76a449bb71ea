package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func rotateURLCommand() *command.Command {
	return &command.Command{Name: "url", Args: "--to URL [--leave MACHINE…]", Summary: "have the whole fleet reach the plane at another URL", Max: -1,
		Help: `The plane has to be reachable at both URLs until the end: another name for the
same address, or planed serve with --listen twice. The new URL is signed with your
SSH key, since machines believe that of nobody else: each has the keys it takes
(fleet install --signers). A machine tries the new URL beside the old one, and
stays where it is if nobody who knows it answers there.

The steps are those of fleet rotate gate: widen (the plane has a certificate for
both, and this command has reached it at the new one), roll, prove, narrow (a
machine that comes to the old URL is told of the new one alone). A machine that
slept comes back by itself for as long as the old URL leads to the plane.

--abort signs once more where the plane was. Afterwards fleet knows the plane by
its new URL; others log in there. Exit 8 when --timeout is over first.`,
		Flags: materialFlags(
			&ufcli.StringFlag{Name: "to", Usage: "the new `URL`: https://HOST[:PORT]"},
			&ufcli.StringFlag{Name: "key", Usage: "sign with the private key `FILE`, or with the public half of one in the ssh-agent (default: the key that logged in)"}),
		Run: func(ctx context.Context, c *command.Call) error { return rotateSigned(ctx, c, wire.MaterialURL) }}
}

func rotateCACommand() *command.Command {
	return &command.Command{Name: "ca", Args: "--to PIN|FILE [--leave MACHINE…]", Summary: "have the whole fleet trust another root of the plane", Max: -1,
		Help: `planed ca new-root, on the plane's host, makes a root and prints its pin; from the
next SIGHUP on the plane presents a certificate that both roots vouch for. The new
root is signed with your SSH key, since machines believe that of nobody else: each
has the keys it takes (fleet install --signers). A machine tries a connection that
the new root alone vouches for, and keeps the old one if that fails.

The steps are those of fleet rotate gate. In narrow the old root is trusted no
more. A machine that slept comes back by itself until the next planed ca renew.

--abort signs once more which root it was. Others log in again with the new pin.
Exit 8 when --timeout is over first.`,
		Flags: materialFlags(
			&ufcli.StringFlag{Name: "to", Usage: "the new root: its `PIN` sha256:HEX, or a file with its certificate"},
			&ufcli.StringFlag{Name: "key", Usage: "sign with the private key `FILE`, or with the public half of one in the ssh-agent (default: the key that logged in)"}),
		Run: func(ctx context.Context, c *command.Call) error { return rotateSigned(ctx, c, wire.MaterialTrust) }}
}

func rotateSigned(ctx context.Context, c *command.Call, kind string) error {
	if err := checkMaterial(c, kind); err != nil {
		return err
	}
	to, err := checkTo(c, kind)
	if err != nil {
		return err
	}
	known, client, err := operator.Plane(c)
	if err != nil {
		return err
	}
	defer client.Close()
	s := &signedMover{what: kind, to: to, call: c, known: known, client: client}
	return rotateMaterial(ctx, c, client, s)
}

// checkTo looks at what --to and --key name before anything is asked. The URL is
// returned in its normal form; a root is read when it is known which are there.
func checkTo(c *command.Call, kind string) (url string, err error) {
	if k := c.String("key"); k != "" {
		if _, err := os.Stat(k); err != nil {
			return "", fmt.Errorf("cannot read the key: %w", err)
		}
	}
	switch to := c.String("to"); {
	case !c.IsSet("to"):
	case kind == wire.MaterialURL:
		if url, err = wire.PlaneURL(to); err != nil {
			return "", fault.Usagef("--to: %s", err)
		}
	case strings.HasPrefix(to, "sha256:"):
		if _, err := planeclient.ParsePin(to); err != nil {
			return "", err
		}
	default:
		if _, err := os.Stat(to); err != nil {
			return "", fmt.Errorf("cannot read the new root: %w", err)
		}
	}
	return url, nil
}

// signedMover rotates what a person signs.
type signedMover struct {
	what   string
	to     string // the new value
	call   *command.Call
	known  *state.Plane
	client *planeclient.Client

	there   *planeclient.Client // at the new URL, over the same connections' pool
	trouble string
}

func (s *signedMover) kind() string { return s.what }

// begin signs the statement that begins a rotation, unless one to the same value
// is under way.
func (s *signedMover) begin(ctx context.Context, now func() (wire.MaterialRotation, error), req *wire.RotationRequest) (joins bool, err error) {
	r, err := now()
	if err != nil {
		return false, err
	}
	if s.what == wire.MaterialTrust {
		if s.to, err = s.newRoot(ctx); err != nil {
			return false, err
		}
	}
	if r.State == wire.RotationRunning {
		if r.Back || !same(s.what, r.ToValue, s.to) {
			return false, fault.New(fault.Refused, wire.CodeConflict, "another rotation of the %s is under way", word(s.what)).
				WithHint("fleet rotate %s --status shows it, --resume waits for it, --abort goes back", word(s.what))
		}
		return true, nil
	}
	if same(s.what, r.Value, s.to) {
		return false, fault.New(fault.Refused, wire.CodeConflict, "the plane has that %s already", word(s.what))
	}
	if s.what == wire.MaterialTrust {
		// What answers from now on is vouched for by either.
		if err := s.known.AddRoots(ctx, s.to); err != nil {
			return false, err
		}
	}
	return false, s.sign(ctx, r, s.to, req)
}

// newRoot is the root that --to names, as PEM.
func (s *signedMover) newRoot(ctx context.Context) (string, error) {
	if s.known.RootsPEM() == planeclient.SystemRoots {
		return "", fault.New(fault.Refused, wire.CodeConflict, "%s is recognised by the system's roots, which nobody rotates here", s.known.URL())
	}
	to := s.call.String("to")
	if strings.HasPrefix(to, "sha256:") {
		root, err := planeclient.VerifyPin(ctx, s.known.URL(), to)
		var f *fault.Error
		if errors.As(err, &f) && f.Code == "plane_pin_mismatch" {
			return "", fault.New(fault.Refused, "plane_pin_mismatch", "the plane does not present a root with the pin %s", to).
				WithHint("planed ca new-root, on its host, makes one; then send it SIGHUP")
		}
		return root, err
	}
	b, err := os.ReadFile(to)
	if err != nil {
		return "", fmt.Errorf("cannot read the new root: %w", err)
	}
	return planeclient.OneRoot(b)
}

// abort signs once more what was before, where machines may have the new value.
func (s *signedMover) abort(ctx context.Context, now func() (wire.MaterialRotation, error), req *wire.RotationRequest) error {
	r, err := now()
	if err != nil || r.State != wire.RotationRunning || r.Back || r.Step == wire.StepWiden || r.Step == wire.StepNarrow {
		return err // the plane says what is the matter
	}
	// The plane says what it was before; what it says is not signed unseen.
	switch {
	case s.what == wire.MaterialTrust && !planeclient.HasRoot(s.known.RootsPEM(), r.FromValue):
		return fault.New(fault.Refused, wire.CodeConflict, "the root that the plane would go back to is not one that you know it by")
	case s.what == wire.MaterialURL && r.FromValue != s.known.URL() && !slices.Contains(r.Planes, s.known.URL()):
		return fault.New(fault.Refused, wire.CodeConflict, "the plane would go back to %s, and does not say that it is %s", clean(r.FromValue), s.known.URL())
	}
	return s.sign(ctx, r, r.FromValue, req)
}

// sign makes a statement and has fleet-host, which knows of keys, sign it.
func (s *signedMover) sign(ctx context.Context, r wire.MaterialRotation, value string, req *wire.RotationRequest) error {
	if !slices.Contains(r.Planes, s.known.URL()) {
		return fault.New(fault.Refused, wire.CodeConflict, "the plane does not say that it is %s, and so no machine would take the statement", s.known.URL())
	}
	st := wire.Statement{Schema: wire.SchemaStatement, Kind: s.what, Version: r.Next, Planes: r.Planes, SignedAt: wire.Time{Time: time.Now().UTC().Truncate(time.Second)}}
	if s.what == wire.MaterialURL {
		st.URL = value
	} else {
		st.RootsPEM = value
	}
	if err := st.Check(); err != nil {
		return fmt.Errorf("cannot sign where the plane is: %w", err)
	}
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	program, err := mux.Executable()
	if err != nil {
		return err
	}
	args := []string{"sign-statement", "--plane", s.known.URL()}
	if k := s.call.String("key"); k != "" {
		args = append(args, "--key", k)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(b), &out, s.call.Stderr
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		var x *exec.ExitError
		if errors.As(err, &x) && ctx.Err() == nil {
			return fault.New(x.ExitCode(), "not_signed", "the statement was not signed")
		}
		return fmt.Errorf("cannot run fleet-host: %w", err)
	}
	req.Statement, req.Signature = string(b), out.String()
	return nil
}

// seen reaches the plane at its new URL while that is waited for, and takes the
// new one over when it holds.
func (s *signedMover) seen(ctx context.Context, r wire.MaterialRotation) {
	if s.what != wire.MaterialURL {
		return
	}
	switch {
	case r.State == wire.RotationDone && r.Value != s.known.URL():
		if err := s.known.Follow(ctx, state.DirsOf(s.call.Getenv), r.Value); err != nil {
			s.call.Notef("the plane is at %s now; log in there: %s", clean(r.Value), err)
			return
		}
		s.call.Notef("fleet knows the plane as %s now", clean(r.Value))
	case r.State == wire.RotationRunning && r.Step == wire.StepWiden && !r.Back:
		trouble := ""
		if err := s.reach(ctx, r.ToValue); err != nil {
			trouble = err.Error()
		}
		if trouble != "" && trouble != s.trouble && ctx.Err() == nil {
			s.call.Notef("nobody is sent there before you reach the plane at %s: %s", clean(r.ToValue), clean(trouble))
		}
		s.trouble = trouble
	}
}

// reach asks the plane at another URL for what it was asked at this one.
func (s *signedMover) reach(ctx context.Context, url string) error {
	if s.there == nil {
		var err error
		if s.there, err = s.client.At(url); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := s.there.MaterialRotation(ctx, s.what)
	return err
}

// same reports whether two values are one.
func same(kind, a, b string) bool {
	if kind == wire.MaterialTrust {
		return planeclient.HasRoot(a, b)
	}
	return a == b
}
