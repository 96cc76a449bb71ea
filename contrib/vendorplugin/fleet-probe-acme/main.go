// Command fleet-probe-acme is the template of a vendor's plugin: a probe that
// finds a machine not ready while Acme's licence file is missing or empty. Copy
// it, rename it, and change what it looks at.
//
//	go build -o fleet-probe-acme .
//	./fleet-probe-acme describe
//	fleet plugin test ./fleet-probe-acme
//	fleet plugin install ./fleet-probe-acme
//
// It imports the SDK and nothing else of fleet. The service managers of fleet's
// own, plugins/service/plain first, show the other kinds.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"fleet.example/fleet/plugins/sdk"
)

const licence = "/etc/acme/licence"

func main() {
	sdk.ServeProbe(sdk.Description{
		Name: "acme", Version: "1.0.0", Targets: []string{"linux"},
		Summary: "looks for Acme's licence",
		// A probe runs before an install too, when the host key may not be
		// confirmed yet. Commands that it would run then are listed in Commands;
		// this one runs none.
	}, probe{})
}

// probe has no state: one process serves many machines.
type probe struct{}

// Codes lists every code. The part before the full stop is the vendor.
func (probe) Codes() []string { return []string{"acme.licence_missing"} }

// Probe gives everything that is the case now. What it does not name is not the
// case, so whatever keeps it from looking is an error: "cannot tell".
func (probe) Probe(ctx context.Context, h sdk.Host) ([]sdk.Finding, error) {
	info, err := h.Stat(ctx, licence)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []sdk.Finding{missing("there is no " + licence)}, nil
	case err != nil:
		return nil, fmt.Errorf("cannot look at %s: %w", licence, err)
	case info.Size == 0:
		return []sdk.Finding{missing(licence + " is empty")}, nil
	}
	return nil, nil
}

func missing(detail string) sdk.Finding {
	return sdk.Finding{
		Code: "acme.licence_missing", Severity: sdk.SeverityBlock, Detail: detail,
		Remedy: "copy the licence that Acme sent you to " + licence,
	}
}
