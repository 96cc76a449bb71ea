//go:build !onmachine

package firstparty

import (
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/transports/direct"
	"fleet.example/fleet/transports/proxycommand"
	"fleet.example/fleet/transports/proxyjump"
)

// transports are the plugins that only a person's machine has a use for. The
// binary that is sent to machines is built without them, and without an SSH
// client.
func transports(version string) []sdk.Plugin {
	return []sdk.Plugin{
		sdk.TransportPlugin(direct.Describe(version), direct.Transport{}),
		sdk.TransportPlugin(proxyjump.Describe(version), &proxyjump.Transport{}),
		sdk.TransportPlugin(proxycommand.Describe(version), &proxycommand.Transport{}),
	}
}
