// Package enrol is what the plane knows of a machine that waits for a person's
// approval, and how hard it is to guess a code. Everything here is pure; a
// store keeps the table.
//
// # What a code is worth
//
// A code has 40 random bits and lives ten minutes. It only finds a request: who
// holds it learns what the machine says of itself, and can let it in with their
// own session. Picking an approval up takes the poll secret, 256 bits that the
// machine never sent. So guessing a code is the way of a person with an account
// to have somebody else's waiting machine admitted as theirs, and of nobody
// else: without a session no code can be tried.
//
// At most MaxPending requests wait, and a person may be wrong MaxWrong times in
// any hour. The count is written, and read, in the transaction that looks the
// code up: requests side by side, a restart of the plane, another session and
// another replica change nothing about it. A person who is over the limit gets
// the same answer whatever the code is. Hence the odds that an attacker with
// one account finds any machine at all within an hour, with the table filled to
// its bound, are at most
//
//	MaxWrong × MaxPending ÷ 2^40 = 20 × 4096 ÷ 2^40 ≈ 7.5 × 10⁻⁸
//
// or one in 13 million; with one machine waiting, one in 55 thousand million.
// TestOddsOfGuessing holds the figure against the limiter.
//
// # What a holder of a code can tell
//
// A request that was approved, denied, replaced or that ran out is no longer in
// the table, so that there is nothing by which one could be told from another,
// or from a code that never was: they are one case, on one path.
//
// The package must not know HTTP or stores.
package enrol

import (
	"crypto/rand"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
)

// Bounds of the table and of guessing.
const (
	Life       = 10 * time.Minute
	MaxPending = 4096
	MaxWrong   = 20 // codes, of one person within Window
	Window     = time.Hour
	// PollEvery is how often a waiting machine asks.
	PollEvery = 5 * time.Second
	// Bits of a code.
	Bits = 5 * wire.CodeLength
)

// NewCode makes a code in its normal form.
func NewCode() string {
	var b [wire.CodeLength]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	for i, c := range b {
		b[i] = wire.CodeAlphabet[c%32] // 256 is a multiple of 32
	}
	return string(b[:])
}

// Digest is what a code is kept under. ok is false where it can be no code; the
// digest then fits none, so that such a code is looked up like any other.
func Digest(typed string) (d secret.Digest, normal string, ok bool) {
	normal, ok = wire.NormalCode(typed)
	if !ok {
		return secret.Of("no code: " + typed).Digest(), "", false
	}
	return secret.Of(normal).Digest(), normal, true
}

// Request is a machine that waits.
type Request struct {
	Installation secret.Digest
	Credential   secret.Digest
	Poll         secret.Digest
	Report       wire.EnrollReport
	At           time.Time
	ExpiresAt    time.Time
}

// Waits reports whether the request still waits.
func (r *Request) Waits(now time.Time) bool { return now.Before(r.ExpiresAt) }

// Report cleans what a machine says of itself: bounded, nothing that controls a
// terminal, no network address (R14, R18).
func Report(r wire.EnrollReport) wire.EnrollReport {
	for _, s := range []*string{&r.Host, &r.Account, &r.OS, &r.Arch, &r.Version, &r.Scope, &r.ServiceManager} {
		*s = machine.Word(*s)
	}
	if r.Scope != "user" && r.Scope != "system" {
		r.Scope = ""
	}
	if wire.CheckName(r.ServiceManager) != nil {
		r.ServiceManager = ""
	}
	return r
}

// Guesses are one person's wrong codes within the last Window, oldest first.
type Guesses []time.Time

// Blocked returns how long the person has to wait before the next code, zero if
// they may try one now.
func (g Guesses) Blocked(now time.Time) time.Duration {
	g = g.recent(now)
	if len(g) < MaxWrong {
		return 0
	}
	return g[len(g)-MaxWrong].Add(Window).Sub(now)
}

// Wrong counts one more.
func (g Guesses) Wrong(now time.Time) Guesses {
	return append(g.recent(now), now)
}

// recent drops what is older than the window. What lies ahead of a clock that
// was set back counts.
func (g Guesses) recent(now time.Time) Guesses {
	for len(g) > 0 && now.Sub(g[0]) >= Window {
		g = g[1:]
	}
	return g[:len(g):len(g)]
}
