package datadir

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
)

// A new root lies beside the one in use, with the certificate that it issued for
// the intermediate's key, from NewRoot on. It is the plane's root from the
// moment that plane.json pins it: one rename. What follows is names of files, and
// is done again by the next UseNextRoot where a crash cut it short; Authority
// finds its way among them by the pin.
const (
	nextRoot           = "root.next.pem"
	nextIntermediate   = "intermediate.next.pem"
	formerIntermediate = "intermediate.former.pem" // the former root's certificate of the key
)

// readCert reads a certificate, nil where there is none.
func readCert(dir, name string) (*x509.Certificate, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate: %w", err)
	}
	c, err := ca.DecodeCert(b)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %s", filepath.Join(dir, name), err)
	}
	return c, nil
}

// NextRoot is the root that waits beside the one in use, or nil.
func NextRoot(dir string) (*x509.Certificate, error) { return readCert(dir, nextRoot) }

// coming are the next root and the certificates that other roots than the one in
// use issued for the intermediate's key.
func coming(dir string) (next *x509.Certificate, cross []*x509.Certificate, err error) {
	if next, err = NextRoot(dir); err != nil {
		return nil, nil, err
	}
	for _, name := range []string{nextIntermediate, formerIntermediate} {
		c, err := readCert(dir, name)
		if err != nil {
			return nil, nil, err
		}
		if c != nil {
			cross = append(cross, c)
		}
	}
	return next, cross, nil
}

// NewRoot makes a root beside the one in use, with its key in a private file
// that is never overwritten.
func NewRoot(dir, keyFile string, now time.Time) (*x509.Certificate, error) {
	p, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if next, err := NextRoot(dir); err != nil {
		return nil, err
	} else if next != nil {
		return nil, fault.New(fault.Refused, wire.CodeConflict, "a new root is there already: %s", ca.Pin(next)).
			WithHint("fleet rotate ca --to %s brings it to the machines", ca.Pin(next))
	}
	a, err := Authority(dir, p)
	if err != nil {
		return nil, err
	}
	key, err := ca.NewKey()
	if err != nil {
		return nil, err
	}
	b, err := ca.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	root, err := ca.NewRoot(key, now)
	if err != nil {
		return nil, err
	}
	cross, err := ca.Cross(a.Intermediate, root, key, now)
	if err != nil {
		return nil, err
	}
	if err := durable.CreateFile(keyFile, b, 0o600); errors.Is(err, fs.ErrExist) {
		return nil, fault.New(fault.Refused, wire.CodeConflict, "%s is there already; a root key is never overwritten", keyFile)
	} else if err != nil {
		return nil, fmt.Errorf("cannot write the root key: %w", err)
	}
	// The root comes last: with it, what vouches for the intermediate is there.
	if err := durable.WriteFile(filepath.Join(dir, nextIntermediate), ca.EncodeCert(cross), 0o644); err != nil {
		return nil, err
	}
	return root, durable.WriteFile(filepath.Join(dir, nextRoot), ca.EncodeCert(root), 0o644)
}

// UseNextRoot makes the next root the plane's.
func UseNextRoot(dir string) error {
	next, err := NextRoot(dir)
	if err != nil || next == nil {
		return err
	}
	if _, err := Update(dir, func(p *Plane) { p.CAPin = ca.Pin(next) }); err != nil {
		return err
	}
	return tidyRoots(dir, next)
}

// tidyRoots gives the files of a root that is in use the names that they have
// when nothing is under way.
func tidyRoots(dir string, root *x509.Certificate) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	inter, err := readCert(dir, FileIntermediate)
	if err != nil {
		return err
	}
	if inter != nil && inter.CheckSignatureFrom(root) != nil {
		if err := durable.WriteFile(at(formerIntermediate), ca.EncodeCert(inter), 0o644); err != nil {
			return err
		}
		if err := durable.Rename(at(nextIntermediate), at(FileIntermediate)); err != nil {
			return err
		}
	}
	return durable.Rename(at(nextRoot), at(FileRootCert))
}

// DropNextRoot forgets the next root, unless it is the plane's by now. Its key
// stays where it is.
func DropNextRoot(dir string) error {
	p, err := Load(dir)
	if err != nil {
		return err
	}
	if next, err := NextRoot(dir); err != nil {
		return err
	} else if next != nil && ca.Pin(next) == p.CAPin {
		return tidyRoots(dir, next)
	}
	return errors.Join(durable.Remove(filepath.Join(dir, nextRoot)), durable.Remove(filepath.Join(dir, nextIntermediate)))
}
