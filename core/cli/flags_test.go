package cli

import (
	"flag"
	"testing"

	ufcli "github.com/urfave/cli/v2"
)

// flags is a parsed command line on which the given flags stand.
func flags(t *testing.T, on ...string) *ufcli.Context {
	t.Helper()
	set := flag.NewFlagSet("fleet", flag.ContinueOnError)
	for _, name := range on {
		set.Bool(name, true, "")
	}
	return ufcli.NewContext(ufcli.NewApp(), set, nil)
}
