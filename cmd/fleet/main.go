// Command fleet looks after machines that nobody can dial into.
package main

import (
	"os"

	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/command"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(cli.Main(os.Args, command.OS(), version)) }
