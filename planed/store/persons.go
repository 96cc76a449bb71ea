package store

import (
	"context"
	"errors"
	"time"

	"fleet.example/fleet/planed/machine"
)

// Refusals of changes to persons.
var (
	// ErrLastOwner refuses what would leave no owner who can log in: nobody
	// could make principals any more, and only the plane's host could help.
	ErrLastOwner = errors.New("the plane would be left without an owner who can log in")
	// ErrOwnsMachines refuses to remove a person whose machines would belong to
	// nobody, and to whoever is given the name next.
	ErrOwnsMachines = errors.New("the person owns machines")
	// ErrNoPerson is a person who is not there.
	ErrNoPerson = errors.New("there is no such person")
	// ErrLocked refuses what a locked person cannot be given.
	ErrLocked = errors.New("the person is locked")
	// ErrKeyTaken refuses a key that is somebody's.
	ErrKeyTaken = errors.New("the key belongs to a person already")
	// ErrTooManyKeys bounds what one person has.
	ErrTooManyKeys = errors.New("a person has at most 32 keys")
	// ErrSessionEnded refuses a change whose session or token ended while the
	// request was under way.
	ErrSessionEnded = errors.New("the session has ended")
)

// MaxKeys bounds the keys of one person.
const MaxKeys = 32

// Key is one SSH key of a person.
type Key struct {
	Fingerprint string
	Key         string // authorized_keys form, without comment
	AddedAt     time.Time
	LastUsed    time.Time // of the last login by it
}

// PersonInfo is all that is kept of a person.
type PersonInfo struct {
	Person
	Keys     []Key    // by fingerprint
	Sessions int      // that live now
	Tokens   []string // names, in order
}

// Invited is an invitation that waits.
type Invited struct {
	Person    string
	Role      string
	By        string
	ExpiresAt time.Time
}

// PersonChange is an owner's change to a person, or a person's own to their
// keys. Exactly one of the last five is set.
type PersonChange struct {
	By   machine.By
	At   time.Time
	Name string

	Lock      bool
	Unlock    bool
	Remove    bool
	AddKey    *Key
	RemoveKey string // a fingerprint
}

// PersonChanged says what a change ended besides.
type PersonChanged struct {
	Sessions    int      // that ended
	Tokens      []string // that ended
	Invitations int      // that are void: the person's own, and those that they made
}

// Persons is what the store does about persons.
type Persons interface {
	// Persons lists persons by name, and the invitations that wait.
	Persons(ctx context.Context, now time.Time) ([]PersonInfo, []Invited, error)
	// KeyOwner returns whose the key is, or ErrNotFound.
	KeyOwner(ctx context.Context, fingerprint string) (string, error)
	// ChangePerson applies a change, or returns ErrNoPerson, machine.ErrNotYours
	// or one of the refusals above and changes nothing.
	ChangePerson(ctx context.Context, c PersonChange) (PersonChanged, error)
}
