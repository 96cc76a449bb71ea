// Package store says what the plane asks of its store. The interface is shaped
// by what the plane does - a check, an admission, a login - and not by tables,
// so that one implementation can keep rows in memory over one file and another
// can be a few statements of SQL. What a change means is decided in packages
// machine and identity; a store reads, lets them decide, and writes, all in
// one transaction together with the audit entries.
//
// Every implementation passes the suite in storetest.
//
// # Durability
//
// Durable before a method returns: everything but the time of a machine's last
// check, the sequence number of a plain check, and the time a token was last
// used. Those are coalesced; a crash loses at most the last flush of them.
//
// # Identity
//
// Every method that acts for a machine takes the digest of the secret that was
// presented and judges it in the same transaction that acts (R13). Every
// method that acts for a person takes machine.By and checks ownership there.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
)

// Errors that callers tell apart.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("there already")
	ErrBusy     = errors.New("the store has too much to write")
	// ErrStorage is in the chain of an error of the medium: a full or
	// read-only disk. Nothing was changed.
	ErrStorage = errors.New("the store cannot write")
	// ErrRefused answers a login whose key is unknown and whose invitation is
	// unknown, used or expired, all alike.
	ErrRefused = errors.New("unknown key")
	ErrClosed  = errors.New("the store is closed")
)

// NewerError refuses a store that a later version wrote.
type NewerError struct {
	Path     string
	Has, Max int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("%s was written by a newer planed: it has format %d, this planed knows formats up to %d; run the newer planed, or restore a backup made before the upgrade", e.Path, e.Has, e.Max)
}

// GoneError says that a machine was deleted.
type GoneError struct{ Deleted *wire.Deleted }

func (e *GoneError) Error() string { return "machine " + e.Deleted.Machine + " was deleted" }

// Check is one check of a machine. Body is called at most once, and only if
// the body may change the row.
type Check struct {
	Machine string
	machine.Check
	Body func() (*wire.CheckBody, error)
}

// Checked is what a check's answer needs.
type Checked struct {
	Standing   identity.Standing
	Generation int64 // current
	Asked      machine.Asked
	Toward     identity.Rung // with a request to rotate
	Held       machine.Held  // what the machine said it has
}

// Rotation stages a machine's next credential.
type Rotation struct {
	Machine    string
	Presented  machine.Proof
	Generation int64
	Digest     secret.Digest
	At         time.Time
}

// Certification takes note of a key that is to be certified.
type Certification struct {
	Machine string
	machine.Certification
}

// Certified is what a certificate is made of.
type Certified struct {
	machine.Rotated
	Generation int64 // of the bearer that was presented
}

// Admitted is the outcome of an admission.
type Admitted struct {
	Row     *machine.Row
	Outcome identity.Admission
}

// Machines is what the store does for and about machines.
type Machines interface {
	// Check authenticates and records a check. A standing other than Current
	// or Next is a refusal, not an error. An error of Body is returned as is.
	Check(ctx context.Context, c Check) (Checked, error)
	// Rotate says what became of the request; err is one of package identity's
	// when the rotation itself is refused.
	Rotate(ctx context.Context, r Rotation) (machine.Rotated, error)
	// Certify decides about a certificate before it is made; err is one of package
	// identity's when the key itself is refused.
	Certify(ctx context.Context, c Certification) (Certified, error)
	Admit(ctx context.Context, a machine.Admission, now time.Time) (Admitted, error)
	// Edit applies a person's change to one row. A *GoneError is returned for
	// a deleted machine, ErrNotFound for one that never was.
	Edit(ctx context.Context, id string, change Change) (*machine.Row, error)
	Machine(ctx context.Context, id string) (*machine.Row, error)
	// EachMachine calls f for every living machine in order of id. No
	// transaction and no lock is held while f runs.
	EachMachine(ctx context.Context, f func(*machine.Row) error) error
	Epoch() machine.Epoch
	// Rotations counts the rotations that are under way, from memory.
	Rotations(p machine.Policy) Rotations
	// Certificates looks at the certificates of the machines on the rung of
	// mutual TLS, from memory. within are the bounds of the buckets, ascending.
	Certificates(now time.Time, within []time.Duration) Certificates
}

// Certificates counts machines on the rung of mutual TLS by how long their
// latest certificate is still valid. Nothing left counts as 0.
type Certificates struct {
	Machines int
	Left     time.Duration // the sum
	Within   []uint64      // how many have at most so much left, for each bound
}

// Rotations are counts of machines.
type Rotations struct {
	Requested int // asked to rotate, and have not answered
	Staged    int // have a next generation that was never used
	Stuck     int // of either, those that check and get no further
}

// Change is a person's change to one machine. Exactly one of the pointers is set.
type Change struct {
	By       machine.By
	At       time.Time
	Rename   *string
	Label    *LabelChange
	Ask      *machine.Wish
	Transfer *string // to a person who is there and not locked, else ErrNoPerson or ErrLocked
	Delete   bool
}

// Apply lets the row decide about the change. No events mean that nothing changed.
func (c Change) Apply(r *machine.Row) ([]audit.Event, error) {
	switch {
	case c.Rename != nil:
		return r.Rename(c.By, *c.Rename, c.At)
	case c.Label != nil:
		return r.Label(c.By, c.Label.Set, c.Label.Remove, c.At)
	case c.Ask != nil:
		return r.Ask(c.By, *c.Ask, c.At)
	case c.Transfer != nil:
		return r.Transfer(c.By, *c.Transfer, c.At)
	case c.Delete:
		return r.Delete(c.By, c.At)
	}
	return nil, errors.New("the change is empty")
}

// LabelChange sets and removes labels.
type LabelChange struct {
	Set    map[string]string
	Remove []string
}

// Person is a human principal.
type Person struct {
	Name      string
	Role      string
	CreatedAt time.Time
	LastLogin time.Time // zero: never
	LockedAt  time.Time // zero: not locked
	LockedBy  string
}

// Principal is who a presented person secret belongs to, read live.
type Principal struct {
	Kind      string // "person" or "token"
	Name      string // the person's or the token's
	Person    string // the person, or the one that the token belongs to
	Role      string // the person's; a token has none of its own
	Scopes    []string
	Key       string // fingerprint of the key that opened the session
	ExpiresAt time.Time
}

// Login asks for a session.
type Login struct {
	Fingerprint string        // of the key that signed
	Key         string        // authorized_keys form, without comment
	Invitation  secret.Digest // zero without one
	Session     secret.Digest
	At          time.Time
	ExpiresAt   time.Time
}

// Invitation lets a key that is not known yet become a person's.
type Invitation struct {
	Actor     string        // who invites
	Session   secret.Digest // of the inviting session; zero for the plane's own host
	Digest    secret.Digest
	Person    string
	Role      string
	At        time.Time
	ExpiresAt time.Time
}

// Token is an automation token without its secret.
type Token struct {
	Name      string
	Owner     string
	Scopes    []string
	CreatedAt time.Time
	ExpiresAt time.Time
	LastUsed  time.Time
}

// Material is what the store does for the rotation of what all machines hold.
// The kinds of callers are those of rotation.Store.
type Material interface {
	rotation.Store
	// Material reads a machine's row live, for what stands outside the gate. A
	// standing other than Current or Next is a refusal; using Next promotes it.
	Material(ctx context.Context, id string, presented machine.Proof, now time.Time) (identity.Standing, error)
	// MachineUsed and CallerUsed count a use of the retiring version of a kind, by
	// a machine that proved who it is, or by whoever calls a path without that.
	MachineUsed(kind, machine string, now time.Time)
	CallerUsed(kind, path string, now time.Time)
}

// Principals is what the store does for persons and tokens.
type Principals interface {
	Login(ctx context.Context, l Login) (Person, error)
	Logout(ctx context.Context, session secret.Digest, now time.Time) error
	// Principal returns ErrNotFound for a digest that opens nothing now.
	Principal(ctx context.Context, d secret.Digest, now time.Time) (Principal, error)
	Invite(ctx context.Context, i Invitation) error
	CreateToken(ctx context.Context, t Token, d secret.Digest, by machine.By) error
	// DeleteToken deletes a token of by's person, or any token for an owner.
	DeleteToken(ctx context.Context, name string, by machine.By, now time.Time) error
	Tokens(ctx context.Context) ([]Token, error)
}

// AuditFilter selects entries. Zero fields select everything.
type AuditFilter struct {
	After   uint64
	Since   time.Time
	Machine string
	Limit   int
}

// Auditor is the chained log.
type Auditor interface {
	Audit(ctx context.Context, f AuditFilter) (wire.Audit, error)
	AuditHead(ctx context.Context) (wire.AuditHead, error)
	// AuditChanged returns a channel that is closed at the next append.
	AuditChanged() <-chan struct{}
}

// Stats are counts for status and metrics. They name nobody.
type Stats struct {
	Machines, Tombstones, Persons, Tokens int
	SizeBytes                             int64
	Queued                                int
	WriteError                            string // of the last commit or flush; empty when it worked
	LastFlush                             time.Time
}

// Maintenance is what an administrator asks of the store.
type Maintenance interface {
	Stats() Stats
	// Verify reads everything and returns what is inconsistent, in words.
	Verify(ctx context.Context) ([]string, error)
	// Backup writes one consistent copy.
	Backup(ctx context.Context, w io.Writer) error
	// Flush writes what is coalesced.
	Flush(ctx context.Context) error
	Close() error
}

// Store is a whole store.
type Store interface {
	Machines
	Principals
	Persons
	Enrolments
	Web
	Material
	Auditor
	Maintenance
}
