package shim

import (
	"os/exec"
	"strings"
	"testing"
)

// The shim is started for every session, so what it links is paid every time.
func TestShimStaysSmall(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "fleet.example/fleet/cmd/agentd-shim").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.Lines(string(out)) {
		p = strings.TrimSpace(p)
		switch {
		case p == "net/http", p == "crypto/tls", p == "crypto/x509", strings.HasPrefix(p, "google.golang.org/"),
			strings.Contains(p, "hclog"), strings.Contains(p, "urfave"), strings.Contains(p, "/planed"):
			t.Errorf("agentd-shim links %s", p)
		}
	}
}

// The agent verifies its bundle's signature when it enrolls, and links
// x/crypto/ssh for that; sessions over SSH and plugins are others' work.
func TestAgentLinksNoPluginRuntime(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "fleet.example/fleet/cmd/agentd").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.Lines(string(out)) {
		p = strings.TrimSpace(p)
		if strings.HasPrefix(p, "google.golang.org/") || strings.Contains(p, "x/crypto/ssh/agent") || strings.Contains(p, "pkg/sftp") || strings.Contains(p, "go-plugin") ||
			strings.HasPrefix(p, "fleet.example/fleet/planed") || strings.HasPrefix(p, "fleet.example/fleet/plugins") {
			t.Errorf("agentd links %s", p)
		}
	}
}
