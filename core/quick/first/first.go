// Package first does the program's command the short way, if there is one,
// before any other package of the program is initialized; what is left of its
// imports is initialized, and main runs, only if there is none.
//
// A program that imports it is fleet and nothing else: tests and tools that do
// would do a command instead of what they are for.
package first

import (
	"os"

	"fleet.example/fleet/core/quick"
)

func init() {
	exit, done, args := quick.Try(os.Args)
	if done {
		os.Exit(exit)
	}
	os.Args = args
}
