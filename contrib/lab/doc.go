// Package lab brings up real hosts to test against: each with its own systemd, logind, sshd, accounts, network
// and disk, behind a router that translates addresses, all on the machine that runs the tests.
//
// A lab is a subnet of 10.97.0.0/16 that is reached from the root namespace only:
//
//	root namespace                   router namespace                 one namespace a host
//	  PlaneAddr    .1   ┐               .2  "outer"                      .130 host0
//	  OperatorAddr .3   ┴──── veth ────      masquerade, filter ── veth ── default via .129
//
// A host reaches PlaneAddr and nothing else, and is seen there under the router's address. The root namespace
// reaches a host from OperatorAddr, which is the source address its kernel picks by itself; a connection bound to
// PlaneAddr goes nowhere, and hosts do not reach one another unless HostSpec.From says so. A host's lower disk is
// the machine's own /, so what is installed there is installed on the host; what the host writes stays in memory
// for as long as the lab lives, through power cuts too.
//
// A lab leaves nothing behind. One shell script takes a lab down, and all three that may run it share it: Close, a
// watcher process that holds one end of a pipe and acts when its owner is gone, and New, which looks for labs whose
// owner and watcher are both dead. The script holds a lock on the lab's directory and acts only while the token it
// was given is the one that stands there, so running it twice, or late, cannot hurt a later lab of the same number.
//
// The package knows nothing of fleet: not its programs, not its protocols. It needs root and Linux; Available says
// in plain words what is missing, and Need makes a test skip or fail with those words.
package lab
