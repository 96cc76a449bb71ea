// Command fleet looks after machines that nobody can dial into.
package main

import (
	"os"
	"time"

	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/command"
	_ "fleet.example/fleet/core/quick/first" // before all others
	"fleet.example/fleet/core/single"
)

// version is set by the build.
var version = "dev"

func main() {
	time.AfterFunc(time.Second, single.Widen)
	os.Exit(cli.Main(os.Args, command.OS(), version))
}
