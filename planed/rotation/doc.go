// Package rotation moves a fleet from one version of a material to the next:
// the gate token, in front of every machine endpoint. One engine takes each
// kind through four steps,
//
//	widen   every plane that runs accepts the old value and the new one
//	roll    machines are told of the new version, with the answers to their checks
//	prove   nobody uses the old value any more, for longer than the slowest interval
//	narrow  the old value is refused, seen to be refused, and erased
//
// and may be killed, repeated and driven by two persons at once. State is what
// is decided, pure and kept by the store; Engine does what a state asks of one
// running plane, and tells what it sees there.
//
// # The invariant
//
// At every instant every machine that was reachable under the value that it
// holds is still reachable under it, or holds one that is. Narrowing never
// shuts out a known machine that was not named with leave. After narrowing the
// retired value gets a 401 everywhere.
//
// # Why it holds
//
// Let H(m) be the values on machine m's disk, A(p) what plane p accepts, and
// P(m) the version that m presented last, which is in m's row, durable before m
// is answered.
//
//   - A is a function of the state alone (State.Accepts), cut with what lies in
//     p's files. So what a plane accepts after a crash is what it accepted
//     before, and a file that an earlier deployment puts back revives nothing: a
//     retired version is refused there, too, with a reason.
//   - Machines are told of To only in roll. Roll begins when every live plane
//     has reported that it accepts both values, so whichever plane a machine
//     asks next accepts both. A plane that starts later reads the same state
//     before it listens, and refuses to start without the values.
//   - m writes a new value beside the old one and syncs it before it presents it,
//     and drops the old one only after the new one was accepted. So H(m) always
//     holds P(m), and between the two values that are accepted it does not matter
//     which one m presents, nor whether an answer is lost.
//   - Narrow is decided in one transaction, from a count of rows with
//     P(m) ≠ target that were not left, and from the time of the last use. Every m
//     that is not counted holds the target by the line above. An m whose check
//     comes in the same instant presents the old value at most once more, is
//     refused, and presents the other that it holds.
//   - P moves back only when m presents the old value again, as a machine does
//     whose disk went back to a snapshot. It is then counted again if it does so
//     before narrow. If it does so later, or if it slept through everything, or was
//     left: fetching material stands outside the gate and takes a live credential,
//     so it asks for the version that it has, is told of the one that is wanted,
//     fetches that, and is back one check later. Being shut out is an outage
//     of an interval and never the loss of a machine.
//   - Narrow is durable first, then each plane swaps what it accepts in memory,
//     then sees its own refusal of the retired value, and only when all have is it
//     erased from files. A crash between any two of these repeats what follows.
//     The value that a proof needs is on disk for as long as no proof is recorded.
//   - A version number is never used for two values, not even after an abort:
//     High only grows, and the state knows each living value's digest.
//
// # Going back
//
// An abort before narrow exchanges the two values' parts and is otherwise the
// same engine: machines that took the new one are rolled to the old, their uses
// of the new one are counted, and the new one is narrowed away. A drill does
// that with every rotation, on purpose, and names who did not take part.
//
// # Crash points
//
//   - after Start, before the new value is written: it is made again; no digest
//     of it is in the state, so nothing was accepted.
//   - after it is written, before its digest is in the state: the file is found
//     and its digest recorded.
//   - in roll and prove: nothing but rows changes. Uses are counted in memory and
//     written like the times of checks, so a crash may lose the last few seconds
//     of them. Quiet therefore begins anew when the store is opened, and what
//     counts for a machine, P(m), is durable before each answer.
//   - in narrow: see above. After the files were erased, wholly or but for
//     one that holds the same value again, and before the end is recorded, the
//     state accepts what the files hold, and narrowing goes on to its end.
//   - the command that drives it may die at any time: the plane goes on. It
//     stays in roll for as long as there is a straggler, and says who it is.
//
// Two persons who start one at the same time have started one. Who leaves a
// machine is in the audit log.
//
// The package must not know HTTP, nor what a value is good for.
package rotation
