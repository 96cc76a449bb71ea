package planeclient

import (
	"encoding/hex"
	"strings"
	"testing"
)

func FuzzParsePin(f *testing.F) {
	f.Add("sha256:" + strings.Repeat("0a", 32))
	f.Add("sha256:")
	f.Fuzz(func(t *testing.T, s string) {
		pin, err := ParsePin(s)
		if err == nil && !strings.EqualFold(strings.TrimSpace(s), "sha256:"+hex.EncodeToString(pin[:])) {
			t.Errorf("%q is read as %x", s, pin)
		}
	})
}
