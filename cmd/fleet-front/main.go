// Command fleet-front is fleet's command line. Command fleet becomes it.
package main

import (
	"os"
	"time"

	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/single"
)

// version is set by the build.
var version = "dev"

func main() {
	time.AfterFunc(time.Second, single.Widen)
	os.Exit(cli.Main(os.Args, command.OS(), version))
}
