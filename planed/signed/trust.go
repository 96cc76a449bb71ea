package signed

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/rotation"
)

// Authority is the plane's own, as it is in use.
type Authority interface {
	Current() *ca.Server
	// Retire has some roots be trusted no more, and the files be read again.
	Retire(roots []*x509.Certificate) error
}

// Trust are the roots that vouch for the plane.
type Trust struct {
	Dir       string
	Store     States
	Authority Authority
	// Planes refuses a statement that does not name every URL of the plane.
	Planes func(*wire.Statement) error
	Time   func() time.Time

	now      atomic.Pointer[Now]
	byNumber atomic.Pointer[map[int64]secret.Digest]
	retired  []*x509.Certificate // as the authority was told last
}

var _ rotation.Material = (*Trust)(nil)

// Now is what machines are to hold.
func (t *Trust) Now() *Now { return t.now.Load() }

// rootOf is the one root that a statement is about.
func rootOf(st *wire.Statement) (*x509.Certificate, error) {
	block, rest := pem.Decode([]byte(st.RootsPEM))
	if block == nil {
		return nil, errors.New("cannot use the statement: it holds no root")
	}
	if more, _ := pem.Decode(rest); more != nil {
		return nil, errors.New("cannot use the statement: it holds more than one root")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !c.IsCA {
		return nil, errors.New("cannot use the statement: its root is no authority's certificate")
	}
	return c, nil
}

func rootDigest(c *x509.Certificate) secret.Digest { return sha256.Sum256(c.Raw) }

// find is the root that a digest names, of those that the host has.
func (t *Trust) find(d secret.Digest) *x509.Certificate {
	a := t.Authority.Current()
	for _, c := range append([]*x509.Certificate{a.Root}, a.Roots...) {
		if rootDigest(c) == d {
			return c
		}
	}
	return nil
}

// Load looks at the authority, whose files were read before.
func (t *Trust) Load() (primary rotation.Holding, secondary *rotation.Holding, hold func(), err error) {
	s, err := t.Store.RotationState(context.Background(), wire.MaterialTrust)
	if err != nil {
		return primary, nil, nil, err
	}
	primary, secondary = loaded(s, rootDigest(t.Authority.Current().Root), func(d secret.Digest) bool { return t.find(d) != nil })
	return primary, secondary, func() {}, nil
}

// Make takes the statement's word, where the host has that root.
func (t *Trust) Make(version int64) (rotation.Holding, error) {
	h, err := made(t.Store, wire.MaterialTrust, version)
	if err == nil && t.find(h.Digest) == nil {
		return h, errors.New("the plane's host has no such root any more: planed ca new-root makes one")
	}
	return h, err
}

// Apply trusts what the state accepts.
func (t *Trust) Apply(s rotation.State) (versions []int64) {
	living := []rotation.Holding{{Version: s.Version, Digest: s.Digest}}
	if s.Running() {
		living = []rotation.Holding{{Version: s.Run.From, Digest: s.Run.FromDigest}, {Version: s.Run.To, Digest: s.Run.ToDigest}}
	}
	known := map[int64]secret.Digest{}
	var retired []*x509.Certificate
	for _, h := range living {
		known[h.Version] = h.Digest
		root := t.find(h.Digest)
		switch {
		case root == nil:
		case s.Accepts(h.Version, h.Digest):
			versions = append(versions, h.Version)
		case s.Running() && s.Run.Step == wire.StepNarrow:
			retired = append(retired, root)
		}
	}
	t.byNumber.Store(&known)
	t.now.Store(nowOf(s))
	if !slices.EqualFunc(retired, t.retired, (*x509.Certificate).Equal) {
		if err := t.Authority.Retire(retired); err != nil {
			return nil // the engine says that it does not go on
		}
		t.retired = retired
	}
	return versions
}

func (t *Trust) digest(version int64) secret.Digest {
	if m := t.byNumber.Load(); m != nil {
		return (*m)[version]
	}
	return secret.Digest{}
}

// Prove verifies what the plane presents and issues as somebody does who trusts
// the root that is kept alone, and sees that the other one opens nothing.
func (t *Trust) Prove(_ context.Context, retired int64) error {
	a := t.Authority.Current()
	kept := t.find(t.digest(t.now.Load().Version))
	if kept == nil {
		return errors.New("the root that is to be kept is not there")
	}
	if err := a.Try(t.Time(), kept); err != nil {
		return fmt.Errorf("with the root that is kept alone: %w", err)
	}
	if old := t.find(t.digest(retired)); old != nil && slices.ContainsFunc(a.Trusted(), old.Equal) {
		return fmt.Errorf("%s is still trusted", ca.Pin(old))
	}
	return nil
}

// Erase leaves one root.
func (t *Trust) Erase(keep int64) error {
	next, err := datadir.NextRoot(t.Dir)
	switch {
	case err != nil || next == nil:
	case rootDigest(next) == t.digest(keep):
		err = datadir.UseNextRoot(t.Dir)
	default:
		err = datadir.DropNextRoot(t.Dir)
	}
	if err != nil {
		return fmt.Errorf("cannot put the root in place: %w", err)
	}
	return t.Authority.Retire(t.retired)
}

// Only reports whether a version's root is the only one.
func (t *Trust) Only(version int64) bool {
	next, err := datadir.NextRoot(t.Dir)
	return err == nil && next == nil && rootDigest(t.Authority.Current().Root) == t.digest(version)
}

// InUse is the root that vouches for the plane's certificate, PEM.
func (t *Trust) InUse() string { return string(ca.EncodeCert(t.Authority.Current().Root)) }

// Check refuses what a statement must not say, before anything begins.
func (t *Trust) Check(st *wire.Statement) error {
	root, err := rootOf(st)
	if err != nil {
		return err
	}
	a := t.Authority.Current()
	if root.Equal(a.Root) {
		return errors.New("that root vouches for the plane already")
	}
	next, err := datadir.NextRoot(t.Dir)
	if err != nil {
		return err
	}
	if next == nil || !next.Equal(root) || !slices.ContainsFunc(a.Roots, root.Equal) {
		return fmt.Errorf("the plane does not present a certificate under %s: planed ca new-root, on its host, makes a root, and SIGHUP has the plane present it", ca.Pin(root))
	}
	return t.Planes(st)
}
