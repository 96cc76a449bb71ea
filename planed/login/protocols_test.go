package login

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"testing"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/wire"
)

// TestASignatureOpensNothingOfAnotherProtocol: one key signs the very bytes that
// each protocol wants, under each namespace, and each verifier takes its own and
// no other's - a login's is no admission's, no artifact's, no order's, nor the
// other way round.
func TestASignatureOpensNothingOfAnotherProtocol(t *testing.T) { // R37
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hard := touchKey{priv} // the only kind that every verifier here could take
	soft := signerOf(t, priv)
	const subject = "a machine"
	namespaces := []string{wire.NamespaceLogin, wire.NamespaceAdmit, wire.NamespaceOrder, wire.NamespaceArtifact, wire.NamespaceMaterial,
		"file", "git", "", "fleet-login", "fleet-login@v2"}
	protocols := map[string]struct {
		own    string
		key    ssh.Signer
		says   func(nonce string) []byte
		accept func(v *Verifier, nonce, key, sig string) error
	}{
		"login": {wire.NamespaceLogin, hard, func(nonce string) []byte { return wire.LoginMessage(nonce, plane) },
			func(v *Verifier, nonce, key, sig string) error {
				_, err := v.Verify(wire.LoginRequest{Nonce: nonce, URL: plane, PublicKey: key, Signature: sig})
				return err
			}},
		"admission": {wire.NamespaceAdmit, hard, func(nonce string) []byte { return wire.AdmitMessage(nonce, plane, subject) },
			func(v *Verifier, nonce, key, sig string) error {
				_, err := v.Touch(wire.Touch{Nonce: nonce, PublicKey: key, Signature: sig}, subject)
				return err
			}},
		"artifact": {wire.NamespaceArtifact, soft, func(string) []byte { return []byte("a manifest") },
			func(_ *Verifier, _, key, sig string) error {
				signers, err := artifact.ParseSigners([]byte(key))
				if err != nil {
					return err
				}
				_, err = signers.Verify([]byte("a manifest"), []byte(sig))
				return err
			}},
	}
	for to, p := range protocols {
		for _, namespace := range namespaces {
			for from, other := range protocols {
				v, _ := newVerifier()
				nonce := v.Challenge().Nonce
				armored, err := armor(other.says(nonce), p.key, namespace)
				if err != nil {
					continue // no namespace, no signature
				}
				key := string(ssh.MarshalAuthorizedKey(p.key.PublicKey()))
				err = p.accept(v, nonce, key, armored)
				if want := namespace == p.own && from == to; (err == nil) != want {
					t.Errorf("%s's bytes under %q offered as %s: %v", from, namespace, to, err)
				}
				if err == nil && to != "artifact" { // again
					if p.accept(v, nonce, key, armored) == nil {
						t.Errorf("%s: a signature was taken twice", to)
					}
				}
			}
		}
	}
}

func armor(msg []byte, key ssh.Signer, namespace string) (string, error) {
	sig, err := sshsig.Sign(bytes.NewReader(msg), key, sshsig.HashSHA512, namespace)
	if err != nil {
		return "", err
	}
	return string(sshsig.Armor(sig)), nil
}
