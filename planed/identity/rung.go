package identity

import (
	"errors"

	"fleet.example/fleet/core/secret"
)

// Rung is how a machine shows who it is.
type Rung uint8

const (
	NoRung Rung = iota // as a wish: none is under way
	Bearer
	MutualTLS
)

// Keys is the part of a row that the rung of mutual TLS needs (R27). A key is
// named by the digest of its SubjectPublicKeyInfo.
type Keys struct {
	Mtls   bool          // the row is on that rung
	Toward Rung          // where a person wants it, until it is there
	Key    secret.Digest // of the certificates that are used; zero off the rung
	Next   secret.Digest // certified and never used; zero when there is none
	Past   secret.Digest // the one before; never certified again
}

// JudgeKey says what a certificate that carries the key means to the row. The
// certificate itself was verified before.
func (r *Row) JudgeKey(key secret.Digest) Standing {
	return r.standing(secret.Match(key, r.Keys.Key, r.Keys.Next, r.Keys.Past))
}

// UseKey records that a certificate was presented, like Use. The first use of a
// key that waits takes the row to the rung of mutual TLS, or to its next key.
func (r *Row) UseKey(key secret.Digest) (s Standing, changed bool) {
	s = r.JudgeKey(key)
	if s != Next {
		return s, false
	}
	k := &r.Keys
	if !k.Key.IsZero() {
		k.Past = k.Key
	}
	k.Key, k.Next, k.Mtls = key, secret.Digest{}, true
	if k.Toward == MutualTLS {
		k.Toward = NoRung
	}
	r.Proven = true
	return s, true
}

// descend leaves the rung: its certificates are superseded.
func (r *Row) descend() {
	r.Keys = Keys{Past: r.Keys.Key}
}

// Wish notes which rung a person wants. A key that was certified for a climb
// that is no longer wanted is forgotten.
func (r *Row) Wish(to Rung) {
	r.Keys.Toward = to
	if to == Bearer && !r.Keys.Mtls {
		r.Keys.Next = secret.Digest{}
	}
}

// There reports whether the row is where it was wanted last.
func (r *Row) There() bool {
	t := r.Keys.Toward
	return t == NoRung || (t == MutualTLS) == r.Keys.Mtls
}

// ErrSuperseded refuses to certify a key that has been replaced: a reverted or
// copied disk brings nothing back.
var ErrSuperseded = errors.New("the key has been superseded")

// Certify judges a request for a certificate: bearer is the digest of the
// secret that was presented, held the key of the certificate that the
// connection was opened with, zero for none, and key the one that is to be
// certified, whose possession was proven. It uses the bearer, like Use, and
// takes note of the key if it is a new one. Nothing changes with a refusal.
func (r *Row) Certify(bearer, held, key secret.Digest) (s Standing, changed bool, err error) {
	s = r.judge(bearer)
	if s != Current && s != Next {
		return s, false, nil
	}
	k := &r.Keys
	switch secret.Match(key, k.Key, k.Next, k.Past) {
	case 0, 1:
	case 2:
		return s, false, ErrSuperseded
	default:
		h := r.JudgeKey(held)
		switch {
		case k.Mtls && (h == Current || h == Next):
		case !k.Mtls && k.Toward == MutualTLS:
		default:
			return Barred, false, nil
		}
		k.Next, changed = key, true
	}
	if s == Next {
		r.promote()
		changed = true
	}
	return s, changed, nil
}
