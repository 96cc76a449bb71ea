package main

import (
	"crypto/ecdsa"
	"encoding/pem"
	"os"
	"path/filepath"

	"fleet.example/fleet/planed/ca"
)

// writeLeaf gives the empty handler a certificate like the plane's.
func writeLeaf(dir string, authority *ca.Server) (cert, key string, err error) {
	c, err := authority.Certificate()
	if err != nil {
		return "", "", err
	}
	var chain []byte
	for _, der := range c.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	k, err := ca.EncodeKey(c.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		return "", "", err
	}
	cert, key = filepath.Join(dir, "noop.pem"), filepath.Join(dir, "noop.key")
	if err := os.WriteFile(cert, chain, 0o600); err != nil {
		return "", "", err
	}
	return cert, key, os.WriteFile(key, k, 0o600)
}
