package machine

import (
	"time"

	"fleet.example/fleet/core/wire"
)

// Floor is the least time between two checks of one machine (R9).
const Floor = 10 * time.Second

// Policy says how often machines check and how long their silence may last.
type Policy struct {
	Interval  time.Duration
	TestFloor time.Duration // zero outside labs; lowers every floor to itself
}

// MinGap is the floor that machines are told.
func (p Policy) MinGap() time.Duration {
	if p.TestFloor > 0 {
		return p.TestFloor
	}
	return Floor
}

// Silence is how long after its last check a machine is still present: two
// lost checks and a slow one, and never less than two minutes (R9).
func (p Policy) Silence() time.Duration {
	return max(12*p.MinGap(), 2*p.Interval+2*p.MinGap())
}

// Flat is for how long nobody may have used a material that is to be accepted no
// more: longer than the slowest machine waits between two checks, one of which
// may be lost.
func (p Policy) Flat() time.Duration { return 2*p.Interval + p.MinGap() }

// Epoch is what a store knows about its own absence: Opened is when it was
// opened, Alive the last instant of the run before at which it is known to
// have been working. Alive is zero for a new store. A step of the plane's clock,
// or a sleep of its host, ends a run like a restart does.
type Epoch struct {
	Opened, Alive time.Time
}

// stepped is a difference between two clocks that is no slew.
const stepped = 10 * time.Second

// After returns the epoch in force at now, when at seen it was e. Both have a
// monotonic reading, unless a test's clock makes them.
func (e Epoch) After(seen, now time.Time) Epoch {
	return e.afterParts(seen.Round(0), now.Round(0).Sub(seen.Round(0)), now.Sub(seen))
}

// afterParts is After with the times by which the two clocks went on.
func (e Epoch) afterParts(seen time.Time, wall, ran time.Duration) Epoch {
	if by := wall - ran; by < stepped && by > -stepped {
		return e
	}
	return Epoch{Opened: seen.Add(wall), Alive: seen.Add(ran)}
}

// heardUntil returns the instant from which silence is counted. A machine that
// was present when the plane went away has been silent only since the plane
// came back: a plane's outage makes nobody absent (R19).
func (p Policy) heardUntil(last, now time.Time, e Epoch) time.Time {
	// A check from the future is of before the plane's clock was set back. Two
	// requests side by side make a difference too, a small one.
	future := last.After(now.Add(p.Silence()))
	// With no such instant on record the run before was shorter than the pause
	// between two records, and whoever was heard was heard in it.
	switch {
	case !future && !last.Before(e.Opened):
		return last
	case e.Alive.IsZero() || e.Alive.Sub(last) <= p.Silence():
		return e.Opened
	case future:
		return e.Opened.Add(-p.Silence()) // silent already when the clock was set
	}
	return last
}

// Presence is present, absent or never, and since when the machine is absent.
func (p Policy) Presence(last, now time.Time, e Epoch) (word string, absentSince time.Time) {
	if last.IsZero() {
		return wire.Never, time.Time{}
	}
	end := p.heardUntil(last, now, e).Add(p.Silence())
	if now.After(end) {
		return wire.Absent, end
	}
	return wire.Present, time.Time{}
}

// Stuck reports whether a rotation that was asked for or staged at since got no
// further although the machine kept checking until heard. One whose machine is
// silent is not stuck: it waits for the machine.
func (p Policy) Stuck(since, heard time.Time) bool {
	return !since.IsZero() && heard.Sub(since) > p.Silence()
}

// View is the row as people see it at an instant.
func (r *Row) View(p Policy, e Epoch, now time.Time) wire.Machine {
	m := wire.Machine{
		Schema:    wire.SchemaMachine,
		ID:        r.ID,
		Name:      r.Name,
		Owner:     r.Owner,
		Labels:    r.Labels,
		LastCheck: wire.TimeOf(r.LastCheck),
		IntervalS: p.Interval.Seconds(),
		Credential: wire.MachineCredential{
			Kind:        wire.KindBearer,
			Generation:  r.Credential.Generation,
			NextPending: !r.Credential.Next.IsZero(),
			IssuedAt:    wire.TimeOf(r.IssuedAt),
			StagedAt:    wire.TimeOf(r.StagedAt),
			BehindAt:    wire.TimeOf(r.BehindAt),
			BarredAt:    wire.TimeOf(r.BarredAt),
		},
		Agent: wire.MachineAgent{
			Version: r.Told.Version, OS: r.Told.OS, Arch: r.Told.Arch,
			Scope: r.Told.Scope, ServiceManager: r.Told.ServiceManager,
		},
		Requests: wire.MachineRequests{Logs: wire.TimeOf(r.Asked.Logs), Rotate: wire.TimeOf(r.Asked.Rotate)},
	}
	if r.Credential.Keys.Mtls {
		m.Credential.Kind, m.Credential.ExpiresAt = wire.KindMTLS, wire.TimeOf(r.CertifiedTo)
	}
	if to := RungWord(r.Credential.Keys.Toward); to != "" && m.Requests.Rotate != nil {
		m.Requests.RotateKind = &to
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	if m.LastCheck != nil {
		age := max(0, now.Sub(r.LastCheck).Round(time.Millisecond).Seconds())
		m.LastCheckAgeS = &age
	}
	var absentSince time.Time
	m.Presence, absentSince = p.Presence(r.LastCheck, now, e)
	m.Lifecycle = r.lifecycle(absentSince)
	m.Readiness = r.readiness()
	m.CloneSuspected = r.CloneSuspected
	m.Accepting = !r.CloneSuspected && m.Presence == wire.Present && m.Lifecycle.State == wire.LifecycleRunning && m.Readiness.State == wire.Ready
	return m
}

func (r *Row) lifecycle(absentSince time.Time) wire.MachineLifecycle {
	l := wire.MachineLifecycle{State: wire.LifecycleNever}
	if r.Told.Said == "" {
		return l
	}
	said := r.Told.Said
	l.Said, l.Since = &said, wire.TimeOf(r.Told.Since)
	switch {
	case said == wire.SaidStopping:
		l.State = wire.LifecycleStopped
		if reason := r.Told.Reason; reason != "" {
			l.Reason = &reason
		}
	case !absentSince.IsZero():
		// Silence after running is unknown, whatever the cause (R12).
		l.State, l.Since = wire.LifecycleUnknown, wire.TimeOf(absentSince)
	default:
		l.State = wire.LifecycleRunning
	}
	return l
}

func (r *Row) readiness() wire.MachineReadiness {
	v := wire.MachineReadiness{State: wire.ReadinessUnknown, Blockers: make([]wire.Blocker, 0, len(r.Told.Blockers)), At: wire.TimeOf(r.Told.ProbedAt)}
	for _, b := range r.Told.Blockers {
		v.Blockers = append(v.Blockers, wire.Blocker{Code: b.Code, Severity: b.Severity, Detail: b.Detail, Remedy: b.Remedy, Since: wire.TimeOf(b.Since)})
		if b.Severity == wire.SeverityBlock {
			v.State = wire.Blocked
		}
	}
	if v.State != wire.Blocked && !r.Told.ProbedAt.IsZero() {
		v.State = wire.Ready
	}
	return v
}
