// Package machine is what the plane knows of one machine and how that changes:
// by a check, an admission, a person's edit, a deletion. Everything here is
// pure. A store loads a Row, calls one method, and writes the Row and the
// audit events that the method returned in one transaction; every store
// behaves the same because the decisions are taken here.
//
// Three facts stay apart: presence is computed from the age of the last check
// when somebody asks, lifecycle from what the machine last said and whether it
// kept checking, readiness from the blockers that it last reported. Nothing
// about the future is stored (R12).
//
// The package must not know HTTP, stores, secrets or addresses. What a machine
// says of itself is display, never proof (R13).
package machine

import (
	"errors"
	"maps"
	"slices"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/identity"
)

// NamedBy says whose word a display name is.
type NamedBy string

const (
	NamedByNobody  NamedBy = ""
	NamedByMachine NamedBy = "machine" // taken from its first check that carried one
	NamedByPerson  NamedBy = "person"  // wins for ever
)

// Row is all that the plane stores of a machine.
type Row struct {
	ID           string
	Owner        string // a person's name
	Name         string
	NamedBy      NamedBy
	Labels       map[string]string
	AdmittedAt   time.Time
	Installation secret.Digest
	Credential   identity.Row
	IssuedAt     time.Time // when the current generation was admitted or first used
	StagedAt     time.Time // since when a next generation waits for its first use; zero when none does
	CertifiedTo  time.Time // until when the latest certificate is valid; zero off the rung of mutual TLS
	Told         Told
	Asked        Asked
	LastCheck    time.Time // zero: never. Coalesced: a crash may lose the latest
	BehindAt     time.Time // when a superseded secret was presented last. Memory's alone: a restart forgets it
	BarredAt     time.Time // when the right secret was presented last where a certificate was wanted. Memory's alone
	// CloneSuspected says that two machines present this identity. It stands
	// until one of them alone can: a new generation, or another admission.
	CloneSuspected bool
	// Gate is the version of the gate token that was presented last, 0 for none.
	Gate     int64
	GateUses Uses
	// Held are the versions of what a person signs that the machine said it has.
	Held               Held
	URLUses, TrustUses Uses
	Deleted            *Deleted
}

// Held are versions of kinds of material that a person signs, 0 for none: where
// the plane is, and the roots that vouch for it. A machine tells of them itself,
// which is display, and stands in the way of nobody's rotation but its own.
type Held struct{ URL, Trust int64 }

// maxHeld bounds a version that a machine says it has.
const maxHeld = 1<<31 - 1

// heldOf is what a check's body tells.
func heldOf(have map[string]int64) Held {
	bound := func(v int64) int64 {
		if v < 0 || v > maxHeld {
			return 0
		}
		return v
	}
	return Held{bound(have[wire.MaterialURL]), bound(have[wire.MaterialTrust])}
}

// Holds is the version of a kind of material that was presented last.
func (r *Row) Holds(kind string) int64 {
	switch kind {
	case wire.MaterialURL:
		return r.Held.URL
	case wire.MaterialTrust:
		return r.Held.Trust
	}
	return r.Gate
}

// UsesOf are the uses of what retires of a kind.
func (r *Row) UsesOf(kind string) Uses {
	switch kind {
	case wire.MaterialURL:
		return r.URLUses
	case wire.MaterialTrust:
		return r.TrustUses
	}
	return r.GateUses
}

// Uses are uses of a retiring version, since it became that. Coalesced, like
// LastCheck.
type Uses struct {
	Count int64
	Last  time.Time // zero: never
}

// Told is what the machine said of itself last.
type Told struct {
	Instance       string // one run of agentd
	Seq            uint64 // of the last check that was applied, within Instance
	Digest         [16]byte
	Said           string // "" (never), wire.SaidRunning or wire.SaidStopping
	Reason         string
	Since          time.Time // of Said
	Boot           string
	Version        string
	OS             string
	Arch           string
	Scope          string
	ServiceManager string
	Blockers       []Blocker
	ProbedAt       time.Time // zero: no check has carried readiness yet
}

// Blocker is one stored finding.
type Blocker struct {
	Code, Severity, Detail, Remedy string
	Since                          time.Time
}

// Asked holds the requests that the machine has not answered yet (R16).
type Asked struct {
	Logs, Rotate time.Time
}

// Deleted says how a row ended.
type Deleted struct {
	At time.Time
	By string
}

// By is who asks for a change, from the authenticated identity and never from
// what a request says.
type By struct {
	Actor  string // as the audit names it: person:dana, token:ci
	Person string // the person, or the person that a token belongs to
	Owner  bool   // the person's role
	// Session is the digest of the session or token that asks. A store looks it
	// up again in the transaction that acts, so that one which has just ended
	// changes nothing more. Zero for the plane's own host.
	Session secret.Digest
}

// Refusals.
var (
	ErrNotYours = errors.New("the machine belongs to somebody else")
	ErrNoKind   = errors.New("no such kind of request")
	ErrNoRung   = errors.New("a credential's kind is bearer or mtls")
)

func (r *Row) manages(by By) error {
	if by.Owner || by.Person != "" && by.Person == r.Owner {
		return nil
	}
	return ErrNotYours
}

// Admission is a person's wish to admit an installation.
type Admission struct {
	By             By
	Installation   secret.Digest
	Credential     secret.Digest
	Name           string
	Labels         map[string]string
	Scope          string
	ServiceManager string
}

// New returns the row of a new machine.
func New(id string, a Admission, now time.Time) (*Row, []audit.Event) {
	r := &Row{
		ID:           id,
		Owner:        a.By.Person,
		AdmittedAt:   now,
		Installation: a.Installation,
		Credential:   identity.Make(a.Credential),
		IssuedAt:     now,
	}
	r.adorn(a)
	return r, r.events(now, a.By.Actor, "machine.admit", map[string]string{"owner": r.Owner, "name": r.Name})
}

// Admit admits the installation of an existing row again (R6, R23).
func (r *Row) Admit(a Admission, now time.Time) (identity.Admission, []audit.Event, error) {
	before := r.Credential
	outcome := r.Credential.Admit(a.Credential)
	if outcome != identity.Replaced {
		return outcome, nil, nil
	}
	if err := r.manages(a.By); err != nil {
		r.Credential = before
		return 0, nil, err
	}
	r.IssuedAt, r.StagedAt, r.CloneSuspected = now, time.Time{}, false
	r.adorn(a)
	return outcome, r.events(now, a.By.Actor, "machine.readmit", map[string]string{"owner": r.Owner, "name": r.Name}), nil
}

func (r *Row) adorn(a Admission) {
	if a.Name != "" {
		r.Name, r.NamedBy = a.Name, NamedByPerson
	}
	if len(a.Labels) > 0 {
		r.Labels = maps.Clone(a.Labels)
	}
	if a.Scope != "" {
		r.Told.Scope = a.Scope
	}
	if a.ServiceManager != "" {
		r.Told.ServiceManager = a.ServiceManager
	}
}

// Rename gives the machine a person's name for it.
func (r *Row) Rename(by By, name string, now time.Time) ([]audit.Event, error) {
	if err := r.manages(by); err != nil {
		return nil, err
	}
	if r.Name == name && r.NamedBy == NamedByPerson {
		return nil, nil
	}
	old := r.Name
	r.Name, r.NamedBy = name, NamedByPerson
	return r.events(now, by.Actor, "machine.rename", map[string]string{"from": old, "to": name}), nil
}

// MaxLabels bounds the labels of one machine.
const MaxLabels = 64

// ErrTooManyLabels is returned when a change would leave more than MaxLabels.
var ErrTooManyLabels = errors.New("a machine has at most 64 labels")

// Label sets and removes labels.
func (r *Row) Label(by By, set map[string]string, remove []string, now time.Time) ([]audit.Event, error) {
	if err := r.manages(by); err != nil {
		return nil, err
	}
	labels := maps.Clone(r.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	detail := map[string]string{}
	for _, k := range remove {
		if _, ok := labels[k]; ok {
			delete(labels, k)
			detail["remove."+k] = ""
		}
	}
	for k, v := range set {
		if old, ok := labels[k]; !ok || old != v {
			labels[k] = v
			detail["set."+k] = v
		}
	}
	if len(labels) > MaxLabels {
		return nil, ErrTooManyLabels
	}
	if len(detail) == 0 {
		return nil, nil
	}
	r.Labels = labels
	return r.events(now, by.Actor, "machine.label", detail), nil
}

// Wish is a person's or a token's request to a machine.
type Wish struct {
	Kind string
	// OlderThan, with rotate, leaves a credential alone that was issued less
	// than so long ago.
	OlderThan time.Duration
	// Rung, with rotate, is where the machine shall be afterwards; NoRung leaves
	// it where it is.
	Rung identity.Rung
}

// Ask leaves a request for the machine (R16). A request of the same kind that
// still waits is joined, not replaced: asking twice is asking once.
func (r *Row) Ask(by By, w Wish, now time.Time) ([]audit.Event, error) {
	if err := r.manages(by); err != nil {
		return nil, err
	}
	var at *time.Time
	switch w.Kind {
	case "logs":
		at = &r.Asked.Logs
	case "rotate":
		at = &r.Asked.Rotate
	default:
		return nil, ErrNoKind
	}
	if !at.IsZero() && (w.Kind != "rotate" || !r.elsewhere(w.Rung)) {
		return nil, nil
	}
	if w.Kind == "rotate" && w.OlderThan > 0 {
		// A credential of the future says that a clock was set, and nothing of age.
		if age := now.Sub(r.IssuedAt); age >= 0 && age < w.OlderThan {
			return nil, nil
		}
	}
	// A value identifies a request on the wire, so it has the wire's precision.
	v := now.UTC().Truncate(time.Millisecond)
	// Nor may it be one that was answered before, though the clock was set back:
	// a machine answers a rotation by a generation that is used later.
	if earliest := r.IssuedAt.UTC().Truncate(time.Millisecond).Add(time.Millisecond); w.Kind == "rotate" && v.Before(earliest) {
		v = earliest
	}
	// One that asks for another rung replaces what was asked before.
	if before := at.Add(time.Millisecond); !at.IsZero() && v.Before(before) {
		v = before
	}
	*at = v
	detail := map[string]string{"kind": w.Kind}
	if w.Kind == "rotate" && w.Rung != identity.NoRung {
		r.Credential.Wish(w.Rung)
		detail["rung"] = RungWord(w.Rung)
	}
	return r.events(now, by.Actor, "machine.request", detail), nil
}

// elsewhere reports whether the rung is another than where the row is going, or
// stays.
func (r *Row) elsewhere(rung identity.Rung) bool {
	k := &r.Credential.Keys
	to := k.Toward
	if to == identity.NoRung {
		to = identity.Bearer
		if k.Mtls {
			to = identity.MutualTLS
		}
	}
	return rung != identity.NoRung && rung != to
}

// RungWord is a rung as documents spell it; of NoRung it is empty.
func RungWord(r identity.Rung) string {
	switch r {
	case identity.Bearer:
		return wire.KindBearer
	case identity.MutualTLS:
		return wire.KindMTLS
	}
	return ""
}

// ParseRung reads what RungWord spells.
func ParseRung(s string) (identity.Rung, error) {
	switch s {
	case "":
		return identity.NoRung, nil
	case wire.KindBearer:
		return identity.Bearer, nil
	case wire.KindMTLS:
		return identity.MutualTLS, nil
	}
	return identity.NoRung, ErrNoRung
}

// Transfer gives the machine to another person. Its credential, name and labels
// stay.
func (r *Row) Transfer(by By, to string, now time.Time) ([]audit.Event, error) {
	if err := r.manages(by); err != nil {
		return nil, err
	}
	if r.Owner == to {
		return nil, nil
	}
	from := r.Owner
	r.Owner = to
	return r.events(now, by.Actor, "machine.transfer", map[string]string{"owner": to, "from": from}), nil
}

// Delete turns the row into its tombstone: what is needed to answer revoked
// and to say what became of the machine, and nothing else.
func (r *Row) Delete(by By, now time.Time) ([]audit.Event, error) {
	if err := r.manages(by); err != nil {
		return nil, err
	}
	r.Credential.Delete()
	r.Deleted = &Deleted{At: now, By: by.Actor}
	r.Installation = secret.Digest{}
	r.Labels, r.Told, r.Asked, r.StagedAt, r.CloneSuspected = nil, Told{}, Asked{}, time.Time{}, false
	r.Gate, r.GateUses = 0, Uses{}
	r.Held, r.URLUses, r.TrustUses = Held{}, Uses{}, Uses{}
	r.CertifiedTo = time.Time{}
	return r.events(now, by.Actor, "machine.delete", map[string]string{"name": r.Name, "owner": r.Owner}), nil
}

// Rotate stages the next generation on behalf of the machine itself, which
// presented a secret. The presented secret is used first, so that presenting
// the next generation here promotes it as everywhere else.
func (r *Row) Rotate(by Proof, generation int64, digest secret.Digest, now time.Time) (did Rotated, ev []audit.Event, err error) {
	s, ev, used := r.use(by, now)
	did.Standing = s
	if s != identity.Current && s != identity.Next {
		return did, nil, nil
	}
	did.Staged, err = r.Credential.Rotate(generation, digest)
	if did.Staged {
		// A digest that replaces one that was never used begins nothing anew.
		if r.StagedAt.IsZero() {
			r.StagedAt = now
		}
		ev = append(ev, r.event(now, r.actor(), "credential.rotate", map[string]string{"generation": itoa(generation)}))
	}
	did.Changed = used || did.Staged
	return did, ev, err
}

// Rotated is what a request for a next generation, or for a certificate, did.
type Rotated struct {
	Standing identity.Standing // of what was presented, before; Next means that it was promoted
	Staged   bool              // the digest, or the key, is the next one now, and was not before
	Changed  bool              // the row has to be written
}

// Proof is what a machine presented: its secret, or a certificate.
type Proof struct {
	Digest secret.Digest // of the secret, or of the certificate's key
	Key    bool          // it is a key's
}

// Bearer is the proof that a secret with this digest was presented.
func Bearer(d secret.Digest) Proof { return Proof{Digest: d} }

// Judge says what the proof means to the row's credential.
func (p Proof) Judge(r *identity.Row) identity.Standing {
	if p.Key {
		return r.JudgeKey(p.Digest)
	}
	return r.Judge(p.Digest)
}

// Use judges what was presented on behalf of a request that does nothing else.
func (r *Row) Use(p Proof, now time.Time) (identity.Standing, []audit.Event, bool) {
	return r.use(p, now)
}

func (r *Row) use(p Proof, now time.Time) (identity.Standing, []audit.Event, bool) {
	was := r.Credential.Keys.Mtls
	use := r.Credential.Use
	if p.Key {
		use = r.Credential.UseKey
	}
	s, changed := use(p.Digest)
	if s != identity.Next {
		return s, nil, changed
	}
	r.IssuedAt, r.CloneSuspected = now, false
	var ev []audit.Event
	if p.Key {
		ev = r.events(now, r.actor(), "credential.key", nil)
	} else {
		r.StagedAt = time.Time{}
		ev = r.promoted(now)
	}
	if is := r.Credential.Keys.Mtls; is != was {
		rung := identity.Bearer
		if is {
			rung = identity.MutualTLS
		} else {
			r.CertifiedTo = time.Time{}
		}
		ev = append(ev, r.event(now, r.actor(), "credential.rung", map[string]string{"to": RungWord(rung)}))
	}
	return s, ev, true
}

func (r *Row) promoted(now time.Time) []audit.Event {
	return r.events(now, r.actor(), "credential.promote", map[string]string{"generation": itoa(r.Credential.Generation)})
}

// Certification is a machine's request for a certificate.
type Certification struct {
	Bearer secret.Digest // of the secret that it presented
	Held   secret.Digest // of the key whose certificate opened the connection; zero for none
	Key    secret.Digest // of the key that is to be certified
	Until  time.Time     // when the certificate will expire
	At     time.Time
}

// Certify decides about a certificate. Renewals of a key stand in no audit
// entry: they say nothing new, many times a day.
func (r *Row) Certify(c Certification) (did Rotated, ev []audit.Event, err error) {
	keys := r.Credential.Keys
	var changed bool
	did.Standing, changed, err = r.Credential.Certify(c.Bearer, c.Held, c.Key)
	if err != nil || did.Standing != identity.Current && did.Standing != identity.Next {
		return did, nil, err
	}
	if did.Standing == identity.Next {
		r.IssuedAt, r.StagedAt, r.CloneSuspected = c.At, time.Time{}, false
		ev = r.promoted(c.At)
	}
	if r.Credential.Keys != keys {
		did.Staged = true
		ev = append(ev, r.event(c.At, r.actor(), "credential.certify", nil))
	}
	did.Changed = changed || !r.CertifiedTo.Equal(c.Until)
	r.CertifiedTo = c.Until
	return did, ev, nil
}

func (r *Row) actor() string { return "machine:" + r.ID }

func (r *Row) event(now time.Time, actor, action string, detail map[string]string) audit.Event {
	for k, v := range detail {
		if v == "" && (k == "name" || k == "from") {
			delete(detail, k)
		}
	}
	return audit.Event{At: now, Actor: actor, Action: action, Subject: "machine:" + r.ID, Detail: detail}
}

func (r *Row) events(now time.Time, actor, action string, detail map[string]string) []audit.Event {
	return []audit.Event{r.event(now, actor, action, detail)}
}

// Gone is the wire form of a tombstone.
func (r *Row) Gone() *wire.Deleted {
	if r.Deleted == nil {
		return nil
	}
	return &wire.Deleted{
		Machine:       r.ID,
		Name:          r.Name,
		At:            wire.Time{Time: r.Deleted.At},
		By:            r.Deleted.By,
		LastPresented: wire.TimeOf(r.LastCheck),
	}
}

// Clone returns a deep copy.
func (r *Row) Clone() *Row {
	c := *r
	c.Labels = maps.Clone(r.Labels)
	c.Told.Blockers = slices.Clone(r.Told.Blockers)
	if r.Deleted != nil {
		d := *r.Deleted
		c.Deleted = &d
	}
	return &c
}
