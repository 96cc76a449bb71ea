// Package ca is the plane's certificate authority: a root that is kept apart
// and vouches for one intermediate, the intermediate in use, and the server's
// own certificate, which the intermediate issues at start and again, in
// memory, long before it expires.
//
// Keys are ECDSA P-256, which every TLS 1.3 client takes. Certificates are
// backdated by days: a machine whose clock is a day off must still reach the
// plane, to be told so.
//
// For machines on the rung of mutual TLS the intermediate issues certificates
// too (R27): clientAuth alone, the machine's id in one SPIFFE URI, hours long.
// What such a certificate says is believed after the chain led to our own root;
// whether its key is the machine's is for the caller to ask.
//
// # Renewing an authority
//
// The intermediate can be replaced at any time: whoever trusts the root trusts
// the new one, and a certificate brings the intermediate that issued it along,
// so that those of the old one go on until they expire, hours later. A root is
// replaced while both are trusted: Server.Roots holds every root whose
// certificates are accepted and that the trust bundle names, Server.Root the
// one that vouches for the intermediate in use. The intermediate's key stays and
// has a certificate by each root, of which Server.Cross holds the other one, so
// that what it issues is verified by whoever trusts either.
//
// The package must not know HTTP, stores or what machines do.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"
)

const (
	backdate         = 72 * time.Hour
	rootLife         = 20 * 365 * 24 * time.Hour
	intermediateLife = 5 * 365 * 24 * time.Hour
	leafLife         = 14 * 24 * time.Hour
	leafRenew        = leafLife / 2
)

// NewKey makes a private key.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// EncodeKey is the key as PEM, PKCS #8.
func EncodeKey(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// DecodeKey reads what EncodeKey wrote.
func DecodeKey(b []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("no PEM private key")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("malformed private key")
	}
	ec, ok := k.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("the private key is not ECDSA P-256")
	}
	return ec, nil
}

// EncodeCert is the certificate as PEM.
func EncodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// DecodeCert reads one PEM certificate.
func DecodeCert(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// Pin is sha256:HEX of the certificate's DER SubjectPublicKeyInfo.
func Pin(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func serial() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f // positive
	return new(big.Int).SetBytes(b[:])
}

// NewRoot makes a self-signed root.
func NewRoot(key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	return issue(&x509.Certificate{
		SerialNumber: serial(),
		// The number tells two roots apart where only subjects are shown.
		Subject:               pkix.Name{CommonName: "fleet root " + hex.EncodeToString(serial().Bytes()[:4])},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(rootLife),
		BasicConstraintsValid: true, IsCA: true, MaxPathLen: 1,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}, nil, key.Public(), key)
}

// NewIntermediate makes the authority that is in use.
func NewIntermediate(root *x509.Certificate, rootKey, key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	return issue(&x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "fleet intermediate " + hex.EncodeToString(serial().Bytes()[:4])},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(intermediateLife),
		BasicConstraintsValid: true, IsCA: true, MaxPathLen: 0, MaxPathLenZero: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, root, key.Public(), rootKey)
}

// Cross makes a further certificate of an intermediate's key: the same subject,
// by another root.
func Cross(inter, root *x509.Certificate, rootKey crypto.Signer, now time.Time) (*x509.Certificate, error) {
	return issue(&x509.Certificate{
		SerialNumber:          serial(),
		RawSubject:            inter.RawSubject,
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(intermediateLife),
		BasicConstraintsValid: true, IsCA: true, MaxPathLen: 0, MaxPathLenZero: true,
		KeyUsage:     inter.KeyUsage,
		ExtKeyUsage:  inter.ExtKeyUsage,
		SubjectKeyId: inter.SubjectKeyId,
	}, root, inter.PublicKey, rootKey)
}

func issue(tmpl, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	if parent == nil {
		parent = tmpl
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Server issues the server's certificate and keeps it fresh.
type Server struct {
	Root         *x509.Certificate
	Intermediate *x509.Certificate
	Key          crypto.Signer // the intermediate's
	URL          string
	More         []string // further URLs that the server's certificate is for
	Now          func() time.Time
	// Roots are trusted for machines' certificates, besides Root. Retired are
	// trusted no more, whatever the others say.
	Roots, Retired []*x509.Certificate
	// Cross are further certificates of the intermediate's key, by other roots:
	// whoever trusts one of those verifies what the key issues, too.
	Cross []*x509.Certificate
	// TrustDomain is that of the machines' SPIFFE ids. It stays when the URL
	// changes.
	TrustDomain string

	mu   sync.Mutex
	leaf *tls.Certificate
}

// Certificate returns the chain that the server presents, the root included:
// a first login finds the pinned root there.
func (s *Server) Certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	if s.leaf != nil && s.leaf.Leaf.NotAfter.Sub(now) > leafLife-leafRenew && now.After(s.leaf.Leaf.NotBefore) {
		return s.leaf, nil
	}
	leaf, err := s.issue(now)
	if err != nil {
		return nil, fmt.Errorf("cannot issue the server's certificate: %w", err)
	}
	s.leaf = leaf
	return leaf, nil
}

func (s *Server) issue(now time.Time) (*tls.Certificate, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "fleet plane"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(leafLife),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if tmpl.NotBefore.Before(s.Intermediate.NotBefore) {
		tmpl.NotBefore = s.Intermediate.NotBefore
	}
	if tmpl.NotAfter.After(s.Intermediate.NotAfter) {
		tmpl.NotAfter = s.Intermediate.NotAfter
	}
	for _, at := range append([]string{s.URL}, s.More...) {
		u, err := url.Parse(at)
		if err != nil {
			return nil, err
		}
		name := u.Hostname()
		if ip := net.ParseIP(name); ip == nil && !slices.Contains(tmpl.DNSNames, name) {
			tmpl.DNSNames = append(tmpl.DNSNames, name)
		} else if ip != nil && !slices.ContainsFunc(tmpl.IPAddresses, ip.Equal) {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		}
	}
	cert, err := issue(tmpl, s.Intermediate, key.Public(), s.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{cert.Raw, s.Intermediate.Raw}, PrivateKey: key, Leaf: cert}
	for _, more := range append(append(slices.Clone(s.Cross), s.Root), s.Roots...) {
		c.Certificate = append(c.Certificate, more.Raw)
	}
	return c, nil
}
