// Command agentd-probes runs the probe plugins of an installed version once and
// prints what they found: see package probehost.
package main

import (
	"os"

	"fleet.example/fleet/plugins/probehost"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(probehost.Main(os.Args, version, os.Stdout, os.Stderr)) }
