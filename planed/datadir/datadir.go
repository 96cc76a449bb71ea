// Package datadir is a plane's data directory: what lies where, how it is made
// once, and how it is read.
//
// # Interrupted while it is made
//
// The last step of Init links the file plane.json into place; a directory that
// has it is a plane's and is never touched again. Before the first step Init
// writes init.json, which says what is being made; a directory that has that
// one alone belongs to an Init that was interrupted, and the next Init with the
// same answers goes on: it keeps the root key and certificate that are there,
// since the pin may have been noted, and makes the rest again. A lock keeps two
// of them apart.
package datadir

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/keystore"
	"fleet.example/fleet/planed/store"
	"fleet.example/fleet/planed/store/bolt"
)

// Names of the files in a data directory.
const (
	FilePlane           = "plane.json"
	FileInit            = "init.json"
	FileLock            = "init.lock"
	FileStore           = "plane.db"
	FileRootCert        = "root.pem"
	FileRootKey         = "root.key"
	FileIntermediate    = "intermediate.pem"
	FileIntermediateKey = "intermediate.key"
	FileRoots           = "roots.pem" // further roots that are trusted, while a root is replaced
	FileInvitation      = "owner.invite"
	FileSocket          = "admin.sock"
)

// InvitationLife is how long an owner's invitation is good for.
const InvitationLife = 7 * 24 * time.Hour

const maxFile = 64 << 10

// Plane is plane.json.
type Plane struct {
	Schema    string    `json:"schema"`
	URL       string    `json:"url"`
	CAPin     string    `json:"ca_pin"`
	Owner     string    `json:"owner"` // whom a recovery invites
	CreatedAt wire.Time `json:"created_at"`
	// TrustDomain is that of the machines' SPIFFE ids. A plane made before there
	// were any has the one that its URL suggested.
	TrustDomain string `json:"trust_domain,omitempty"`
	// Former are the URLs that the plane had before, the latest first: machines
	// may have them still.
	Former []string `json:"former,omitempty"`
}

const schemaPlaneFile = "fleet.plane-file/v1"

// plan is init.json.
type plan struct {
	URL     string `json:"url"`
	Owner   string `json:"owner"`
	RootKey string `json:"root_key"` // absolute
}

// Options of Init.
type Options struct {
	Dir     string
	URL     string // as wire.PlaneURL spells it
	Owner   string
	RootKey string // "" means FileRootKey in Dir
	Now     time.Time
}

// Made is what Init made.
type Made struct {
	Plane      Plane
	RootKey    string
	Invitation string // the file
}

// Init makes a plane's data directory, or finishes one that was interrupted.
func Init(ctx context.Context, o Options) (Made, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return Made{}, fmt.Errorf("cannot make the data directory: %w", err)
	}
	unlock, err := lock(o.Dir)
	if err != nil {
		return Made{}, err
	}
	defer unlock()
	p, err := begin(&o)
	if err != nil {
		return Made{}, err
	}
	if err := durable.Sweep(o.Dir); err != nil {
		return Made{}, err
	}
	root, rootKey, err := makeRoot(o.Dir, p.RootKey, o.Now)
	if err != nil {
		return Made{}, err
	}
	if err := makeIntermediate(o.Dir, root, rootKey, o.Now); err != nil {
		return Made{}, err
	}
	st, err := bolt.Open(filepath.Join(o.Dir, FileStore), bolt.Options{Create: true, Offline: true})
	if err != nil {
		return Made{}, err
	}
	file, err := InviteOwner(ctx, st, o.Dir, o.Owner, "local:init", o.Now)
	if err := errors.Join(err, st.Close()); err != nil {
		return Made{}, err
	}
	plane := Plane{Schema: schemaPlaneFile, URL: o.URL, CAPin: ca.Pin(root), Owner: o.Owner, CreatedAt: wire.Time{Time: o.Now},
		TrustDomain: ca.TrustDomain(o.URL)}
	if err := durable.CreateFile(filepath.Join(o.Dir, FilePlane), indent(plane), 0o600); err != nil {
		return Made{}, err
	}
	// Only a leftover once plane.json stands.
	durable.Remove(filepath.Join(o.Dir, FileInit))
	return Made{Plane: plane, RootKey: p.RootKey, Invitation: file}, nil
}

func lock(dir string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(dir, FileLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fault.New(fault.Refused, wire.CodeConflict, "another planed init is at work in %s", dir)
	}
	return func() { f.Close() }, nil
}

// begin decides whether there is something to make, and notes what.
func begin(o *Options) (plan, error) {
	p := plan{URL: o.URL, Owner: o.Owner, RootKey: o.RootKey}
	if p.RootKey == "" {
		p.RootKey = filepath.Join(o.Dir, FileRootKey)
	}
	var err error
	if p.RootKey, err = filepath.Abs(p.RootKey); err != nil {
		return p, err
	}
	if old, err := Load(o.Dir); err == nil {
		return p, fault.New(fault.Refused, wire.CodeConflict, "%s is the data directory of the plane %s already", o.Dir, old.URL).
			WithHint("planed serve --data %s serves it; planed recover-owner makes a new invitation", o.Dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	b, err := os.ReadFile(filepath.Join(o.Dir, FileInit))
	if err == nil {
		var begun plan
		if err := json.Unmarshal(b, &begun); err != nil {
			return p, fmt.Errorf("cannot read %s: %s", filepath.Join(o.Dir, FileInit), err)
		}
		if begun != p {
			return p, fault.New(fault.Refused, wire.CodeConflict,
				"an interrupted planed init left %s half made, for %s, owner %s, root key %s", o.Dir, begun.URL, begun.Owner, begun.RootKey).
				WithHint("run it again with the same values to finish, or remove %s to start afresh", o.Dir)
		}
		return p, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return p, err
	}
	for _, e := range entries {
		if e.Name() != FileLock && e.Name() != "lost+found" {
			return p, fault.New(fault.Refused, wire.CodeConflict, "%s is not empty: it holds %s", o.Dir, e.Name()).
				WithHint("choose a directory of its own for the plane")
		}
	}
	if _, err := os.Lstat(p.RootKey); err == nil {
		return p, fault.New(fault.Refused, wire.CodeConflict, "%s is there already; a root key is never overwritten", p.RootKey)
	}
	if st, err := os.Stat(o.Dir); err != nil {
		return p, err
	} else if st.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(o.Dir, 0o700); err != nil {
			return p, fmt.Errorf("cannot close %s to others: %w", o.Dir, err)
		}
	}
	return p, durable.WriteFile(filepath.Join(o.Dir, FileInit), indent(p), 0o600)
}

func indent(v any) []byte {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // our own structs always marshal
	}
	return append(b, '\n')
}

// makeRoot makes the root, or reads the one an interrupted Init made. The key
// is written before the certificate.
func makeRoot(dir, keyFile string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	var key *ecdsa.PrivateKey
	b, err := durable.ReadPrivate(keyFile, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if key, err = ca.NewKey(); err != nil {
			return nil, nil, err
		}
		if b, err = ca.EncodeKey(key); err != nil {
			return nil, nil, err
		}
		if err := durable.CreateFile(keyFile, b, 0o600); err != nil {
			return nil, nil, fmt.Errorf("cannot write the root key: %w", err)
		}
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read the root key: %w", err)
	default:
		if key, err = ca.DecodeKey(b); err != nil {
			return nil, nil, fmt.Errorf("cannot read the root key %s: %s", keyFile, err)
		}
	}
	certFile := filepath.Join(dir, FileRootCert)
	if b, err := os.ReadFile(certFile); err == nil {
		if cert, err := ca.DecodeCert(b); err == nil && key.PublicKey.Equal(cert.PublicKey) {
			return cert, key, nil
		}
	}
	cert, err := ca.NewRoot(key, now)
	if err != nil {
		return nil, nil, err
	}
	return cert, key, durable.WriteFile(certFile, ca.EncodeCert(cert), 0o644)
}

func makeIntermediate(dir string, root *x509.Certificate, rootKey *ecdsa.PrivateKey, now time.Time) error {
	key, err := ca.NewKey()
	if err != nil {
		return err
	}
	cert, err := ca.NewIntermediate(root, rootKey, key, now)
	if err != nil {
		return err
	}
	b, err := ca.EncodeKey(key)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, FileIntermediateKey), b, 0o600); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, FileIntermediate), ca.EncodeCert(cert), 0o644)
}

// InviteOwner makes an owner's invitation and leaves it in the directory. One
// that waited before is void.
func InviteOwner(ctx context.Context, st store.Principals, dir, owner, actor string, now time.Time) (file string, err error) {
	inv := secret.New("fi_")
	err = st.Invite(ctx, store.Invitation{
		Actor: actor, Digest: inv.Digest(), Person: owner, Role: wire.RoleOwner, At: now, ExpiresAt: now.Add(InvitationLife),
	})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, FileInvitation)
	return file, durable.WriteFile(file, []byte(inv.Reveal()+"\n"), 0o600)
}

// Load reads plane.json.
func Load(dir string) (Plane, error) {
	var p Plane
	file := filepath.Join(dir, FilePlane)
	b, err := os.ReadFile(file)
	if err != nil {
		return p, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&p); err != nil {
		return p, fmt.Errorf("cannot read %s: %s", file, err)
	}
	if p.Schema != schemaPlaneFile {
		return p, fmt.Errorf("cannot read %s: its schema is %q, this planed knows %q", file, p.Schema, schemaPlaneFile)
	}
	if u, err := wire.PlaneURL(p.URL); err != nil || u != p.URL {
		return p, fmt.Errorf("cannot read %s: %q is no plane's URL", file, p.URL)
	}
	if p.TrustDomain == "" {
		p.TrustDomain = ca.TrustDomain(p.URL)
	}
	return p, nil
}

// Update changes plane.json, in one rename.
func Update(dir string, change func(*Plane)) (Plane, error) {
	p, err := Load(dir)
	if err != nil {
		return p, err
	}
	change(&p)
	if err := durable.WriteFile(filepath.Join(dir, FilePlane), indent(p), 0o600); err != nil {
		return p, fmt.Errorf("cannot write %s: %w", filepath.Join(dir, FilePlane), err)
	}
	return p, nil
}

// Open is Load for a command that needs a plane there.
func Open(dir string) (Plane, error) {
	p, err := Load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		e := fault.New(fault.NotFound, wire.CodeNotFound, "%s is no plane's data directory", dir)
		if _, err := os.Stat(filepath.Join(dir, FileInit)); err == nil {
			return p, e.WithHint("planed init was interrupted there; run it again to finish")
		}
		return p, e.WithHint("planed init --data %s --url https://HOST[:PORT] makes one", dir)
	}
	return p, err
}

// Authority reads the authority in use.
func Authority(dir string, p Plane) (*ca.Server, error) {
	read := func(name string) (*x509.Certificate, error) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("cannot read the certificate: %w", err)
		}
		c, err := ca.DecodeCert(b)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %s", filepath.Join(dir, name), err)
		}
		return c, nil
	}
	root, err := read(FileRootCert)
	if err != nil {
		return nil, err
	}
	inter, err := read(FileIntermediate)
	if err != nil {
		return nil, err
	}
	next, cross, err := coming(dir)
	if err != nil {
		return nil, err
	}
	// A root that replaced another counts from when plane.json pins it, whichever
	// names the files have by then.
	if ca.Pin(root) != p.CAPin && next != nil && ca.Pin(next) == p.CAPin {
		root, next = next, nil
		if inter.CheckSignatureFrom(root) != nil && len(cross) > 0 {
			i := slices.IndexFunc(cross, func(c *x509.Certificate) bool { return c.CheckSignatureFrom(root) == nil })
			if i >= 0 {
				inter, cross[i] = cross[i], inter
			}
		}
	}
	file := filepath.Join(dir, FileIntermediateKey)
	key, err := keystore.Open(context.Background(), file)
	if err != nil {
		return nil, fmt.Errorf("cannot open the intermediate's key: %w", err)
	}
	if !owns(key, inter) {
		c, err := finish(dir, root, key)
		if err != nil {
			return nil, fmt.Errorf("cannot finish an interrupted renewal: %w", err)
		}
		if c != nil {
			inter = c
		}
	}
	switch {
	case ca.Pin(root) != p.CAPin:
		return nil, fmt.Errorf("%s is not the root that %s pins", filepath.Join(dir, FileRootCert), FilePlane)
	case inter.CheckSignatureFrom(root) != nil:
		return nil, fmt.Errorf("%s was not issued by %s", filepath.Join(dir, FileIntermediate), FileRootCert)
	case !owns(key, inter):
		return nil, fmt.Errorf("%s does not belong to %s", file, FileIntermediate)
	}
	more, err := moreRoots(filepath.Join(dir, FileRoots))
	if err != nil {
		return nil, err
	}
	if next != nil {
		more = append(more, next)
	}
	cross = slices.DeleteFunc(cross, func(c *x509.Certificate) bool { return !owns(key, c) || c.Equal(inter) })
	return &ca.Server{Root: root, Intermediate: inter, Key: key, URL: p.URL, Now: time.Now, Roots: more, Cross: cross, TrustDomain: p.TrustDomain}, nil
}

// moreRoots reads the roots that are trusted besides the one in use.
func moreRoots(file string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the roots: %w", err)
	}
	var out []*x509.Certificate
	for {
		block, rest := pem.Decode(b)
		if block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %s", file, err)
		}
		out, b = append(out, c), rest
	}
	return out, nil
}
