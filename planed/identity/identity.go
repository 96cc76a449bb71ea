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
)

// Judge says what a presented secret's digest means. It changes nothing.
func (r *Row) Judge(presented secret.Digest) Standing {
	i := secret.Match(presented, r.Current, r.Next, r.Superseded[0], r.Superseded[1])
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
