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
// have been working. Alive is zero for a new store.
type Epoch struct {
	Opened, Alive time.Time
}

// heardUntil returns the instant from which silence is counted. A machine that
// was present when the plane went away has been silent only since the plane
// came back: a plane's outage makes nobody absent (R19).
func (p Policy) heardUntil(last time.Time, e Epoch) time.Time {
	// With no such instant on record the run before was shorter than the pause
	// between two records, and whoever was heard was heard in it.
	if last.Before(e.Opened) && (e.Alive.IsZero() || e.Alive.Sub(last) <= p.Silence()) {
		return e.Opened
	}
	return last
}

// Presence is present, absent or never, and since when the machine is absent.
func (p Policy) Presence(last, now time.Time, e Epoch) (word string, absentSince time.Time) {
	if last.IsZero() {
		return wire.Never, time.Time{}
	}
	end := p.heardUntil(last, e).Add(p.Silence())
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
			Kind:        "bearer",
			Generation:  r.Credential.Generation,
			NextPending: !r.Credential.Next.IsZero(),
			IssuedAt:    wire.TimeOf(r.IssuedAt),
			StagedAt:    wire.TimeOf(r.StagedAt),
			BehindAt:    wire.TimeOf(r.BehindAt),
		},
		Agent: wire.MachineAgent{
			Version: r.Told.Version, OS: r.Told.OS, Arch: r.Told.Arch,
			Scope: r.Told.Scope, ServiceManager: r.Told.ServiceManager,
		},
		Requests: wire.MachineRequests{Logs: wire.TimeOf(r.Asked.Logs), Rotate: wire.TimeOf(r.Asked.Rotate)},
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
