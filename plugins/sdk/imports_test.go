package sdk_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestVendorsImportNothingElseOfFleet holds the import direction of design §9.
func TestVendorsImportNothingElseOfFleet(t *testing.T) {
	const root = "fleet.example/fleet/"
	out, err := exec.Command("go", "list", "-deps", root+"plugins/sdk", root+"plugins/proto/...", root+"plugins/sdk/conformance", root+"contrib/vendorplugin/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for p := range strings.FieldsSeq(string(out)) {
		rest, ours := strings.CutPrefix(p, root)
		if !ours {
			continue
		}
		seen++
		if !strings.HasPrefix(rest, "plugins/sdk") && !strings.HasPrefix(rest, "plugins/proto") && !strings.HasPrefix(rest, "contrib/vendorplugin") {
			t.Errorf("%s is imported", p)
		}
	}
	if seen < 6 {
		t.Errorf("only %d packages were looked at", seen)
	}
}
