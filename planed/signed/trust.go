package signed

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Trust are the roots that vouch for the plane.
type Trust struct{}

// Now is what machines are to hold.
func (t *Trust) Now() *Now { return nil }

// InUse are the roots that vouch for the plane's certificate now, PEM.
func (t *Trust) InUse() string { return "" }

// Check refuses what a statement must not say, before anything begins.
func (t *Trust) Check(*wire.Statement) error { return nil }

// rootOf is the one root that a statement is about.
func rootOf(st *wire.Statement) (*x509.Certificate, error) {
	block, rest := pem.Decode([]byte(st.RootsPEM))
	if block == nil {
		return nil, errors.New("cannot use the statement: it holds no root")
	}
	if more, _ := pem.Decode(rest); more != nil {
		return nil, errors.New("cannot use the statement: it holds more than one root")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !c.IsCA {
		return nil, errors.New("cannot use the statement: its root is no authority's certificate")
	}
	return c, nil
}

func rootDigest(c *x509.Certificate) secret.Digest { return sha256.Sum256(c.Raw) }
