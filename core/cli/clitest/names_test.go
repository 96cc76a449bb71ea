package clitest

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/hostcli"
)

func TestTheFrontPassesOnWhatFleetHostHas(t *testing.T) {
	front := maps.Clone(cli.PassedOn())
	for name := range front {
		if front[name] == "" {
			t.Errorf("%s has no summary", name)
		}
	}
	if diff := cmp.Diff(hostcli.Names(), front); diff != "" {
		t.Errorf("fleet-host has, the front passes on (-host +front):\n%s", diff)
	}
}
