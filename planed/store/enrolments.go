package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/enrol"
	"fleet.example/fleet/planed/machine"
)

// ErrFull refuses one more waiting machine.
var ErrFull = errors.New("too many machines wait for approval")

// ErrNoCode answers every code that finds no waiting machine, whatever became
// of it: it is unknown, expired, refused or used, and nobody is told which.
var ErrNoCode = errors.New("no machine waits with this code")

// BlockedError refuses a person's codes for a while, the right ones too.
type BlockedError struct{ Wait time.Duration }

func (e *BlockedError) Error() string {
	return fmt.Sprintf("too many wrong codes; the next may be tried in %s", e.Wait.Round(time.Second))
}

// LivingError refuses to approve an installation whose credential works or has
// worked (R23).
type LivingError struct{ Machine string }

func (e *LivingError) Error() string {
	return "this installation is admitted as " + e.Machine + " already, and its credential has worked"
}

// Decision is a person's about a waiting machine.
type Decision struct {
	By      machine.By
	At      time.Time
	Code    secret.Digest
	Approve bool // else deny
	Name    string
	Labels  map[string]string
}

// Decided is what it came to. Admitted is zero after a denial.
type Decided struct {
	Admitted
	Request enrol.Request
}

// Polled is what a waiting machine is told. Row is nil while it waits.
type Polled struct {
	Machine    string // "" while it waits
	Generation int64
	Name       string
	Owner      string
}

// Enrolments is what the store does about machines that wait for approval.
type Enrolments interface {
	// Enrol adds a request under its code's digest: ErrExists where the code is
	// taken, ErrFull where there is no room. A request of the same installation
	// that waits is replaced.
	Enrol(ctx context.Context, code secret.Digest, r enrol.Request) error
	// Look finds a waiting machine for a person. A code that finds none is
	// counted against them, in the same transaction, and answered ErrNoCode; a
	// person over the limit gets a *BlockedError without a look.
	Look(ctx context.Context, code secret.Digest, by machine.By, now time.Time) (enrol.Request, error)
	// Decide approves or denies it, with the same two refusals, and *LivingError.
	Decide(ctx context.Context, d Decision) (Decided, error)
	// Poll asks by the poll secret. An approval is answered once; ErrNotFound
	// covers everything else.
	Poll(ctx context.Context, poll secret.Digest, now time.Time) (Polled, error)
}
