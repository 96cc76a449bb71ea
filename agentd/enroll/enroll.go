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

	"fleet.example/fleet/core/approval"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

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

// Await asks for admission and waits, but not for ever, until a person has
// decided.
func Await(ctx context.Context, p approval.Plane, r Request) (Approved, error) {
	cred := secret.New("fm_")
	got, err := approval.Await(ctx, p, approval.Request{Installation: r.Installation.Digest(), Credential: cred.Digest(), Report: r.Report,
		Show: r.Show, Notice: r.Notice})
	if errors.Is(err, approval.ErrNotTaken) {
		return Approved{}, errGate
	}
	if err != nil {
		return Approved{}, err
	}
	return Approved{got, cred}, nil
}

var errGate = fault.New(fault.Refused, wire.CodeUnauthorized, "the plane does not take requests of this machine: it has a gate, and another token than was given").
	WithHint("--gate-token-file FILE names the file with the token; the plane's planed status shows which version counts")

// Document is the credential as the store of this machine takes it. gate is the
// token that the enrolment came through the plane's gate with, or nil.
func (a Approved) Document(planeURL, rootsPEM string, gate *wire.CredentialGate) *wire.Credential {
	return &wire.Credential{Schema: wire.SchemaCredential, Machine: a.Machine, Generation: a.Generation, Secret: a.Secret.Reveal(),
		Plane: wire.CredentialPlane{URL: planeURL, RootsPEM: rootsPEM}, Gate: gate}
}

// String names the machine, and never the secret.
func (a Approved) String() string { return fmt.Sprintf("%s (%s)", a.Name, a.Machine) }
