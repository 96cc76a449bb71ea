// Command agentd is the resident agent of one machine.
package main

import (
	"os"

	"fleet.example/fleet/agentd/cli"
	"fleet.example/fleet/core/command"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(cli.Main(os.Args, command.OS(), version)) }
