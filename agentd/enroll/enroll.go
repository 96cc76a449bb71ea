// Package enroll admits this machine where no operator's SSH reaches it: it
// asks the plane for a short code, shows it, and waits until a person who is
// logged in somewhere has approved it (R7).
//
// # Who holds what
//
// Two secrets are made here and stay here: the credential, and the poll secret
// by which this process, and nobody else, picks the approval up. The plane gets
// their digests. The code only finds the request: it stands on the screen, in
// no URL, and lets nobody in who is not logged in. What comes back carries no
// secret.
//
// # Interrupted anywhere
//
// The installation id and the version directory are made first, each by a
// rename or link of something complete, and found again by the next run. Up to
// the approval nothing else is left. A process that ends between the approval
// and the credential's file loses a secret that has never been used: the row
// that was admitted for it is not living, so the next run's approval replaces
// it (R6, R23). From the credential's file on, the next run asks nobody and
// only finishes: it registers the service and waits for the first check.
//
// The package must not know terminals and command lines, nor how a service is
// registered: Env has what it is given of these.
package enroll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Plane is what an enrolment asks of the control plane.
type Plane interface {
	Enroll(ctx context.Context, r wire.EnrollRequest) (wire.EnrollAnswer, error)
	// PollEnroll returns an error with wire.CodeUnauthorized for every request
	// that is over without an approval.
	PollEnroll(ctx context.Context, poll secret.Text) (wire.EnrollPollAnswer, error)
}

// Request is one wish to be admitted.
type Request struct {
	Installation secret.Text
	Report       wire.EnrollReport
	// Show tells a person what to do.
	Show func(wire.EnrollAnswer)
	// Notice says what is being waited for, or what is in the way.
	Notice func(format string, args ...any)
}

// Approved is what an approval gives: the row, and the secret for it.
type Approved struct {
	wire.EnrollPollAnswer
	Secret secret.Text
}

// Bounds of waiting. A plane that asks for more or less is not followed.
const (
	minPoll  = time.Second
	maxPoll  = time.Minute
	maxLife  = time.Hour
	overtime = 30 * time.Second // for the last answer, and for clocks that run apart
)

// Await asks for admission and waits, but not for ever, until a person has
// decided.
func Await(ctx context.Context, p Plane, r Request) (Approved, error) {
	cred, poll := secret.New("fm_"), secret.New("fp_")
	a, err := p.Enroll(ctx, wire.EnrollRequest{InstallationDigest: r.Installation.Digest().Hex(), CredentialDigest: cred.Digest().Hex(),
		PollDigest: poll.Digest().Hex(), Report: r.Report})
	if err != nil && fault.Of(err).Code == wire.CodeUnauthorized {
		return Approved{}, errGate
	}
	if err != nil {
		return Approved{}, err
	}
	r.Show(a)
	life := min(time.Duration(a.ExpiresS*float64(time.Second)), maxLife)
	ctx, cancel := context.WithTimeoutCause(ctx, life+overtime, errRanOut)
	defer cancel()
	every := between(a.PollS)
	unheard := false // a poll's answer was lost
	for {
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errRanOut) {
				return Approved{}, errRanOut
			}
			return Approved{}, ctx.Err()
		case <-time.After(every):
		}
		got, err := p.PollEnroll(ctx, poll)
		var f *fault.Error
		switch {
		case err == nil && got.Status == wire.EnrollApproved:
			if !wire.IsMachineID(got.Machine) || got.Generation < 1 {
				return Approved{}, errors.New("the plane approved, and named no machine")
			}
			return Approved{got, cred}, nil
		case err == nil:
			unheard = false
			if got.PollS > 0 {
				every = between(got.PollS)
			}
		case ctx.Err() != nil:
		case errors.As(err, &f) && f.Code == wire.CodeUnauthorized && unheard:
			return Approved{}, errOver.WithHint("an answer of the plane was lost on the way; if the machine was approved, running this again and approving it once more finishes")
		case errors.As(err, &f) && f.Code == wire.CodeUnauthorized:
			return Approved{}, errOver
		default:
			if !unheard {
				r.Notice("%s; trying on", err)
			}
			unheard = true
		}
	}
}

func between(s float64) time.Duration {
	return min(max(time.Duration(s*float64(time.Second)), minPoll), maxPoll)
}

// What a machine learns when nobody approved it: the plane tells no more.
var (
	errOver = fault.New(fault.NeedPerson, "not_approved", "the request is over: it was refused, or its time ran out").
		WithHint("run this again for a new code")
	errGate = fault.New(fault.Refused, wire.CodeUnauthorized, "the plane does not take requests of this machine: it has a gate, and another token than was given").
		WithHint("--gate-token-file FILE names the file with the token; the plane's planed status shows which version counts")
	errRanOut = fault.New(fault.NeedPerson, "not_approved", "nobody approved the machine in time").
			WithHint("run this again for a new code")
)

// Document is the credential as the store of this machine takes it. gate is the
// token that the enrolment came through the plane's gate with, or nil.
func (a Approved) Document(planeURL, rootsPEM string, gate *wire.CredentialGate) *wire.Credential {
	return &wire.Credential{Schema: wire.SchemaCredential, Machine: a.Machine, Generation: a.Generation, Secret: a.Secret.Reveal(),
		Plane: wire.CredentialPlane{URL: planeURL, RootsPEM: rootsPEM}, Gate: gate}
}

// String names the machine, and never the secret.
func (a Approved) String() string { return fmt.Sprintf("%s (%s)", a.Name, a.Machine) }
