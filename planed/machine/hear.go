package machine

import (
	"strconv"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/addrfree"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/identity"
)

// Bounds on what is kept of a check's body. Longer text is cut: a body is
// display, and display that is too long is no reason to refuse a machine.
const (
	maxBlockers = 64
	maxWord     = 64
	maxText     = 400
)

// Check is one check as the plane received it.
type Check struct {
	Presented Proof
	Mark      wire.CheckMark
	Digest    [16]byte // of the body's bytes
	Given     [16]byte // the mark that the answer carries
	At        time.Time
	// Two says that the marks are those of two machines. The store finds out.
	Two bool
	// Gate is the version of the gate token that came along, 0 for none, and
	// Retiring says that it is to be accepted no more.
	Gate     int64
	Retiring bool
	// Wanted are the versions of what a person signs that machines are to hold,
	// where others retire; 0 where none does. Below Spared none does.
	Wanted, Spared Held
}

// Heard is what a check did.
type Heard struct {
	Standing identity.Standing
	Changed  bool // the row has to be written
	Stale    bool // an earlier check of the same instance arrived late and changed nothing (R12)
	Events   []audit.Event
}

// Plain reports whether hearing c would change nothing but the time of the
// last check, so that neither the body nor the store is needed.
func (t *Told) Plain(c Check) bool {
	return t.Instance == c.Mark.Instance && t.Digest == c.Digest && t.Said != ""
}

// Hear applies a check. The sequence number that a plain check raised since
// the row was written may be ahead of the row's, so the caller passes it in
// Told.Seq.
func (r *Row) Hear(c Check, body *wire.CheckBody) Heard {
	standing, events, changed := r.use(c.Presented, c.At)
	h := Heard{Standing: standing, Events: events, Changed: changed}
	if standing != identity.Current && standing != identity.Next {
		return h
	}
	if c.Two && !r.CloneSuspected {
		r.CloneSuspected, h.Changed = true, true
		h.Events = append(h.Events, r.event(c.At, r.actor(), "machine.clone_suspected", nil))
	}
	if c.Mark.Instance == r.Told.Instance && c.Mark.Seq < r.Told.Seq {
		h.Stale = true
		return h
	}
	same := r.Told.Plain(c)
	r.Told.Instance, r.Told.Seq = c.Mark.Instance, c.Mark.Seq
	r.LastCheck = c.At
	if r.Gate != c.Gate {
		r.Gate, h.Changed = c.Gate, true
	}
	if same {
		return h
	}
	h.Changed = true
	r.Told.Digest = c.Digest
	r.Held = heldOf(body.Have)
	r.tell(c, body)
	r.answer(body.Echo)
	if ev := r.adoptName(body.Name, c.At); ev != nil {
		h.Events = append(h.Events, *ev)
	}
	return h
}

func (r *Row) tell(c Check, b *wire.CheckBody) {
	t := &r.Told
	said, reason := wire.SaidRunning, ""
	if b.Lifecycle.State == wire.SaidStopping {
		said = wire.SaidStopping
		if b.Lifecycle.Reason != nil {
			reason = stopReason(*b.Lifecycle.Reason)
		}
	}
	if said != t.Said || reason != t.Reason {
		t.Since = c.At
	}
	t.Said, t.Reason = said, reason
	t.Boot = word(b.Boot)
	t.Version, t.OS, t.Arch = word(b.Version), word(b.OS), word(b.Arch)
	if b.Scope != "" {
		t.Scope = word(b.Scope)
	}
	if b.ServiceManager != "" {
		t.ServiceManager = word(b.ServiceManager)
	}
	// Not probed yet leaves what is known as it was (R15).
	if b.Readiness != nil {
		t.Blockers = blockers(t.Blockers, b.Readiness.Blockers, c.At)
		t.ProbedAt = c.At
	}
}

// stopReason keeps the vocabulary closed (R11): a reason that is not known
// is a signal's, the one that claims least.
func stopReason(s string) string {
	switch s {
	case wire.ReasonPerson, wire.ReasonUpdate, wire.ReasonRestart, wire.ReasonHandoff, wire.ReasonSignal, wire.ReasonRevoked:
		return s
	}
	return wire.ReasonSignal
}

// blockers replaces the stored set. A code that stays keeps its since.
func blockers(old []Blocker, found []wire.Finding, now time.Time) []Blocker {
	since := make(map[string]time.Time, len(old))
	for _, b := range old {
		since[b.Code] = b.Since
	}
	if len(found) > maxBlockers {
		found = found[:maxBlockers]
	}
	set := make([]Blocker, 0, len(found))
	for _, f := range found {
		b := Blocker{Code: code(f.Code), Severity: f.Severity, Detail: text(f.Detail), Remedy: text(f.Remedy), Since: now}
		if b.Severity != wire.SeverityWarn {
			b.Severity = wire.SeverityBlock
		}
		if at, ok := since[b.Code]; ok {
			b.Since = at
		}
		set = append(set, b)
	}
	return set
}

// answer clears the requests that the machine echoes, by the same value only (R16).
func (r *Row) answer(echo wire.Requests) {
	clear := func(at *time.Time, echo *time.Time) {
		if echo != nil && !at.IsZero() && at.Equal(*echo) {
			*at = time.Time{}
		}
	}
	clear(&r.Asked.Logs, echo.Logs)
	// An agent that does not know of rungs rotates, and stays where it is.
	if r.Credential.There() {
		clear(&r.Asked.Rotate, echo.Rotate)
		if r.Asked.Rotate.IsZero() {
			r.Credential.Keys.Toward = identity.NoRung
		}
	}
}

func (r *Row) adoptName(suggested string, now time.Time) *audit.Event {
	if r.NamedBy != NamedByNobody {
		return nil
	}
	name := SuggestedName(suggested)
	if name == "" {
		return nil
	}
	r.Name, r.NamedBy = name, NamedByMachine
	ev := r.event(now, r.actor(), "machine.name", map[string]string{"to": name})
	return &ev
}

// SuggestedName turns a host name into a display name, or nothing when it is
// shaped like an address or says nothing (R14).
func SuggestedName(host string) string {
	if len(host) > 255 || addrfree.Shaped(host) {
		return ""
	}
	b := make([]byte, 0, len(host))
	for i := 0; i < len(host) && host[i] != '.'; i++ {
		c := host[i]
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			c = '-'
		}
		b = append(b, c)
	}
	name := trimEdge(string(b))
	if len(name) > 63 {
		name = trimEdge(name[:63])
	}
	if name == "localhost" || addrfree.Shaped(name) || wire.CheckName(name) != nil {
		return ""
	}
	return name
}

func trimEdge(s string) string {
	for s != "" && (s[0] == '-' || s[0] == '_') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == '-' || s[len(s)-1] == '_') {
		s = s[:len(s)-1]
	}
	return s
}

// word cleans a short display value.
func word(s string) string { return clean(s, maxWord) }

// text cleans a sentence of display.
func text(s string) string { return clean(s, maxText) }

// clean drops control characters, so that nothing a machine says moves a
// terminal's cursor, cuts, and leaves no address (R18).
func clean(s string, limit int) string {
	// Scrub before the cut: half an address is not recognised as one.
	s = addrfree.Scrub(s)
	b := make([]rune, 0, min(len(s), limit))
	for _, c := range s {
		if len(b) == limit {
			break
		}
		if c == '\n' || c == '\t' {
			c = ' '
		}
		if !strconv.IsPrint(c) {
			continue
		}
		b = append(b, c)
	}
	return string(b)
}

// code cleans a blocker's code: lower-case letters, digits, _ and, for a
// vendor's, one dot.
func code(s string) string {
	if len(s) > maxWord {
		s = s[:maxWord]
	}
	b := []byte(s)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z':
			b[i] = c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			b[i] = '_'
		}
	}
	if s = addrfree.Scrub(string(b)); s == "" || s != string(b) {
		return "unnamed"
	}
	return s
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Word is a short display value as a machine's row would keep it: bounded, with
// nothing that moves a terminal's cursor, and without addresses.
func Word(s string) string { return word(s) }
