// Package approval has a machine wait for a person's approval: it asks the plane
// for a short code, has it shown, and polls, but not for ever, until somebody who
// is logged in has decided (R7). The machine itself does that (agentd enroll),
// and an operator who has SSH to it and no session on the plane (fleet install).
//
// The poll secret is made here and leaves only as a digest and in the polls, so
// that nobody but this process picks the approval up. What comes back carries no
// secret: the credential's digest went along with the request.
package approval

import (
	"context"
	"errors"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Plane is what is asked of the control plane.
type Plane interface {
	Enroll(ctx context.Context, r wire.EnrollRequest) (wire.EnrollAnswer, error)
	// PollEnroll returns an error with wire.CodeUnauthorized for every request
	// that is over without an approval.
	PollEnroll(ctx context.Context, poll secret.Text) (wire.EnrollPollAnswer, error)
}

// ErrNotTaken says that the plane took no request: it has a gate, and another
// token than was presented.
var ErrNotTaken = errors.New("the plane does not take requests from here")

// Request is one wish to be admitted.
type Request struct {
	Installation, Credential secret.Digest
	Report                   wire.EnrollReport
	// Show tells a person what to do.
	Show func(wire.EnrollAnswer)
	// Notice says what is being waited for, or what is in the way.
	Notice func(format string, args ...any)
}

// Bounds of waiting. A plane that asks for more or less is not followed.
const (
	minPoll = time.Second
	maxPoll = time.Minute
	maxLife = time.Hour
	// Overtime is for the last answer, and for clocks that run apart.
	Overtime = 30 * time.Second
)

// Await asks for admission and waits, but not for ever, until a person has
// decided.
func Await(ctx context.Context, p Plane, r Request) (wire.EnrollPollAnswer, error) {
	poll := secret.New("fp_")
	a, err := p.Enroll(ctx, wire.EnrollRequest{InstallationDigest: r.Installation.Hex(), CredentialDigest: r.Credential.Hex(),
		PollDigest: poll.Digest().Hex(), Report: r.Report})
	if err != nil && fault.Of(err).Code == wire.CodeUnauthorized {
		return wire.EnrollPollAnswer{}, ErrNotTaken
	}
	if err != nil {
		return wire.EnrollPollAnswer{}, err
	}
	r.Show(a)
	life := min(time.Duration(a.ExpiresS*float64(time.Second)), maxLife)
	ctx, cancel := context.WithTimeoutCause(ctx, life+Overtime, errRanOut)
	defer cancel()
	every := between(a.PollS)
	unheard := false // a poll's answer was lost
	for {
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errRanOut) {
				return wire.EnrollPollAnswer{}, errRanOut
			}
			return wire.EnrollPollAnswer{}, ctx.Err()
		case <-time.After(every):
		}
		got, err := p.PollEnroll(ctx, poll)
		var f *fault.Error
		switch {
		case err == nil && got.Status == wire.EnrollApproved:
			if !wire.IsMachineID(got.Machine) || got.Generation < 1 {
				return wire.EnrollPollAnswer{}, errors.New("the plane approved, and named no machine")
			}
			return got, nil
		case err == nil:
			unheard = false
			if got.PollS > 0 {
				every = between(got.PollS)
			}
		case ctx.Err() != nil:
		case errors.As(err, &f) && f.Code == wire.CodeUnauthorized && unheard:
			return wire.EnrollPollAnswer{}, errOver.WithHint("an answer of the plane was lost on the way; if the machine was approved, running this again and approving it once more finishes")
		case errors.As(err, &f) && f.Code == wire.CodeUnauthorized:
			return wire.EnrollPollAnswer{}, errOver
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
	errRanOut = fault.New(fault.NeedPerson, "not_approved", "nobody approved the machine in time").
			WithHint("run this again for a new code")
)
