package artifact

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
)

func key(t testing.TB) ssh.Signer {
	t.Helper()
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sample(out string) Build {
	return Build{OS: "linux", Arch: "amd64", Version: "1.0.0", Out: out,
		Files: map[string][]byte{Agent: []byte("agent"), Shim: []byte("shim"), Probes: []byte("probes"), Plugins: bytes.Repeat([]byte("p"), 100<<10), Lock: []byte("{}")},
		Links: map[string]string{"fleet-probe-host": Plugins}}
}

func TestTwoBuildsGiveTheSameBytes(t *testing.T) {
	k := key(t)
	a, b := t.TempDir(), t.TempDir()
	id1, err1 := sample(a).Write(k)
	id2, err2 := sample(b).Write(k)
	if err := errors.Join(err1, err2); err != nil || id1 != id2 {
		t.Fatal(id1, id2, err)
	}
	for _, end := range []string{".json", ".tar.gz", ".json.sig"} {
		x, err1 := os.ReadFile(filepath.Join(a, "fleet-agent-linux-amd64"+end))
		y, err2 := os.ReadFile(filepath.Join(b, "fleet-agent-linux-amd64"+end))
		if errors.Join(err1, err2) != nil || !bytes.Equal(x, y) {
			t.Error(end, "differs")
		}
	}
}

func TestMachinesTarAndHashesAgree(t *testing.T) { // R3
	dir := t.TempDir()
	if _, err := sample(dir).Write(key(t)); err != nil {
		t.Fatal(err)
	}
	m, err := os.ReadFile(filepath.Join(dir, "fleet-agent-linux-amd64.json"))
	if err != nil {
		t.Fatal(err)
	}
	man, err := ParseManifest(m)
	if err != nil {
		t.Fatal(err)
	}
	un := t.TempDir()
	cmd := exec.Command("sh", "-c", `gzip -dc < "$1" | tar -xf - -C "$2" && cd "$2" && sha256sum -c`, "sh", filepath.Join(dir, "fleet-agent-linux-amd64.tar.gz"), un)
	cmd.Stdin = strings.NewReader(man.Sums())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if to, err := os.Readlink(filepath.Join(un, "fleet-probe-host")); err != nil || to != Plugins {
		t.Error(to, err)
	}
}

func TestSSHKeygenAcceptsTheSignature(t *testing.T) {
	dir, k := t.TempDir(), key(t)
	if _, err := sample(dir).Write(k); err != nil {
		t.Fatal(err)
	}
	allowed := filepath.Join(dir, "allowed")
	if err := os.WriteFile(allowed, append([]byte("me "), ssh.MarshalAuthorizedKey(k.PublicKey())...), 0o600); err != nil {
		t.Fatal(err)
	}
	m := filepath.Join(dir, "fleet-agent-linux-amd64.json")
	in, err := os.Open(m)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "me", "-n", "fleet-artifact@v1", "-s", m+".sig")
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestUnsignedForeignAndAlteredAreRefused(t *testing.T) { // R3
	k := key(t)
	trusted := Signers{}.Add(k.PublicKey()).Add(k.PublicKey())
	if len(trusted) != 1 {
		t.Fatal(trusted)
	}
	for name, spoil := range map[string]func(base string) error{
		"":             func(string) error { return nil },
		"not signed":   func(b string) error { return os.Remove(b + ".json.sig") },
		"not trusted":  func(b string) error { _, err := sample(filepath.Dir(b)).Write(key(t)); return err },
		"does not fit": func(b string) error { return appendTo(b+".json", "\n") },
		"not the one":  func(b string) error { return appendTo(b+".tar.gz", "x") },
		"malformed":    func(b string) error { return os.WriteFile(b+".json.sig", []byte("x"), 0o600) },
		"no such file": func(b string) error { return os.Remove(b + ".tar.gz") },
	} {
		dir := t.TempDir()
		if _, err := sample(dir).Write(k); err != nil {
			t.Fatal(err)
		}
		if err := spoil(filepath.Join(dir, "fleet-agent-linux-amd64")); err != nil {
			t.Fatal(err)
		}
		a, err := Find([]string{"/nonexistent", dir}, "linux", "amd64", trusted)
		if name == "" {
			if err != nil || a.SignedBy != ssh.FingerprintSHA256(k.PublicKey()) {
				t.Error(err)
			}
		} else if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
	if _, err := Find([]string{"/nonexistent"}, "linux", "amd64", trusted); fault.Of(err).Code != "no_artifact" {
		t.Error(err)
	}
	if _, err := Find(nil, "plan9", "amd64", trusted); fault.Of(err).Exit != fault.Refused || !strings.Contains(err.Error(), "unsupported platform plan9/amd64") {
		t.Error(err)
	}
}

func TestSignatureForAnotherPurposeIsRefused(t *testing.T) { // R37
	k := key(t)
	sig, err := Sign([]byte("m"), k, "fleet-login@v1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Signers{k.PublicKey()}).Verify([]byte("m"), sig); !errors.Is(err, ErrSignature) {
		t.Fatal(err)
	}
}

func appendTo(path, s string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, s...), 0o600)
}

func TestUnsignedMachOIsRefused(t *testing.T) {
	b := sample(t.TempDir())
	b.OS, b.Arch = "darwin", "arm64"
	if _, err := b.Write(key(t)); err == nil || !strings.Contains(err.Error(), "Mach-O") {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(src, []byte("package main\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "bin")
	cmd := exec.Command("go", "build", "-o", bin, src)
	cmd.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	prog, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkMachO("bin", prog); err != nil {
		t.Error("what Go links is refused:", err)
	}
	// Turning the load command into another one takes the signature away.
	unsigned := bytes.Clone(prog)
	for i := 32; i+8 < 4096; i++ {
		if bytes.Equal(unsigned[i:i+8], []byte{0x1d, 0, 0, 0, 0x10, 0, 0, 0}) {
			unsigned[i] = 0x26
		}
	}
	if err := checkMachO("bin", unsigned); fault.Of(err) == nil || fault.Of(err).Code != "unsigned_binary" {
		t.Error(err)
	}
}

func FuzzParseManifest(f *testing.F) {
	dir := f.TempDir()
	if _, err := sample(dir).Write(key(f)); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "fleet-agent-linux-amd64.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if strings.ContainsAny(file.Path+file.Link, "/\x00\n") || strings.HasPrefix(file.Path, ".") {
				t.Fatalf("%q leaves its directory", file.Path)
			}
		}
	})
}
