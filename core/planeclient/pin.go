package planeclient

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// ParsePin parses sha256:HEX.
func ParsePin(s string) ([sha256.Size]byte, error) {
	var pin [sha256.Size]byte
	digits, ok := strings.CutPrefix(strings.TrimSpace(s), "sha256:")
	b, err := hex.DecodeString(digits)
	if !ok || err != nil || len(b) != len(pin) {
		return pin, fault.Usagef("%q is no pin of the form sha256:HEX with 64 hexadecimal digits", s)
	}
	copy(pin[:], b)
	return pin, nil
}

// VerifyPin connects to a plane that is known by the pin of its root alone. The
// root must be in the chain that the plane presents; the chain is then verified
// by that root and no other, for the URL's host. It returns the root as PEM, for
// every later connection.
func VerifyPin(ctx context.Context, plane, pin string) (rootsPEM string, err error) {
	plane, err = wire.PlaneURL(plane)
	if err != nil {
		return "", fault.Usagef("%s", err)
	}
	want, err := ParsePin(pin)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(plane)
	if err != nil {
		return "", err
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	var root *x509.Certificate
	d := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: connectFor},
		Config: &tls.Config{
			MinVersion: tls.VersionTLS13,
			ServerName: u.Hostname(),
			// The system's roots say nothing here; VerifyConnection does all of it.
			InsecureSkipVerify: true,
			VerifyConnection: func(cs tls.ConnectionState) error {
				root, err = pinned(cs.PeerCertificates, want, u.Hostname())
				return err
			},
		},
	}
	ctx, cancel := context.WithTimeout(ctx, 2*connectFor)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		var f *fault.Error
		if errors.As(err, &f) {
			return "", f
		}
		return "", fault.New(fault.Unreachable, "plane_unreachable", "cannot reach the plane %s: %w", plane, err)
	}
	conn.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Raw})), nil
}

// pinned finds the root with the pin in the presented chain and verifies the
// rest of the chain by it.
func pinned(chain []*x509.Certificate, want [sha256.Size]byte, host string) (*x509.Certificate, error) {
	if len(chain) == 0 {
		return nil, errors.New("no certificate was presented")
	}
	var root *x509.Certificate
	inter := x509.NewCertPool()
	for _, c := range chain[1:] {
		sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
		if subtle.ConstantTimeCompare(sum[:], want[:]) == 1 && c.IsCA {
			root = c
			continue
		}
		inter.AddCert(c)
	}
	if root == nil {
		last := sha256.Sum256(chain[len(chain)-1].RawSubjectPublicKeyInfo)
		return nil, fault.New(fault.Refused, "plane_pin_mismatch",
			"the plane does not present the pinned root: expected sha256:%x, got sha256:%x", want, last).
			WithHint("something may stand in between; compare the pin with what planed init printed")
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: inter, DNSName: host}); err != nil {
		return nil, fmt.Errorf("the plane's certificate: %w", err)
	}
	return root, nil
}

// OneRoot reads one authority's certificate in PEM, and returns it in the form
// that statements have.
func OneRoot(b []byte) (string, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", fault.Usagef("the file holds no PEM certificate")
	}
	if more, _ := pem.Decode(rest); more != nil {
		return "", fault.Usagef("the file holds more than one certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !c.IsCA {
		return "", fault.Usagef("the file holds no root's certificate")
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})), nil
}

// HasRoot reports whether the first certificate of one is among roots, both PEM.
func HasRoot(roots, one string) bool {
	want, _ := pem.Decode([]byte(one))
	if want == nil {
		return false
	}
	for rest := []byte(roots); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return false
		}
		if subtle.ConstantTimeCompare(block.Bytes, want.Bytes) == 1 {
			return true
		}
	}
}
