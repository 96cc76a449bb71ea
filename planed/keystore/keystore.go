// Package keystore opens the private keys of the plane's authority: PEM in a
// private file, or a key that stays in a token and is named by a PKCS #11 URI
// (RFC 7512), through go.step.sm/crypto's KMS. A file may hold such a URI in
// place of a key, so that whoever reads the data directory needs to know no
// difference. A token's PIN comes from the file that the URI's pin-source names
// and stands in no argument.
//
// PKCS #11 is C, which planed is otherwise built without: only one that was
// built with cgo and the tag pkcs11 opens tokens, the others say so when they
// meet a URI.
//
// The package must not know what the keys are for.
package keystore

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"fmt"
	"strings"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/planed/ca"
)

const (
	maxFile    = 64 << 10
	schemeP11  = "pkcs11:"
	schemeFile = "file:"
)

// IsURI reports whether the name is that of a key in a token.
func IsURI(name string) bool { return strings.HasPrefix(name, schemeP11) }

// Open opens a key by its file's path, file: URI or pkcs11: URI.
func Open(ctx context.Context, name string) (crypto.Signer, error) {
	if IsURI(name) {
		return open(ctx, name, false)
	}
	path := strings.TrimPrefix(name, schemeFile)
	b, err := durable.ReadPrivate(path, maxFile)
	if err != nil {
		return nil, err
	}
	if uri := strings.TrimSpace(string(b)); IsURI(uri) && !strings.Contains(uri, "\n") {
		return open(ctx, uri, false)
	}
	k, err := ca.DecodeKey(b)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %s", path, err)
	}
	return k, nil
}

// Create opens the key in a token, and makes it there if there is none.
func Create(ctx context.Context, uri string) (crypto.Signer, error) { return open(ctx, uri, true) }

func open(ctx context.Context, uri string, create bool) (crypto.Signer, error) {
	if strings.Contains(uri, "pin-value=") {
		return nil, fault.Usagef("a token's PIN stands in no URI").WithHint("write it to a private file, and name that: …?module-path=…&pin-source=FILE")
	}
	k, err := fromToken(ctx, uri, create)
	if err != nil {
		return nil, err
	}
	pub, ok := k.Public().(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, errors.New("the key in the token is not ECDSA P-256")
	}
	return k, nil
}
