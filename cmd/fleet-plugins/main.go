// Command fleet-plugins is the one binary behind the names of fleet's own
// plugins: see package firstparty.
package main

import (
	"os"

	"fleet.example/fleet/plugins/firstparty"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(firstparty.Main(os.Args, version, os.Stdout, os.Stderr)) }
