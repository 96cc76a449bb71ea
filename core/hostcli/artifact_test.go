package hostcli

import (
	"bytes"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/command"
)

// A vendor's file that is to be packed is asked as a plugin is: what it prints
// is bounded, and everything that it started is ended (R41).
func TestAVendorsFileIsAskedWithinBounds(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("artifacts are for linux and darwin, and this looks into /proc")
	}
	home, in, vendor := t.TempDir(), t.TempDir(), t.TempDir()
	for _, name := range []string{"agentd", "agentd-shim", "fleet-plugins"} {
		if err := os.WriteFile(filepath.Join(in, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	left := filepath.Join(vendor, "left")
	script := fmt.Sprintf("#!/bin/sh\nsleep 600 &\necho $! >%s\nexec yes\n", left)
	probe := filepath.Join(vendor, "fleet-probe-flood")
	if err := os.WriteFile(probe, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	begin := time.Now()
	exit := Main([]string{"fleet-host", "artifact", "build", in, "--os", runtime.GOOS, "--arch", runtime.GOARCH, "--as", "1", "--out", t.TempDir(),
		"--sign-key", signKey(t, home), "--with", probe},
		command.IO{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut, Getenv: func(k string) string {
			return map[string]string{"HOME": home, "XDG_RUNTIME_DIR": home}[k]
		}}, Build{Version: "1"})
	if took := time.Since(begin); exit != 1 || !strings.Contains(errOut.String(), "does not describe itself") || took > 30*time.Second {
		t.Errorf("exit %d after %v: %s%s", exit, took, out.String(), errOut.String())
	}
	b, err := os.ReadFile(left)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	fmt.Sscan(string(b), &pid)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d is left", pid)
		}
	}
}

// signKey makes a private key in dir.
func signKey(t *testing.T, dir string) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sign")
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
