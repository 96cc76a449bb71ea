// Package signed is the material that a person signs: where the plane is, and
// which roots vouch for it. A machine takes it for the signature alone, so what
// this package hands out is what it was given; it makes nothing of its own. What
// it checks beforehand, it checks to tell a person early.
//
// The invariant of a rotation is argued in package rotation. What is particular
// here:
//
//   - The values lie in the store, as statements, and in the data directory, in
//     plane.json and beside it. The store's rotation decides which version holds;
//     the data directory changes last, in Erase, by one rename of plane.json. A
//     crash before it repeats it, a crash after it finds it done.
//   - A machine presents a version by telling what it has. It tells of a new one
//     only after it was reached there itself, so going by that never shuts out a
//     machine that did not arrive.
//   - The URL that retired is refused like a gate token that did: a machine that
//     comes there is told nothing but, with its credential, the statement. Nothing
//     is refused as long as there is no statement to give.
//   - The root that retired is trusted no more. The certificate that it issued for
//     the intermediate goes on being presented, beside the new root's: it lets
//     those in who slept and trust the old root alone, and it opens nothing.
//
// The package must not know HTTP.
package signed

import (
	"context"
	"crypto/sha256"
	"fmt"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/rotation"
)

// States reads rotations.
type States interface {
	RotationState(ctx context.Context, kind string) (rotation.State, error)
}

// Now is what machines are to hold of a kind.
type Now struct {
	Version int64
	Signed  rotation.Signed // zero: nothing is given, and nothing wanted
	Retires bool            // another version does
	Spared  int64           // versions below it do not: going back, those never left
}

// Want is the version that a machine is to hold, if it is another than the one
// it has and there is a statement to give.
func (n *Now) Want(has int64) (version int64, ok bool) {
	if n == nil || n.Signed.IsZero() || n.Version == has {
		return 0, false
	}
	return n.Version, true
}

// Counted are the version, where another one retires, and the one below which
// nothing does; otherwise both are 0.
func (n *Now) Counted() (wanted, spared int64) {
	if n == nil || !n.Retires {
		return 0, 0
	}
	return n.Version, n.Spared
}

func nowOf(s rotation.State) *Now {
	n := &Now{Version: s.Target(), Signed: s.Given(), Retires: s.Retiring() != 0}
	if s.Running() && s.Run.Back {
		n.Spared = s.Run.To
	}
	return n
}

func digest(value string) secret.Digest { return sha256.Sum256([]byte(value)) }

// Read reads a statement for a kind. It says what a statement is about; whose
// signature it carries is for others to look at.
func Read(kind string, s rotation.Signed) (*wire.Statement, rotation.Signing, error) {
	st, err := wire.ParseStatement([]byte(s.Statement))
	switch {
	case err != nil:
		return nil, rotation.Signing{}, fmt.Errorf("cannot use the statement: %w", err)
	case st.Kind != kind:
		return nil, rotation.Signing{}, fmt.Errorf("cannot use the statement: it is about the %s", st.Kind)
	}
	d, err := digestOf(st)
	if err != nil {
		return nil, rotation.Signing{}, err
	}
	return st, rotation.Signing{Signed: s, Holding: rotation.Holding{Version: st.Version, Digest: d}}, nil
}

func digestOf(st *wire.Statement) (secret.Digest, error) {
	if st.Kind == wire.MaterialURL {
		return digest(st.URL), nil
	}
	root, err := rootOf(st)
	if err != nil {
		return secret.Digest{}, err
	}
	return rootDigest(root), nil
}

// loaded are what a plane's host holds, by what the state knows of the values.
// value is in use there; has reports whether the host can accept what a digest
// names.
func loaded(s rotation.State, value secret.Digest, has func(secret.Digest) bool) (primary rotation.Holding, secondary *rotation.Holding) {
	known := func(d secret.Digest) int64 {
		if r := s.Run; s.Running() && d == r.FromDigest {
			return r.From
		} else if s.Running() && d == r.ToDigest {
			return r.To
		}
		if d == s.Digest && s.Version > 0 {
			return s.Version
		}
		return s.High + 1 // somebody put it there by hand, or it is the first
	}
	primary = rotation.Holding{Version: known(value), Digest: value}
	if !s.Running() {
		return primary, nil
	}
	for _, h := range []rotation.Holding{{Version: s.Run.From, Digest: s.Run.FromDigest}, {Version: s.Run.To, Digest: s.Run.ToDigest}} {
		if h.Version != primary.Version && !h.Digest.IsZero() && has(h.Digest) {
			return primary, &h
		}
	}
	return primary, nil
}
