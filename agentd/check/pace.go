package check

import (
	"math/rand/v2"
	"time"

	"fleet.example/fleet/agentd/clock"
	"fleet.example/fleet/core/wire"
)

const (
	// baseFloor is the least time between two consecutive checks (R9).
	baseFloor       = 10 * time.Second
	defaultInterval = 30 * time.Second
	maxInterval     = 24 * time.Hour
	// revokedGap is how far apart two revocations must be to be believed.
	revokedGap = time.Minute
	labGap     = 6 // the same, in test floors
)

// pace decides when the next check is due. It holds what the last answer said
// and how many checks in a row did not succeed.
type pace struct {
	interval  time.Duration
	floor     time.Duration
	testFloor time.Duration
	failures  int
	rand      func() float64 // [0, 1)
}

func newPace() pace {
	return pace{interval: defaultInterval, floor: baseFloor, rand: rand.Float64}
}

// answered takes what the plane says and returns the time until the next
// check. After an outage, the plane's or the network's, the machines spread
// over a whole interval: none of them resets to a common beat (R19).
func (p *pace) answered(a *wire.CheckAnswer) time.Duration {
	p.testFloor = seconds(a.TestFloorS)
	p.floor = max(baseFloor, seconds(a.MinGapS))
	if p.testFloor > 0 { // a lab's, and the only thing that goes below the floor
		p.floor = max(p.testFloor, seconds(a.MinGapS))
	}
	p.interval = defaultInterval
	if a.IntervalS > 0 {
		p.interval = seconds(a.IntervalS)
	}
	p.interval = min(max(p.interval, p.floor), maxInterval)
	recovered := p.failures > 0
	p.failures = 0
	if recovered {
		return p.spread(p.floor, p.floor+p.interval)
	}
	return max(p.floor, p.spread(p.interval*95/100, p.interval*105/100))
}

// failed returns the time until the next try. The tries begin near the floor
// and back off to the interval, never beyond it: a plane that comes back must
// hear of every machine before it calls one absent.
func (p *pace) failed() time.Duration {
	p.failures++
	most := p.interval
	if p.failures < 16 {
		most = min(most, p.floor<<p.failures)
	}
	return max(p.floor, p.spread(most/2, most))
}

// asked is failed for a plane that names the time itself. All that were shed
// together would come back together, so they spread over an interval.
func (p *pace) asked(after time.Duration) time.Duration {
	p.failures++
	return max(p.floor, after+p.spread(0, p.interval))
}

// refused is the time until the next try with the same or another credential:
// one an interval.
func (p *pace) refused() time.Duration {
	p.failures++
	return max(p.floor, p.spread(p.interval*9/10, p.interval*11/10))
}

// doubt is how long after a first revocation the second one is asked for.
func (p *pace) doubt() time.Duration {
	if p.testFloor > 0 {
		return labGap * p.testFloor
	}
	return revokedGap
}

// settle is how long a connection is held back at most for a clock that is not
// right yet.
func (p *pace) settle() time.Duration {
	if p.testFloor > 0 {
		return min(clock.Settle, labGap*p.testFloor)
	}
	return clock.Settle
}

func (p *pace) spread(from, to time.Duration) time.Duration {
	return from + time.Duration(p.rand()*float64(to-from))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
