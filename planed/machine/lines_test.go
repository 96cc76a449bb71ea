package machine

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// agent is one run of agentd as Lines sees it.
type agent struct{ run, mark string }

// world gives out marks and runs.
type world struct {
	n     int
	lines Lines
}

func (w *world) next(what string) string {
	w.n++
	return what + strconv.Itoa(w.n)
}

// check is one check of a; lost says that its answer does not arrive.
func (w *world) check(a *agent, lost bool) bool {
	given := w.next("m")
	two := w.lines.Heard(a.run, a.mark, []byte(given))
	if !lost {
		a.mark = given
	}
	return two
}

// One machine is never taken for two, whatever happens to it: answers that are
// lost, restarts, and either reverted snapshots of its memory or checks that
// arrive late: for both around one restart see Lines.
func TestOneMachineIsNotTakenForTwo(t *testing.T) { // R28
	rapid.Check(t, func(t *rapid.T) {
		w := &world{}
		a := agent{run: w.next("r")}
		snapshot := a
		var late *agent
		steps := []string{"check", "check", "check", "lost", "restart", "snapshot", "revert"}
		if rapid.Bool().Draw(t, "late") {
			steps = []string{"check", "check", "check", "lost", "restart", "delay", "arrive"}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom(steps).Draw(t, "step") {
			case "check":
				if w.check(&a, false) {
					t.Fatal("one machine was taken for two")
				}
			case "lost":
				if w.check(&a, true) {
					t.Fatal("a lost answer was taken for another machine")
				}
			case "restart":
				a = agent{run: w.next("r")}
				if w.check(&a, false) {
					t.Fatal("a restart was taken for another machine")
				}
			case "snapshot":
				snapshot = a
			case "revert":
				a = snapshot
			case "delay":
				held := a
				late = &held
			case "arrive":
				if late != nil && w.check(late, true) {
					t.Fatal("a late check was taken for another machine")
				}
				late = nil
			}
		}
	})
}

// Two are noticed within three checks of each, whether the disk was copied, so
// that each has a run of its own, or the memory too.
func TestTwoMachinesAreNoticed(t *testing.T) { // R28
	rapid.Check(t, func(t *rapid.T) {
		w := &world{}
		a := agent{run: w.next("r")}
		for range rapid.IntRange(1, 10).Draw(t, "checks before") {
			w.check(&a, rapid.IntRange(0, 9).Draw(t, "lost") == 0)
		}
		b := a
		if rapid.Bool().Draw(t, "disk alone") {
			b = agent{run: w.next("r")}
		}
		first, second := &a, &b
		if rapid.Bool().Draw(t, "copy first") {
			first, second = second, first
		}
		for range 3 {
			if w.check(first, false) || w.check(second, false) {
				return
			}
		}
		t.Fatal("two machines went unnoticed")
	})
}
