// Command planed is the plane.
package main

import (
	"os"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/planed"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(planed.Main(os.Args, command.OS(), version)) }
