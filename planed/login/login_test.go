package login

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/wire"
)

const plane = "https://plane.example"

func newVerifier() (*Verifier, *time.Time) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Verifier{URL: plane, Now: func() time.Time { return now }}, &now
}

func request(t *testing.T, key ssh.Signer, nonce, url, namespace string) wire.LoginRequest {
	t.Helper()
	sig, err := sshsig.Sign(bytes.NewReader(wire.LoginMessage(nonce, url)), key, sshsig.HashSHA512, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return wire.LoginRequest{Nonce: nonce, URL: plane, PublicKey: string(ssh.MarshalAuthorizedKey(key.PublicKey())), Signature: string(sshsig.Armor(sig))}
}

func signerOf(t *testing.T, key crypto.PrivateKey) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// touchKey is a security key, as OpenSSH's protocol for U2F describes it.
type touchKey struct {
	priv ed25519.PrivateKey
}

func (k touchKey) PublicKey() ssh.PublicKey {
	pub, err := ssh.ParsePublicKey(ssh.Marshal(struct {
		Type string
		Key  []byte
		App  string
	}{ssh.KeyAlgoSKED25519, k.priv.Public().(ed25519.PublicKey), "ssh:"}))
	if err != nil {
		panic(err)
	}
	return pub
}

func (k touchKey) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	app, msg := sha256.Sum256([]byte("ssh:")), sha256.Sum256(data)
	const flags, counter = 1, 7
	blob := append(app[:], flags)
	blob = binary.BigEndian.AppendUint32(blob, counter)
	blob = append(blob, msg[:]...)
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Blob: ed25519.Sign(k.priv, blob),
		Rest: binary.BigEndian.AppendUint32([]byte{flags}, counter)}, nil
}

func keys(t *testing.T) map[string]ssh.Signer {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]ssh.Signer{"ed25519": signerOf(t, ed), "ecdsa": signerOf(t, ec), "rsa": signerOf(t, rs), "sk-ed25519": touchKey{ed}}
}

func TestEveryUsualKeyLogsIn(t *testing.T) { // R37
	v, _ := newVerifier()
	for name, key := range keys(t) {
		got, err := v.Verify(request(t, key, v.Challenge().Nonce, plane, wire.NamespaceLogin))
		if err != nil || got.Fingerprint != ssh.FingerprintSHA256(key.PublicKey()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestASignatureIsForOneNonceOnePlaneAndOnePurpose(t *testing.T) { // R37
	v, now := newVerifier()
	key := keys(t)["ed25519"]
	nonce := v.Challenge().Nonce
	good := request(t, key, nonce, plane, wire.NamespaceLogin)
	for name, c := range map[string]struct {
		r    wire.LoginRequest
		want error
	}{
		"another plane's URL": {request(t, key, nonce, "https://other.example", wire.NamespaceLogin), ErrSignature},
		"another namespace":   {request(t, key, nonce, plane, wire.NamespaceOrder), ErrSignature},
		"another nonce":       {func() wire.LoginRequest { r := good; r.Nonce = v.Challenge().Nonce; return r }(), ErrSignature},
		"a made-up nonce":     {request(t, key, strings.Repeat("A", len(nonce)), plane, wire.NamespaceLogin), ErrNonce},
		"another key": {func() wire.LoginRequest {
			r := good
			r.PublicKey = string(ssh.MarshalAuthorizedKey(keys(t)["ecdsa"].PublicKey()))
			return r
		}(), ErrSignature},
		"no key":       {func() wire.LoginRequest { r := good; r.PublicKey = "x"; return r }(), ErrKey},
		"no signature": {func() wire.LoginRequest { r := good; r.Signature = ""; return r }(), ErrSignature},
	} {
		if _, err := v.Verify(c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	// Failures used nothing up.
	if _, err := v.Verify(good); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(good); !errors.Is(err, ErrNonce) {
		t.Fatal("a nonce was used twice:", err)
	}
	late := request(t, key, v.Challenge().Nonce, plane, wire.NamespaceLogin)
	*now = now.Add(NonceLife)
	if _, err := v.Verify(late); !errors.Is(err, ErrNonce) {
		t.Fatal("an expired nonce:", err)
	}
}

func TestShortRSAIsRefused(t *testing.T) {
	t.Setenv("GODEBUG", "rsa1024min=0")
	rs, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skip("this Go makes no short RSA keys")
	}
	v, _ := newVerifier()
	if _, err := v.Verify(request(t, signerOf(t, rs), v.Challenge().Nonce, plane, wire.NamespaceLogin)); !errors.Is(err, ErrKey) {
		t.Fatal(err)
	}
}

func TestASourceIsLimitedAndForgotten(t *testing.T) { // R18
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := &Limiter{Now: func() time.Time { return now }}
	for range limitPerHost {
		if _, ok := l.Allow("192.0.2.1:1"); !ok {
			t.Fatal("limited too early")
		}
		l.Fail("192.0.2.1:2")
	}
	if wait, ok := l.Allow("192.0.2.1:3"); ok || wait <= 0 || wait > limitWindow {
		t.Fatal(wait, ok)
	}
	if _, ok := l.Allow("192.0.2.2:1"); !ok {
		t.Fatal("another source is limited")
	}
	now = now.Add(limitWindow)
	l.Sweep()
	if len(l.window) != 0 {
		t.Fatal("a source is kept for longer than its window")
	}
	for i := range 3 * limitSources {
		l.Fail(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255))
	}
	if len(l.window) > limitSources {
		t.Fatal(len(l.window))
	}
}

func FuzzVerify(f *testing.F) {
	f.Add("nonce", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n")
	f.Fuzz(func(t *testing.T, nonce, key, sig string) {
		v, _ := newVerifier()
		if nonce == "fresh" {
			nonce = v.Challenge().Nonce
		}
		if _, err := v.Verify(wire.LoginRequest{Nonce: nonce, URL: plane, PublicKey: key, Signature: sig}); err == nil {
			t.Error("a login without a key")
		}
	})
}
