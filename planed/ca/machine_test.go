package ca

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"
)

func TestTrustDomainsAreWhatSPIFFETakes(t *testing.T) {
	for in, want := range map[string]string{
		"https://Fleet.Example.org:8443": "fleet.example.org",
		"https://127.0.0.1:8443":         "127.0.0.1",
		"https://[fd00::1]:8443":         "fd00--1",
		"":                               "fleet",
	} {
		if got := TrustDomain(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestBothRootsAreInTheBundleAndItsNumberGrows while a root is replaced.
func TestBothRootsAreInTheBundleAndItsNumberGrows(t *testing.T) {
	now := time.Now()
	root := func(at time.Time) *x509.Certificate {
		k, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewRoot(k, at)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	old, fresh := root(now.Add(-time.Hour)), root(now)
	var seen []string
	for _, s := range []*Server{{Root: old}, {Root: old, Roots: []*x509.Certificate{fresh}}, {Root: fresh, Roots: []*x509.Certificate{old}}, {Root: fresh}} {
		b, err := s.Bundle()
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, string(b[len(b)-60:]))
	}
	if !(seen[0] < seen[1] && seen[2] < seen[3]) {
		t.Error(seen)
	}
}

func FuzzParseRequest(f *testing.F) {
	k, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
	if err != nil {
		f.Fatal(err)
	}
	good := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	f.Add(good)
	f.Add(good + good)
	f.Add("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRequest(text)
		if err == nil && (r.Public == nil || r.Digest == [32]byte{}) {
			t.Fatal("a request without a key was taken")
		}
	})
}
