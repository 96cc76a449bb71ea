package gate

import (
	"sync/atomic"
	"time"
)

// Refusals counts requests that were turned away at the gate, in one stretch:
// a long pause begins another. It is memory alone.
type Refusals struct {
	count       atomic.Int64
	first, last atomic.Int64 // in nanoseconds since 1970
}

// Add counts one. quiet is the pause after which a stretch has ended.
func (r *Refusals) Add(now time.Time, quiet time.Duration) {
	n := now.UnixNano()
	if last := r.last.Swap(n); n-last > int64(quiet) {
		r.first.Store(n)
		r.count.Store(0)
	}
	r.count.Add(1)
}

// Now returns how many there were in the stretch that goes on, and since when.
func (r *Refusals) Now(now time.Time, quiet time.Duration) (n int64, since time.Time) {
	if now.UnixNano()-r.last.Load() > int64(quiet) {
		return 0, time.Time{}
	}
	return r.count.Load(), time.Unix(0, r.first.Load()).UTC()
}
