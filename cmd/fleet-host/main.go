// Command fleet-host is the part of fleet that speaks SSH and hosts plugins.
package main

import (
	"os"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/hostcli"
)

// Set by the linker.
var (
	version        = "dev"
	artifactSigner string
)

func main() {
	os.Exit(hostcli.Main(os.Args, command.OS(), hostcli.Build{Version: version, ArtifactSigner: artifactSigner}))
}
