package artifact

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/wire"
)

// Sign makes an armored SSHSIG over message in the given namespace.
func Sign(message []byte, signer ssh.Signer, namespace string) ([]byte, error) {
	sig, err := sshsig.Sign(bytes.NewReader(message), signer, sshsig.HashSHA512, namespace)
	if err != nil {
		return nil, fmt.Errorf("cannot sign: %w", err)
	}
	return sshsig.Armor(sig), nil
}

// Signers are the keys whose signature on an artifact counts.
type Signers []ssh.PublicKey

// Errors of a signature.
var (
	ErrUntrusted = errors.New("the signature is by a key that is not trusted for this")
	ErrSignature = errors.New("the signature does not fit")
)

// Verify checks an artifact's signature over message and returns the signer's
// fingerprint.
func (s Signers) Verify(message, armored []byte) (fingerprint string, err error) {
	return s.VerifyIn(wire.NamespaceArtifact, message, armored)
}

// VerifyIn is Verify for what is signed in another namespace: a signature that
// was made for one thing is never taken for another (R37).
func (s Signers) VerifyIn(namespace string, message, armored []byte) (fingerprint string, err error) {
	sig, err := sshsig.Unarmor(armored)
	if err != nil {
		return "", fmt.Errorf("malformed signature: %w", err)
	}
	for _, k := range s {
		if !bytes.Equal(k.Marshal(), sig.PublicKey.Marshal()) {
			continue
		}
		if err := sshsig.Verify(bytes.NewReader(message), sig, k, sig.HashAlgorithm, namespace); err != nil {
			return "", ErrSignature
		}
		return ssh.FingerprintSHA256(k), nil
	}
	return "", fmt.Errorf("%w: %s", ErrUntrusted, ssh.FingerprintSHA256(sig.PublicKey))
}

// ParseSigners reads keys, one a line in authorized_keys form.
func ParseSigners(b []byte) (Signers, error) {
	var out Signers
	for n, line := range bytes.Split(b, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		k, _, _, rest, err := ssh.ParseAuthorizedKey(line)
		if err != nil || len(bytes.TrimSpace(rest)) > 0 {
			return nil, fmt.Errorf("line %d is no public key", n+1)
		}
		out = append(out, k)
	}
	return out, nil
}

// Format is the inverse of ParseSigners.
func (s Signers) Format() []byte {
	var b bytes.Buffer
	for _, k := range s {
		b.Write(ssh.MarshalAuthorizedKey(k))
	}
	return b.Bytes()
}

// Add returns the signers with k, once.
func (s Signers) Add(k ssh.PublicKey) Signers {
	for _, have := range s {
		if bytes.Equal(have.Marshal(), k.Marshal()) {
			return s
		}
	}
	return append(s, k)
}

// LoadSigners reads a signers file. A missing one has no signers.
func LoadSigners(path string) (Signers, error) {
	b, err := ReadFile(path, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read artifact signers: %w", err)
	}
	s, err := ParseSigners(b)
	if err != nil {
		return nil, fmt.Errorf("cannot read artifact signers: %s: %w", path, err)
	}
	return s, nil
}

// LoadSignKey reads a private key that signs, in OpenSSH's form, unencrypted.
func LoadSignKey(path string) (ssh.Signer, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the signing key: %w", err)
	}
	s, err := ssh.ParsePrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("cannot read the signing key: %s: %w", path, err)
	}
	return s, nil
}
