package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Plane is what the operator's side keeps of one plane, in a directory of its
// own: plane.json, session, links.json.
type Plane struct {
	dir string
	rec planeRecord
}

type planeRecord struct {
	URL      string `json:"url"`
	RootsPEM string `json:"roots_pem"` // or "system"
	Person   string `json:"person"`
	Key      string `json:"key"` // fingerprint of the key that last logged in
	// PublicKey is that key, in authorized_keys form: machines that are installed
	// take its statements.
	PublicKey string `json:"public_key,omitempty"`
	Expires   string `json:"session_expires"`
	// AuditHead is the last audit head that was verified here.
	AuditSeq  uint64 `json:"audit_seq"`
	AuditHash string `json:"audit_hash"`
}

// NormalURL checks a plane's URL and returns its one form: https, host in
// lower case, port only where it is not 443, no path.
func NormalURL(s string) (string, error) {
	u, err := wire.PlaneURL(s)
	if err != nil {
		return "", fault.Usagef("%q is not a plane's URL such as https://fleet.example.org:8443", s)
	}
	return u, nil
}

func (d Dirs) planeDir(url string) (string, error) {
	st, err := d.State()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(url))
	if _, err := d.private(filepath.Join(st, "planes")); err != nil {
		return "", err
	}
	return d.private(filepath.Join(st, "planes", hex.EncodeToString(sum[:8])))
}

// ErrNoPlane is in the chain when no plane is known.
var ErrNoPlane = errors.New("no plane is known here")

// firstLogin is how a plane comes to be known here. A pin is for a plane with
// roots of its own, an invitation for a key that the plane does not know.
func firstLogin(url string) string {
	return "fleet login " + url + "; the first time with --ca-pin and --invite-file (fleet help login)"
}

// OpenPlane opens the plane with the given URL, or, with "", the one that was
// logged in to last.
func (d Dirs) OpenPlane(url string) (*Plane, error) {
	if url == "" {
		st, err := d.State()
		if err != nil {
			return nil, err
		}
		b, err := durable.ReadPrivate(filepath.Join(st, "default-plane"), 4096)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fault.New(fault.NeedPerson, wire.CodeLoginRequired, "%w", ErrNoPlane).WithHint("%s", firstLogin("URL"))
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read state: %w", err)
		}
		url = strings.TrimSpace(string(b))
	}
	url, err := NormalURL(url)
	if err != nil {
		return nil, err
	}
	dir, err := d.planeDir(url)
	if err != nil {
		return nil, err
	}
	p := &Plane{dir: dir}
	if err := ReadJSON(p.file("plane.json"), &p.rec); err != nil {
		return nil, err
	}
	if p.rec.URL != url {
		return nil, fault.New(fault.NeedPerson, wire.CodeLoginRequired, "%s: %w", url, ErrNoPlane).WithHint("%s", firstLogin(url))
	}
	return p, nil
}

// SaveLogin records a login and makes its plane the default.
func (d Dirs) SaveLogin(ctx context.Context, url, rootsPEM, key string, a wire.LoginAnswer) (*Plane, error) {
	dir, err := d.planeDir(url)
	if err != nil {
		return nil, err
	}
	p := &Plane{dir: dir}
	err = UpdateJSON(ctx, p.file("plane.json"), &p.rec, func() error {
		p.rec.URL, p.rec.RootsPEM, p.rec.Person, p.rec.Key, p.rec.Expires = url, rootsPEM, a.Person, key, a.ExpiresAt.String()
		return durable.WriteFile(p.file("session"), []byte(a.Token+"\n"), 0o600)
	})
	if err != nil {
		return nil, err
	}
	st, err := d.State()
	if err != nil {
		return nil, err
	}
	return p, durable.WriteFile(filepath.Join(st, "default-plane"), []byte(url+"\n"), 0o600)
}

// Logout forgets the session. The plane, its roots and the links stay known.
func (p *Plane) Logout() error { return durable.Remove(p.file("session")) }

func (p *Plane) file(name string) string { return filepath.Join(p.dir, name) }

// URL is the plane's URL in its normal form.
func (p *Plane) URL() string { return p.rec.URL }

// RootsPEM is what vouches for the plane's certificate, or "system".
func (p *Plane) RootsPEM() string { return p.rec.RootsPEM }

// Person is who logged in last.
func (p *Plane) Person() string { return p.rec.Person }

// Key is the fingerprint of the key that logged in last.
func (p *Plane) Key() string { return p.rec.Key }

// PublicKey is the key that logged in last, in authorized_keys form, or "" where
// a fleet of before it was kept logged in.
func (p *Plane) PublicKey() string { return p.rec.PublicKey }

// KeepKey remembers the key that logged in.
func (p *Plane) KeepKey(ctx context.Context, authorized string) error {
	return UpdateJSON(ctx, p.file("plane.json"), &p.rec, func() error {
		p.rec.PublicKey = authorized
		return nil
	})
}

// Session is the stored session token. Without one, or past its end, the error
// asks for a login.
func (p *Plane) Session() (secret.Text, error) {
	need := func(what string) error {
		return fault.New(fault.NeedPerson, wire.CodeLoginRequired, "%s at %s", what, p.rec.URL).WithHint("fleet login %s", p.rec.URL)
	}
	b, err := durable.ReadPrivate(p.file("session"), 4096)
	if errors.Is(err, fs.ErrNotExist) {
		return secret.Text{}, need("not logged in")
	}
	if err != nil {
		return secret.Text{}, fmt.Errorf("cannot read the session: %w", err)
	}
	if at, err := time.Parse(time.RFC3339Nano, p.rec.Expires); err == nil && time.Now().After(at) {
		return secret.Text{}, need("the session has ended")
	}
	return secret.Of(string(b)), nil
}

// TokenFile reads an automation token from a private file.
func TokenFile(path string) (secret.Text, error) {
	b, err := durable.ReadPrivate(path, 4096)
	if err != nil {
		return secret.Text{}, fmt.Errorf("cannot read the token file: %w", err)
	}
	t := secret.Of(string(b))
	if t.Empty() {
		return t, fmt.Errorf("cannot read the token file: %s is empty", path)
	}
	return t, nil
}

// AuditHead is the last audit head that was verified here; Seq 0 for none.
func (p *Plane) AuditHead() wire.AuditHead {
	return wire.AuditHead{Seq: p.rec.AuditSeq, Hash: p.rec.AuditHash}
}

// SetAuditHead remembers a verified head.
func (p *Plane) SetAuditHead(ctx context.Context, h wire.AuditHead) error {
	return UpdateJSON(ctx, p.file("plane.json"), &p.rec, func() error {
		p.rec.AuditSeq, p.rec.AuditHash = h.Seq, h.Hash
		return nil
	})
}

// RuntimeFile joins a name to the runtime directory.
func (d Dirs) RuntimeFile(name string) (string, error) {
	dir, err := d.Runtime()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// Exists reports whether the path is there, without following a link.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// AddRoots has further roots vouch for the plane, besides those that do.
func (p *Plane) AddRoots(ctx context.Context, pem string) error {
	return UpdateJSON(ctx, p.file("plane.json"), &p.rec, func() error {
		if !strings.Contains(p.rec.RootsPEM, strings.TrimSpace(pem)) {
			p.rec.RootsPEM = strings.TrimRight(p.rec.RootsPEM, "\n") + "\n" + pem
		}
		return nil
	})
}

// Follow keeps what is known of the plane under the URL that it has now, the
// session and the links too, and makes that the default. What is known under the
// one before stays.
func (p *Plane) Follow(ctx context.Context, d Dirs, url string) error {
	dir, err := d.planeDir(url)
	if err != nil {
		return err
	}
	n := &Plane{dir: dir}
	for _, name := range []string{"links.json", "session"} {
		b, err := durable.ReadPrivate(p.file(name), maxMoved)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = durable.WriteFile(n.file(name), b, 0o600)
		}
		if err != nil {
			return fmt.Errorf("cannot keep the plane's state under its new URL: %w", err)
		}
	}
	if err := UpdateJSON(ctx, n.file("plane.json"), &n.rec, func() error {
		n.rec = p.rec
		n.rec.URL = url
		return nil
	}); err != nil {
		return err
	}
	st, err := d.State()
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(st, "default-plane"), []byte(url+"\n"), 0o600)
}

// maxMoved bounds the files that Follow copies.
const maxMoved = 64 << 20
