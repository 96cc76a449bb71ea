package hostcli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// touching is a plane's client that answers a demand for a touch: it has the
// person's security key sign for what is admitted, and asks again.
type touching struct {
	*planeclient.Client
	env   *env
	plane *state.Plane
}

// Admit admits an installation, with a touch where the plane demands one.
func (t touching) Admit(ctx context.Context, r wire.AdmitRequest) (wire.AdmitAnswer, error) {
	a, err := t.Client.Admit(ctx, r)
	if !wantsTouch(err) {
		return a, err
	}
	if r.Touch, err = t.env.touch(ctx, t.plane, t.Client, wire.AdmitSubject(r.InstallationDigest, r.CredentialDigest)); err != nil {
		return a, err
	}
	return t.Client.Admit(ctx, r)
}

func wantsTouch(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Code == wire.CodeTouchRequired
}

// touch has a security key in the ssh-agent sign for one subject: the key that
// logged in where it is one, else the only one there.
func (e *env) touch(ctx context.Context, p *state.Plane, client *planeclient.Client, subject string) (*wire.Touch, error) {
	held, done, err := e.heldKeys()
	defer done()
	var keys []ssh.Signer
	var names []string
	for _, c := range held {
		if !strings.HasPrefix(c.signer.PublicKey().Type(), "sk-") {
			continue
		}
		fp := ssh.FingerprintSHA256(c.signer.PublicKey())
		if fp == p.Key() {
			keys = []ssh.Signer{c.signer}
			break
		}
		keys, names = append(keys, c.signer), append(names, fp)
	}
	switch {
	case len(keys) == 0:
		f := fault.New(fault.Refused, wire.CodeTouchRequired, "this plane admits machines only with a touch of your security key, and the ssh-agent holds none").
			WithHint("load it first: ssh-add ~/.ssh/id_ed25519_sk")
		if err != nil {
			f = f.WithHint("the ssh-agent cannot be reached: %s", err)
		}
		return nil, f
	case len(keys) > 1:
		return nil, fault.New(fault.Usage, "which_key", "the ssh-agent holds %d security keys", len(keys)).
			WithHint("log in with the one that is to be used; they are\n%s", strings.Join(names, "\n"))
	}
	ch, err := client.Challenge(ctx)
	if err != nil {
		return nil, err
	}
	pub := keys[0].PublicKey()
	e.call.Notef("touch your security key %s", ssh.FingerprintSHA256(pub))
	sig, err := artifact.Sign(wire.AdmitMessage(ch.Nonce, client.URL(), subject), keys[0], wire.NamespaceAdmit)
	if err != nil {
		return nil, fmt.Errorf("the security key did not sign: %w", err)
	}
	return &wire.Touch{Nonce: ch.Nonce, PublicKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(pub))), Signature: string(sig)}, nil
}
