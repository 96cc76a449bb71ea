// Package single has a program begin on one processor. A command that is over
// in some milliseconds gains nothing from more of them, and the threads that
// the runtime makes to look for work on each are a good part of what such a
// command costs. Widen gives the rest back to one that takes longer.
//
// It imports the runtime alone, so that its init comes before nearly all
// others, and does so only where a program imports it.
package single

import "runtime"

var all = runtime.GOMAXPROCS(1)

// Nobody reads a profile of such a program, and sampling for one reads the
// tables by which stacks are taken apart.
func init() { runtime.MemProfileRate = 0 }

// Widen lets the program use the processors that it was started with.
func Widen() { runtime.GOMAXPROCS(all) }
