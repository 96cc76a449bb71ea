// Package model holds no code but a test, which drives both sides of a
// machine's credential against each other: planed's interface, decisions and
// store over a real file, and agentd's check loop, client and credential files.
// Only what lies between and below them is a model: a network that drops,
// delays, duplicates and reorders messages, and a disk that fills, and crashes
// at every step with what a power cut may leave. It is here because agentd and
// planed do not import each other.
//
// After every step of every schedule two things hold:
//
//   - whatever a power cut would leave of a machine's disk, the plane accepts
//     some credential on it, or the machine was deleted (R20, R21);
//   - no secret of an earlier generation or of a deleted machine is accepted
//     for anything (R22, R23).
//
// At the end of each schedule the faults end, and then every machine gets back
// in by itself, answers what it was asked, and rotates no more than that (R16).
//
// A second test does the same for the gate token and its rotation (R26), with the
// plane's engine killed at every one of its steps: no machine that nobody named
// with leave is ever without a token that gets it in, no number means two values,
// and in the end every machine, left or not, holds the one version that is
// accepted.
//
// A third does it for where the plane is (R26, R37): persons move it and take
// that back, with signatures that the plane cannot make, while places come and
// go. No machine that nobody named with leave is ever left with a plane.json
// whose URL is refused, in whatever a power cut leaves, and in the end every
// machine is where the plane is.
//
// A run makes a few thousand schedules, or as many as one says:
//
//	FLEET_MODEL_SCHEDULES=100000 go test ./contrib/model -timeout 0
package model
