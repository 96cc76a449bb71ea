// Package identity is the state machine of one machine's credential (R20): a
// current generation, perhaps a next one, and the ones before. It is pure: no
// clock, no store, no network. A store reads a Row, calls one method and
// writes the Row back in one transaction; it must not know why a transition is
// allowed.
//
// # Why no machine is locked out
//
// Let P be the set of secrets that the machine may present: what its disk
// holds. Let A be the set that the row accepts: Current, and Next when set.
// The invariant is that the newest secret the machine may present without
// having been told that the plane knows it is always preceded, in the order in
// which the machine tries them, by one that is in A, or is in A itself.
//
//   - rotate(n, d): the machine has made secret n+1 and fsynced it beside n
//     before it sends d. Before the row changes, n is accepted; after, both
//     are. Whether the answer arrives does not matter: the machine may present
//     either, and repeating the request changes nothing.
//   - use(n+1): promotes. From then on n is refused as behind. The machine can
//     only have presented n+1 because it is on its disk, and it never removes
//     n+1 before n+2 is proven, so a lost answer changes nothing either.
//   - use(n) while n+1 waits changes nothing: n stays accepted for as long as
//     n+1 has not been used, so a machine that lost its staged file before it
//     presented what was in it goes on.
//   - A second rotate(n, d') before any use of n+1 replaces Next. Only a
//     machine that no longer has d sends d', and it still has n. A delayed
//     duplicate of the first request that arrives after it sets Next to d
//     again; the machine is refused with n+1, accepted with n, and sends d'
//     again. Current never moves without a use, so this ends.
//   - Only the holder of the current generation starts a rotation, so a thief
//     of a superseded secret cannot move the row, and of two machines that
//     share one disk image exactly one stays: the other becomes behind.
//
// # The rung of mutual TLS
//
// There a row accepts certificates, each for a key that the row knows by its
// digest, and the bearer secret opens one thing only: more certificates for the
// key that the row has certified already (R27). The invariant: a machine on the
// rung always holds a certificate that is accepted, or can get one with its
// bearer for the key of this row; a stolen bearer alone gets nothing but the
// refusal that everybody gets; between rungs there is no moment in which
// neither is accepted.
//
//   - A certificate expires, the key behind it does not. Who holds both files,
//     and that is the machine, asks for another one at any time, so that
//     sleeping past the expiry, or losing any answer, costs one request. Who
//     has the bearer alone cannot sign the request, and who has the key alone
//     cannot send it.
//   - Going up: a person's wish (Toward) lets the bearer have a first key
//     certified. The machine has synced the key before the request. Until a
//     certificate for it is used (UseKey), the bearer is accepted for all that
//     it was, so that an answer lost, a crash, or a listener that cannot be
//     reached leaves the machine where it was. First use closes the bearer in
//     the same write that accepted the certificate. A second request with
//     another key before that replaces the first: only a machine that lost the
//     key sends it, and it has the bearer.
//   - Another key on the rung is certified only over a connection that the
//     present key opened and for the bearer as well; the row then accepts both
//     keys until the new one is used, as with generations of secrets.
//   - Going down: the machine, over its certificate, stages generation n+1.
//     With a person's wish standing, first use of n+1 - never of n, which may
//     have been stolen long ago - opens the bearer and supersedes the key, again
//     in one write; until then the certificate is accepted.
//   - A key that was superseded is never certified again, whoever asks: a disk
//     that went back, or was copied, is told that it is behind.
//
// A row that was deleted accepts nothing and tells holders of its last secrets
// that it was deleted (R23). Everybody else learns nothing, and learns it at
// the same price: Judge compares the same number of digests in constant time
// whoever asks, and Nobody stands in for a row that does not exist (R24).
package identity

import (
	"errors"

	"fleet.example/fleet/core/secret"
)

// Kept is how many superseded digests a row remembers, to tell behind from
// unknown.
const Kept = 2

// Row is the credential part of a machine's row.
type Row struct {
	Generation int64               // of Current; 1 is the first
	Current    secret.Digest       // never zero in a row that lives
	Next       secret.Digest       // of Generation+1; zero when no rotation waits
	Superseded [Kept]secret.Digest // newest first; zero when there is none
	Proven     bool                // a machine has presented a credential of this row and was accepted
	Deleted    bool
	Keys       Keys
}

// Nobody is the row that an unknown machine id is judged by.
var Nobody Row

// Standing is what a presented secret means to a row.
type Standing int

const (
	Unknown Standing = iota // 401, whatever the reason
	Current
	Next    // accepted, and using it promotes
	Behind  // once valid, superseded
	Revoked // once valid, the machine was deleted
	Barred  // right, and not enough on the rung of mutual TLS: answered as Unknown is
)

// Judge says what a presented secret's digest means. It changes nothing. On the
// rung of mutual TLS a secret opens nothing here, but for the next generation's
// of a machine that comes down.
func (r *Row) Judge(presented secret.Digest) Standing {
	s := r.judge(presented)
	if !r.Keys.Mtls || s == Unknown || s == Revoked || s == Next && r.Keys.Toward == Bearer {
		return s
	}
	return Barred
}

func (r *Row) judge(presented secret.Digest) Standing {
	return r.standing(secret.Match(presented, r.Current, r.Next, r.Superseded[0], r.Superseded[1]))
}

// standing is what the i-th of a row's secrets or keys means: the current one,
// the next, and those before; negative is none of them.
func (r *Row) standing(i int) Standing {
	switch {
	case i < 0:
		return Unknown
	case r.Deleted:
		return Revoked
	case i == 0:
		return Current
	case i == 1:
		return Next
	default:
		return Behind
	}
}

// Use records that a secret was presented and returns its standing before
// that. The first use of the next generation promotes it; changed reports
// whether the row has to be written.
func (r *Row) Use(presented secret.Digest) (s Standing, changed bool) {
	s = r.Judge(presented)
	switch s {
	case Next:
		r.promote()
		if r.Keys.Mtls {
			r.descend()
		}
		return s, true
	case Current:
		changed = !r.Proven
		r.Proven = true
		return s, changed
	default:
		return s, false
	}
}

func (r *Row) promote() {
	copy(r.Superseded[1:], r.Superseded[:Kept-1])
	r.Superseded[0] = r.Current
	r.Current, r.Next = r.Next, secret.Digest{}
	r.Generation++
	r.Proven = true
}

// Refusals of a rotation. The caller is authenticated already.
var (
	ErrGeneration = errors.New("the new generation must follow the current one")
	ErrReused     = errors.New("the digest belongs to an earlier generation")
	ErrNoDigest   = errors.New("the digest is empty")
)

// Rotate makes digest the next generation, on behalf of the holder of the
// presented secret, which has been passed to Use in the same transaction and
// so is current. The same request again is the same answer.
func (r *Row) Rotate(generation int64, digest secret.Digest) (changed bool, err error) {
	if digest.IsZero() {
		return false, ErrNoDigest
	}
	// Match instead of ==: a digest is compared in one way everywhere.
	switch i := secret.Match(digest, r.Current, r.Next, r.Superseded[0], r.Superseded[1]); {
	case i == 0 && generation == r.Generation, i == 1 && generation == r.Generation+1:
		return false, nil
	case i >= 0 && i != 1:
		return false, ErrReused
	case generation != r.Generation+1:
		return false, ErrGeneration
	}
	r.Next = digest
	return true, nil
}

// Admission is the outcome of admitting an installation.
type Admission int

const (
	Made     Admission = iota // there was no row
	Replaced                  // the row's credential had never succeeded
	Same                      // the row has exactly this digest
	Living                    // the row's credential has succeeded; nothing changes (R23)
)

// Make returns the row of a new machine.
func Make(digest secret.Digest) Row { return Row{Generation: 1, Current: digest} }

// Admit admits the installation of an existing row again. A credential that
// never succeeded is replaced, one that has is not (R6).
func (r *Row) Admit(digest secret.Digest) Admission {
	switch i := secret.Match(digest, r.Current, r.Next); {
	case i >= 0:
		return Same
	case r.Proven:
		return Living
	}
	// Whoever holds the digest that is replaced never used it, so nothing that
	// works stops working.
	r.Current, r.Next = digest, secret.Digest{}
	return Replaced
}

// Delete ends the row. Its digests stay, to answer revoked.
func (r *Row) Delete() { r.Deleted = true }
