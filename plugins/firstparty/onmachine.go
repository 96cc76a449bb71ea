//go:build onmachine

package firstparty

import "fleet.example/fleet/plugins/sdk"

func transports(string) []sdk.Plugin { return nil }
