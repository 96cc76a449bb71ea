package planed_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// securityKey is one without the hardware, as OpenSSH's PROTOCOL.u2f has it,
// that somebody always touches.
type securityKey struct{ private ed25519.PrivateKey }

func (k securityKey) PublicKey() ssh.PublicKey {
	pub, err := ssh.ParsePublicKey(ssh.Marshal(struct {
		Type string
		Key  []byte
		App  string
	}{ssh.KeyAlgoSKED25519, k.private.Public().(ed25519.PublicKey), "ssh:"}))
	if err != nil {
		panic(err)
	}
	return pub
}

func (k securityKey) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	app, msg := sha256.Sum256([]byte("ssh:")), sha256.Sum256(data)
	rest := []byte{1, 0, 0, 0, 9} // user present, counter
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Rest: rest, Blob: ed25519.Sign(k.private, append(append(app[:], rest...), msg[:]...))}, nil
}

// TestAPlaneThatWantsATouch: a session alone admits nothing there, whoever
// holds it, and a touch of the person's own key does. // R8
func TestAPlaneThatWantsATouch(t *testing.T) {
	p := newPlane(t, "--require-touch")
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := securityKey{private}
	owner, err := p.login(key, p.invite)
	if err != nil {
		t.Fatal(err)
	}
	req := wire.AdmitRequest{InstallationDigest: secret.New("").Digest().Hex(), CredentialDigest: secret.New("fm_").Digest().Hex(), Name: "box"}
	_, err = owner.Admit(t.Context(), req)
	if f := fault.Of(err); f == nil || f.Code != wire.CodeTouchRequired || f.Exit != fault.Refused || !strings.Contains(f.Hint, "ssh-agent") {
		t.Fatalf("%+v", f)
	}
	ch, err := owner.Challenge(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	msg := wire.AdmitMessage(ch.Nonce, owner.URL(), wire.AdmitSubject(req.InstallationDigest, req.CredentialDigest))
	sig, err := sshsig.Sign(strings.NewReader(string(msg)), key, sshsig.HashSHA512, wire.NamespaceAdmit)
	if err != nil {
		t.Fatal(err)
	}
	req.Touch = &wire.Touch{Nonce: ch.Nonce, PublicKey: string(ssh.MarshalAuthorizedKey(key.PublicKey())), Signature: string(sshsig.Armor(sig))}
	if a, err := owner.Admit(t.Context(), req); err != nil || a.Status != wire.AdmitNew {
		t.Fatal(a, err)
	}
}

// TestALockedOwnerIsNotRecoveredByAccident: the plane's host names whom it lets
// in, and a lock stands until an owner takes it away.
func TestALockedOwnerIsNotRecoveredByAccident(t *testing.T) {
	p := newPlane(t)
	key := newKey(t)
	dana, err := p.login(key, p.invite)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := dana.Invite(t.Context(), wire.PersonRequest{Name: "ola", Role: wire.RoleOwner})
	if err != nil {
		t.Fatal(err)
	}
	ola, err := p.login(newKey(t), inv.Invitation)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ola.LockPerson(t.Context(), "dana"); err != nil {
		t.Fatal(err)
	}
	if _, err := dana.Whoami(t.Context()); fault.Of(err).Exit != fault.NeedPerson {
		t.Fatal("a locked person's session goes on:", err)
	}
	if _, err := p.login(key, ""); fault.Of(err).Exit != fault.NeedPerson {
		t.Fatal("a locked person logs in:", err)
	}
	_, errOut, exit := planed(t, "recover-owner", "--data", p.dir)
	if exit != fault.Refused || !strings.Contains(errOut, "dana is locked") || !strings.Contains(errOut, "--owner") {
		t.Fatal(exit, errOut)
	}
	out, errOut, exit := planed(t, "recover-owner", "--data", p.dir, "--owner", "eve")
	if exit != 0 {
		t.Fatal(errOut)
	}
	invite, err := os.ReadFile(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	eve, err := p.login(newKey(t), string(invite))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := eve.UnlockPerson(t.Context(), "dana"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.login(key, ""); err != nil {
		t.Fatal(err)
	}
	// A plane that is killed keeps locks.
	if _, err := eve.LockPerson(t.Context(), "ola"); err != nil {
		t.Fatal(err)
	}
	p.kill()
	p.start()
	if _, err := ola.Whoami(t.Context()); fault.Of(err).Exit != fault.NeedPerson {
		t.Fatal("a lock was lost with the plane:", err)
	}
}
