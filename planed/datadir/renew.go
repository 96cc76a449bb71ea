package datadir

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/keystore"
)

// staged is what a new certificate is called until the key beside it is the
// new one.
const staged = FileIntermediate + ".new"

// RootKey opens the root's key: by the name given, or where Init leaves it.
func RootKey(ctx context.Context, dir, name string) (crypto.Signer, error) {
	if name == "" {
		name = filepath.Join(dir, FileRootKey)
	}
	k, err := keystore.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cannot open the root's key: %w", err)
	}
	return k, nil
}

// Renewal is a new intermediate that is not in use yet.
type Renewal struct {
	Root, Certificate *x509.Certificate
	Key               crypto.Signer
	keyFile           []byte
}

// NewIntermediate makes an intermediate under the root, in memory. Its key is
// made here, or is the one in a token that uri names; without create it must be
// there already.
func NewIntermediate(ctx context.Context, root *x509.Certificate, rootKey crypto.Signer, uri string, create bool, now time.Time) (*Renewal, error) {
	pub, ok := rootKey.Public().(*ecdsa.PublicKey)
	if !ok || !pub.Equal(root.PublicKey) {
		return nil, errors.New("the key is not the root's")
	}
	r := &Renewal{Root: root}
	if uri == "" {
		key, err := ca.NewKey()
		if err != nil {
			return nil, err
		}
		if r.keyFile, err = ca.EncodeKey(key); err != nil {
			return nil, err
		}
		r.Key = key
	} else {
		open := keystore.Open
		if create {
			open = keystore.Create
		}
		key, err := open(ctx, uri)
		if err != nil {
			return nil, err
		}
		r.Key, r.keyFile = key, []byte(uri+"\n")
	}
	var err error
	r.Certificate, err = ca.NewIntermediate(root, rootKey, r.Key, now)
	return r, err
}

// Use puts the intermediate into the data directory. The certificate is staged
// first; once the key has been renamed the certificate follows, be it here or,
// after a crash, when the authority is read the next time.
func (r *Renewal) Use(dir string) error {
	if err := durable.WriteFile(filepath.Join(dir, staged), ca.EncodeCert(r.Certificate), 0o644); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, FileIntermediateKey), r.keyFile, 0o600); err != nil {
		return err
	}
	return durable.Rename(filepath.Join(dir, staged), filepath.Join(dir, FileIntermediate))
}

// finish completes a renewal that was cut short after the key, if that is what
// happened: the staged certificate is the key's and the root's.
func finish(dir string, root *x509.Certificate, key crypto.Signer) (*x509.Certificate, error) {
	b, err := os.ReadFile(filepath.Join(dir, staged))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := ca.DecodeCert(b)
	if err != nil || c.CheckSignatureFrom(root) != nil || !owns(key, c) {
		return nil, nil
	}
	return c, durable.Rename(filepath.Join(dir, staged), filepath.Join(dir, FileIntermediate))
}

func owns(key crypto.Signer, c *x509.Certificate) bool {
	pub, ok := key.Public().(*ecdsa.PublicKey)
	return ok && pub.Equal(c.PublicKey)
}

// TrustRoots sets the roots that are trusted besides the one in use, while a
// root is replaced. A plane that serves reads them on SIGHUP.
func TrustRoots(dir string, roots []*x509.Certificate) error {
	path := filepath.Join(dir, FileRoots)
	if len(roots) == 0 {
		return durable.Remove(path)
	}
	var b strings.Builder
	for _, r := range roots {
		b.Write(ca.EncodeCert(r))
	}
	return durable.WriteFile(path, []byte(b.String()), 0o644)
}
