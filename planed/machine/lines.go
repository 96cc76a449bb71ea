package machine

// Lines tells two machines that present one identity, such as a copied disk's,
// from one machine that has a hard life (R28).
//
// Every answer carries a mark, and a check echoes the mark of the last answer
// that its sender got. So the checks of one run of one agent form a line, in
// which each echoes the mark that the one before was given - or, when that
// answer was lost on the way, echoes again what the one before echoed. Of one
// machine there is one line at a time: a restart or a reverted snapshot begins
// a new one, and the one before never goes on. A check that was delayed past a
// restart makes the old line go on once. Of two machines both lines go on, in
// turns; at turnsOfTwo of them with no new line in between, two it is.
//
// One machine looks like that only where both accidents happen to it around one
// restart: its memory goes back to before it, and a check arrives late across
// it. Then the old line goes on twice, and the new one between. A person who
// looks finds one machine.
//
// The lines are kept in memory alone. A plane that restarts sees them again
// within some checks.
type Lines struct {
	latest, other line
	turns         uint8
}

// turnsOfTwo is one more than a delayed check brings about: the old line's one,
// and the new one's return.
const turnsOfTwo = 3

// line is where a run's checks have come to. Zero is none.
type line struct{ run, mark, echo uint64 }

func (l line) goesOn(run, echo uint64) bool {
	return l.run == run && echo != 0 && (echo == l.mark || echo == l.echo)
}

// Heard takes note of a check that was accepted, and of the mark that its
// answer carries. It reports whether the checks are those of two machines.
func (l *Lines) Heard(run, echo string, given []byte) bool {
	r, e := sum(run), sum(echo)
	now := line{r, sum(given), e}
	switch {
	case l.latest.goesOn(r, e):
		l.latest = now
		return false
	case l.other.goesOn(r, e):
		l.latest, l.other = now, l.latest
		l.turns = min(l.turns+1, turnsOfTwo)
		return l.turns == turnsOfTwo
	default:
		l.latest, l.other, l.turns = now, l.latest, 0
		return false
	}
}

// sum is FNV-1a; of nothing it is zero.
func sum[T string | []byte](s T) uint64 {
	if len(s) == 0 {
		return 0
	}
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
