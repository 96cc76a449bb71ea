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
// # A full table
//
// Anybody may ask, so somebody may fill the table. One source may ask for a
// few dozen; many sources are another matter. When there is no room, the network
// with the most requests loses its oldest one that no person has looked at
// (Evict), unless the newcomer's own network has as many: then it is refused.
// So of N networks that flood, each is left with at least MaxPending ÷ N before
// any other loses a request, and a machine is held off, or loses its place, only
// where its network has its share of requests already: with one machine in a
// network, by an attacker in some two thousand networks. A request that a person
// has looked at stays until it is decided or runs out, so that nobody who is
// just approving finds it gone. Looking takes the code; at most as many requests
// as persons can look at are kept like that.
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
	// From stands for the network that asks, keyed so that nothing but whether two
	// are the same can be told. It is kept in memory alone (R18).
	From Network
}

// Network is a keyed digest of a network's prefix; zero is one that is not known.
type Network [16]byte

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

// Held is what Evict knows of a request that waits.
type Held struct {
	From   Network
	Looked bool // a person has found it by its code
	Until  time.Time
}

// Evict chooses which of the requests that wait makes room for one of a network;
// ok is false where none does.
func Evict[K comparable](held map[K]Held, from Network) (out K, ok bool) {
	counts := map[Network]int{}
	free := map[Network]bool{}
	for _, h := range held {
		counts[h.From]++
		free[h.From] = free[h.From] || !h.Looked
	}
	most, victim := counts[from], Network{}
	for n, count := range counts {
		if count > most && free[n] {
			most, victim, ok = count, n, true
		}
	}
	if !ok {
		return out, false
	}
	var oldest time.Time
	for k, h := range held {
		if h.From == victim && !h.Looked && (oldest.IsZero() || h.Until.Before(oldest)) {
			out, oldest = k, h.Until
		}
	}
	return out, true
}
