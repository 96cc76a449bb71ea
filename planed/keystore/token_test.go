//go:build cgo && pkcs11

package keystore

import (
	"crypto/ecdsa"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"fleet.example/fleet/planed/ca"
)

// TestAKeyStaysInItsToken, here SoftHSM's: it is made there, found again, and
// signs what the authority issues.
func TestAKeyStaysInItsToken(t *testing.T) {
	module := ""
	for _, m := range []string{"/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so"} {
		if _, err := os.Stat(m); err == nil {
			module = m
		}
	}
	if module == "" {
		t.Skip("SoftHSM is not installed")
	}
	dir := t.TempDir()
	conf, pin := filepath.Join(dir, "conf"), filepath.Join(dir, "pin")
	for path, text := range map[string]string{conf: "directories.tokendir = " + dir + "\nobjectstore.backend = file\nlog.level = ERROR\n", pin: "5678"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SOFTHSM2_CONF", conf)
	if out, err := exec.Command("softhsm2-util", "--init-token", "--free", "--label", "fleet", "--so-pin", "1234", "--pin", "5678").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	uri := fmt.Sprintf("pkcs11:token=fleet;object=intermediate;id=%%01?module-path=%s&pin-source=%s", module, pin)
	if _, err := Open(t.Context(), uri); err == nil {
		t.Fatal("a key was opened that was never made")
	}
	key, err := Create(t.Context(), uri)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Create(t.Context(), uri)
	if err != nil || !key.Public().(*ecdsa.PublicKey).Equal(again.Public()) {
		t.Fatal("another key was made", err)
	}
	named := filepath.Join(dir, "intermediate.key")
	if err := os.WriteFile(named, []byte(uri+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err = Open(t.Context(), named); err != nil || !key.Public().(*ecdsa.PublicKey).Equal(again.Public()) {
		t.Fatal(err)
	}
	rootKey, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	root, err := ca.NewRoot(rootKey, now)
	if err != nil {
		t.Fatal(err)
	}
	inter, err := ca.NewIntermediate(root, rootKey, again, now)
	if err != nil {
		t.Fatal(err)
	}
	s := &ca.Server{Root: root, Intermediate: inter, Key: again, URL: "https://plane.example", Now: time.Now, TrustDomain: "plane.example"}
	if err := s.Try(now, root); err != nil {
		t.Error(err)
	}
	if err := s.RehearseRoot(now); err != nil {
		t.Error(err)
	}
}
