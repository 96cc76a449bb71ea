package keystore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/planed/ca"
)

func TestAKeyIsReadFromAPrivateFile(t *testing.T) { // R24
	key, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := ca.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, "file:" + path} {
		if k, err := Open(t.Context(), name); err != nil || !key.PublicKey.Equal(k.Public()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path); err == nil {
		t.Error("a key that others can read was taken")
	}
}

func TestAPINStandsInNoURI(t *testing.T) { // R1
	_, err := Open(t.Context(), "pkcs11:token=t;object=k?module-path=/m&pin-value=5678")
	if err == nil || fault.Of(err).Exit != fault.Usage || strings.Contains(err.Error(), "5678") {
		t.Error(err)
	}
}
