package ca

import (
	"crypto/elliptic"
	"testing"
)

func FuzzPEM(f *testing.F) {
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := DecodeKey(b); err == nil && k.Curve != elliptic.P256() {
			t.Error(k.Curve)
		}
		if c, err := DecodeCert(b); err == nil && Pin(c) == "" {
			t.Error("no pin")
		}
	})
}
