// Command fleet looks after machines that nobody can dial into.
package main

import (
	"os"

	"fleet.example/fleet/core/quick"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(quick.Main(os.Args, version)) }
