package check

import (
	"errors"
	"slices"
	"time"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/wire"
)

// expired is in place of a check that has nothing to present. The worker kicks
// the loop when it has a certificate.
func (l *Loop) expired() {
	poke(l.work)
	now := l.Now()
	wait := l.pace.failed()
	l.due = now.Add(wait)
	l.report(errExpired, now, wait)
}

// judge keeps whether it is the clock that keeps the plane away. Whatever else
// comes back, the plane's own refusal too, came over a certificate that is valid
// now; a connection that failed tells nothing new.
func (l *Loop) judge(err error) {
	var off *plane.ClockError
	var answered *plane.Refusal
	trouble := ""
	switch {
	case errors.As(err, &off):
		trouble = off.Error()
	case err != nil && !errors.As(err, &answered):
		return
	}
	l.mu.Lock()
	changed := (l.trouble == "") != (trouble == "")
	l.trouble = trouble
	l.mu.Unlock()
	if changed {
		poke(l.work)
	}
}

// shutOut says that a check was refused, perhaps at the gate. It reports whether
// the machine was deleted: behind a gate that does not let it in, it is told so
// in front of it.
func (l *Loop) shutOut() (gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = true
	poke(l.work)
	return l.gone
}

// refusal decides what a check that did not succeed leads to.
func (l *Loop) refusal(cred credential.Credential, err error, now time.Time) time.Duration {
	var r *plane.Refusal
	if !errors.As(err, &r) {
		l.lost()
		return l.pace.failed()
	}
	code, machine := r.Code, r.Machine
	if code == wire.CodeUnauthorized && l.shutOut() {
		code, machine = wire.CodeRevoked, cred.Machine
	}
	switch {
	case code == wire.CodeRevoked && machine == cred.Machine:
		if l.doubted.IsZero() {
			l.doubted = now
			l.Log.Warn("the plane says that this machine was deleted; asking once more", "machine", cred.Machine)
		} else if now.Sub(l.doubted) >= l.pace.doubt() {
			l.Log.Error("this machine was deleted; checks end until a person installs it again", "machine", cred.Machine)
			l.mu.Lock()
			l.stopped = true
			l.mu.Unlock()
			poke(l.work)
			return maxInterval
		}
		return max(l.pace.floor, l.pace.doubt()+l.pace.doubt()/20)
	case r.Code == wire.CodeBehind:
		l.doubted = time.Time{}
		l.Store.Refused(cred, r.Code)
		soon := l.turned(way{cred: cred})
		poke(l.work)
		if soon || !l.Store.Newest(cred) {
			return l.pace.floor // the newer one is at hand
		}
		return l.pace.refused()
	case r.Code == wire.CodeUnauthorized:
		l.doubted = time.Time{}
		l.Store.Refused(cred, r.Code)
		soon := l.turned(way{cred: cred})
		poke(l.work)
		if soon {
			return l.pace.floor
		}
		return l.pace.refused()
	case r.RetryAfter > 0:
		return l.pace.asked(r.RetryAfter)
	}
	return l.pace.failed()
}

// note keeps what an answer says besides the pace.
func (l *Loop) note(a *wire.CheckAnswer, now time.Time, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastOK, l.okElapsed = now, l.Clock.Elapsed()
	if !a.PlaneTime.IsZero() {
		// Half of the round trip passed since the plane read its clock. It is
		// measured on the clock that is not set, and taken from the one that is.
		off := a.PlaneTime.Sub(now.Add(-took / 2))
		l.offset = &off
		if moved := off - l.toldOffset; l.Skewed != nil && (moved > offsetMatters || -moved > offsetMatters) {
			l.toldOffset = off
			l.Skewed()
		}
	}
	l.requests = a.Requests
}

// report records a check's outcome and logs what changed, not every repetition.
func (l *Loop) report(err error, now time.Time, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	words := ""
	if err != nil {
		words = err.Error()
	}
	first := l.last.At.IsZero()
	changed := words != l.last.Error
	l.last = wire.LastCheck{At: wire.Time{Time: now}, OK: err == nil, Error: words, NextInS: wait.Seconds(), IntervalS: l.pace.interval.Seconds()}
	switch {
	case err != nil && changed:
		l.Log.Warn("check did not succeed", "error", words)
	case err == nil && (changed || first):
		l.Log.Info("check succeeded", "interval", l.pace.interval)
		if l.pace.testFloor > 0 {
			l.Log.Warn("the plane is a lab's: it lowers the floor between checks", "floor", l.pace.floor)
		}
	}
}

// revoked reports whether one of several answers said that this machine was
// deleted.
func revoked(err error, machine string) bool {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(many.Unwrap(), func(err error) bool { return revoked(err, machine) })
	}
	var r *plane.Refusal
	return errors.As(err, &r) && r.Code == wire.CodeRevoked && machine != "" && r.Machine == machine
}
