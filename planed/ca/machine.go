package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"fleet.example/fleet/core/wire"
)

// MachineBackdate lies between a machine certificate's beginning and its issue:
// the clocks of two replicas, and of whoever else verifies it, differ.
const MachineBackdate = time.Hour

// maxCSR bounds a request in bytes; one for a P-256 key has about 350.
const maxCSR = 4 << 10

// machinePath is what a machine's SPIFFE id has after the trust domain and
// before the machine's id.
const machinePath = "/machine/"

// TrustDomain is the SPIFFE trust domain that a plane's URL suggests: its host,
// with what the specification does not take replaced.
func TrustDomain(plane string) string {
	u, err := url.Parse(plane)
	if err != nil || u.Hostname() == "" {
		return "fleet"
	}
	clean := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}
	return strings.Map(clean, strings.ToLower(u.Hostname()))
}

// MachineURI is a machine's SPIFFE id.
func MachineURI(trustDomain, machine string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: trustDomain, Path: machinePath + machine}
}

// KeyDigest names a public key by its SubjectPublicKeyInfo.
func KeyDigest(c *x509.Certificate) [sha256.Size]byte {
	return sha256.Sum256(c.RawSubjectPublicKeyInfo)
}

// Request is a verified request for a certificate: the sender has the key.
type Request struct {
	Public *ecdsa.PublicKey
	Digest [sha256.Size]byte // as KeyDigest
}

// ParseRequest reads a PKCS #10 request in PEM. Who the certificate is for is
// not the request's to say, so one that names anybody is refused.
func ParseRequest(text string) (Request, error) {
	if len(text) > maxCSR {
		return Request{}, errors.New("the certificate request is too long")
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" || strings.TrimSpace(string(rest)) != "" {
		return Request{}, errors.New("the certificate request is not one PEM block")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return Request{}, errors.New("the certificate request is malformed")
	}
	pub, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return Request{}, errors.New("the certificate request's key is not ECDSA P-256")
	}
	if len(r.Extensions) > 0 || len(r.Subject.Names) > 0 {
		return Request{}, errors.New("the certificate request names a subject or extensions; the plane alone does")
	}
	if err := r.CheckSignature(); err != nil {
		return Request{}, errors.New("the certificate request is not signed by its key")
	}
	return Request{pub, sha256.Sum256(r.RawSubjectPublicKeyInfo)}, nil
}

// Machine issues a machine's certificate, valid until the given time or as long
// as the intermediate is. The chain is PEM, the intermediate last.
func (s *Server) Machine(r Request, machine string, now, until time.Time) (chain string, leaf *x509.Certificate, err error) {
	tmpl := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: machine},
		URIs:                  []*url.URL{MachineURI(s.TrustDomain, machine)},
		NotBefore:             now.Add(-MachineBackdate),
		NotAfter:              until,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if tmpl.NotBefore.Before(s.Intermediate.NotBefore) {
		tmpl.NotBefore = s.Intermediate.NotBefore
	}
	if tmpl.NotAfter.After(s.Intermediate.NotAfter) {
		tmpl.NotAfter = s.Intermediate.NotAfter
	}
	if leaf, err = issue(tmpl, s.Intermediate, r.Public, s.Key); err != nil {
		return "", nil, fmt.Errorf("cannot issue a machine's certificate: %w", err)
	}
	chain = string(EncodeCert(leaf)) + string(EncodeCert(s.Intermediate))
	for _, c := range s.Cross {
		chain += string(EncodeCert(c))
	}
	return chain, leaf, nil
}

// errNoMachine refuses a certificate that leads to our root and is no machine's.
var errNoMachine = errors.New("the certificate is not a machine's")

// Identify reads the machine's id out of a certificate whose chain was verified
// for client authentication. It refuses what we would not have issued.
func (s *Server) Identify(c *x509.Certificate, now time.Time) (machine string, err error) {
	// A server's certificate on a machine could speak as the plane to others.
	if !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || len(c.UnknownExtKeyUsage) > 0 || c.IsCA {
		return "", errNoMachine
	}
	if len(c.URIs) != 1 || len(c.DNSNames)+len(c.IPAddresses)+len(c.EmailAddresses) > 0 {
		return "", errNoMachine
	}
	u := c.URIs[0]
	id, ok := strings.CutPrefix(u.Path, machinePath)
	if !ok || !wire.IsMachineID(id) || u.String() != MachineURI(s.TrustDomain, id).String() {
		return "", errNoMachine
	}
	// The handshake may be hours ago.
	if now.After(c.NotAfter) || now.Before(c.NotBefore) {
		return "", errors.New("the certificate has expired")
	}
	return id, nil
}

// Trusted are the roots whose certificates are accepted, the one in use first.
func (s *Server) Trusted() []*x509.Certificate {
	var out []*x509.Certificate
	for _, r := range append([]*x509.Certificate{s.Root}, s.Roots...) {
		if !slices.ContainsFunc(out, r.Equal) && !slices.ContainsFunc(s.Retired, r.Equal) {
			out = append(out, r)
		}
	}
	return out
}

// Pool is Trusted for crypto/tls.
func (s *Server) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	for _, r := range s.Trusted() {
		p.AddCert(r)
	}
	if len(s.Cross) > 0 {
		// A machine brings the certificates that the intermediate had when it was
		// certified; by which root, does not matter hours later.
		p.AddCert(s.Intermediate)
	}
	return p
}

// bundleRefresh is how often whoever federates may ask for the bundle again.
const bundleRefresh = time.Hour

// Bundle is the trust bundle in the format of SPIFFE bundle endpoints (SPIFFE
// Trust Domain and Bundle, 4): a JWK set, each key with its root in x5c.
func (s *Server) Bundle() ([]byte, error) {
	type jwk struct {
		Use string   `json:"use"`
		Kty string   `json:"kty"`
		Crv string   `json:"crv"`
		X   string   `json:"x"`
		Y   string   `json:"y"`
		X5C []string `json:"x5c"`
	}
	doc := struct {
		Keys     []jwk `json:"keys"`
		Sequence int64 `json:"spiffe_sequence"`
		Refresh  int64 `json:"spiffe_refresh_hint"`
	}{Refresh: int64(bundleRefresh.Seconds())}
	for _, c := range s.Trusted() {
		pub, ok := c.PublicKey.(*ecdsa.PublicKey)
		if !ok {
			return nil, errors.New("cannot make the trust bundle: a root's key is not ECDSA")
		}
		point, err := pub.Bytes() // 4, X, Y
		if err != nil {
			return nil, fmt.Errorf("cannot make the trust bundle: %w", err)
		}
		half := (len(point) - 1) / 2
		coordinate := base64.RawURLEncoding.EncodeToString
		doc.Keys = append(doc.Keys, jwk{"x509-svid", "EC", pub.Curve.Params().Name, coordinate(point[1 : 1+half]), coordinate(point[1+half:]),
			[]string{base64.StdEncoding.EncodeToString(c.Raw)}})
		doc.Sequence = max(doc.Sequence, c.NotBefore.Unix())
	}
	// It grows when a root joins, which is later than the others, and again when
	// one of them leaves.
	doc.Sequence = doc.Sequence*8 + max(0, 7-int64(len(doc.Keys)))
	return json.Marshal(doc)
}
