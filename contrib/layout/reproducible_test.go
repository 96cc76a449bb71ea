package layout

import (
	"bytes"
	"crypto/ed25519"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/artifact"
)

// TestTwoBuildsGiveTheSameBytes builds the smallest of the programs on machines
// from two source directories with two build caches, of which one is empty, as
// the Makefile does, and packs each. (R3: what was signed can be built again.)
func TestTwoBuildsGiveTheSameBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the standard library")
	}
	flags := makefileFlags(t)
	signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(t.TempDir(), "one")
	copyPackages(t, "../..", first, "./cmd/agentd-shim")
	second := filepath.Join(t.TempDir(), "another", "place")
	copyPackages(t, first, second, "./cmd/agentd-shim") // others may be editing the tree
	var built [2][]byte
	var packed [2]map[string][]byte
	for i, v := range []struct{ source, cache string }{{first, strings.TrimSpace(string(cache))}, {second, t.TempDir()}} {
		out := filepath.Join(t.TempDir(), "agentd-shim")
		cmd := exec.Command("go", append(append([]string{"build"}, flags...), "-o", out, "./cmd/agentd-shim")...)
		cmd.Dir = v.source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOCACHE="+v.cache)
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, msg)
		}
		if built[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
		packed[i] = pack(t, signer, built[i])
	}
	if !bytes.Equal(built[0], built[1]) {
		t.Error("two builds of agentd-shim differ")
	}
	for name, b := range packed[0] {
		if !bytes.Equal(b, packed[1][name]) {
			t.Errorf("%s differs", name)
		}
	}
}

// makefileFlags are the flags of the Makefile's builds, with a version.
func makefileFlags(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-s -w -buildid= -X main.version=", "-trimpath -buildvcs=false", "export CGO_ENABLED = 0"} {
		if !strings.Contains(string(b), want) {
			t.Fatalf("the Makefile no longer builds with %q", want)
		}
	}
	return []string{"-tags", "urfave_cli_no_docs", "-trimpath", "-ldflags", "-s -w -buildid= -X main.version=1.0.0", "-buildvcs=false"}
}

// copyPackages copies a program's own packages and the module's files.
func copyPackages(t *testing.T, from, to, program string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}", program)
	cmd.Dir = from
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(from)
	if err != nil {
		t.Fatal(err)
	}
	for dir := range strings.Lines(string(out) + "\n" + root) {
		dir = strings.TrimSpace(dir)
		rel, err := filepath.Rel(root, dir)
		if dir == "" || err != nil {
			continue
		}
		if err := os.MkdirAll(filepath.Join(to, rel), 0o755); err != nil {
			t.Fatal(err)
		}
		names, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range names {
			if !e.Type().IsRegular() || strings.HasSuffix(e.Name(), "_test.go") || rel == "." && !strings.HasPrefix(e.Name(), "go.") {
				continue
			}
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(to, rel, e.Name()), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// pack makes an artifact of one program under all names that it needs.
func pack(t *testing.T, signer ssh.Signer, program []byte) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	b := artifact.Build{OS: "linux", Arch: "amd64", Version: "1.0.0", Out: dir, Links: map[string]string{artifact.Probes: artifact.Plugins},
		Files: map[string][]byte{artifact.Agent: program, artifact.Shim: program, artifact.Plugins: program, artifact.Lock: []byte("{}")}}
	if _, err := b.Write(signer); err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if out[f.Name()], err = os.ReadFile(filepath.Join(dir, f.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if len(out) != 3 {
		t.Fatalf("an artifact is %d files, not 3", len(out))
	}
	return out
}
