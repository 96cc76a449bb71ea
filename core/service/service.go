// Package service says what an installed agent is to a service manager: its
// argv, directories, latch and time-outs. The installer, over SSH, and
// agentd enroll, on the machine itself, register the same service.
//
// It knows no service manager, no plane and no connection.
package service

import (
	"path"
	"time"

	"fleet.example/fleet/core/place"
	"fleet.example/fleet/plugins/sdk"
)

// Name of the service, before a manager's own ending.
const Name = "fleet-agent"

// Time-outs of the service.
const (
	StartTimeout = 30 * time.Second
	StopTimeout  = 20 * time.Second
)

// Spec is the service of an installation.
func Spec(d place.Dirs, scope, account string) sdk.Spec {
	return sdk.Spec{Name: Name, Scope: sdk.Scope(scope), User: account,
		Argv:    []string{path.Join(d.Data, place.CurrentLink, "agentd"), "run", "--data", d.Data, "--runtime", d.Runtime},
		DataDir: d.Data, RuntimeDir: d.Runtime, LogFile: path.Join(d.Data, "log", "service.log"),
		Latch: path.Join(d.Data, place.LatchFile), StartTimeout: StartTimeout, StopTimeout: StopTimeout}
}
