// Command agentd-shim hosts one session of agentd. It is started by agentd,
// never by hand; package agentd/shim says what it does.
package main

import (
	"os"

	"fleet.example/fleet/agentd/shim"
)

func main() { os.Exit(shim.Main()) }
