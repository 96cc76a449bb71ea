package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"fleet.example/fleet/core/wire"
)

// Names of the files.
const (
	CurrentFile  = "certificate"
	NextFile     = "certificate.next"
	PreviousFile = "certificate.previous"
)

// Held is a key and, if it has been certified, its certificate. It is not
// changed once it is made.
type Held struct {
	Machine string
	// Answers is the plane's request that the key was made for, or zero.
	Answers time.Time
	// URL is where the certificate is accepted, Plane where it was issued.
	URL, Plane        string
	IssuedAt, Expires time.Time // by the plane's clock
	// TLS is nil as long as there is no certificate.
	TLS *tls.Certificate

	key   *ecdsa.PrivateKey
	chain string  // PEM
	at    float64 // the part of its life after which it is renewed
}

// Same reports whether both are the same key.
func (h *Held) Same(o *Held) bool { return h != nil && o != nil && h.key.Equal(o.key) }

// file is what stands on disk. The sum covers all the rest.
type file struct {
	Schema   string    `json:"schema"`
	Machine  string    `json:"machine"`
	Answers  time.Time `json:"answers,omitzero"`
	Key      string    `json:"key"` // PEM, PKCS #8
	Chain    string    `json:"chain,omitempty"`
	URL      string    `json:"url,omitempty"`
	Plane    string    `json:"plane,omitempty"`
	IssuedAt time.Time `json:"issued_at,omitzero"`
	Expires  time.Time `json:"expires_at,omitzero"`
	Sum      string    `json:"sum"`
}

const fileSchema = "fleet.machine-certificate/v1"

func (f file) sum() string {
	f.Sum = ""
	b, err := json.Marshal(f)
	if err != nil {
		panic(err) // strings and times
	}
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func encode(h *Held) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(h.key)
	if err != nil {
		return nil, err
	}
	f := file{Schema: fileSchema, Machine: h.Machine, Answers: h.Answers, Chain: h.chain, URL: h.URL, Plane: h.Plane,
		IssuedAt: h.IssuedAt, Expires: h.Expires, Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))}
	f.Sum = f.sum()
	b, err := json.Marshal(f)
	return append(b, '\n'), err
}

var errDamaged = errors.New("it is damaged")

// decode reads a file. Its errors never quote the content.
func decode(b []byte) (*Held, error) {
	var f file
	if json.Unmarshal(b, &f) != nil || f.Schema != fileSchema || f.sum() != f.Sum || !wire.IsMachineID(f.Machine) {
		return nil, errDamaged
	}
	block, _ := pem.Decode([]byte(f.Key))
	if block == nil {
		return nil, errDamaged
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errDamaged
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errDamaged
	}
	h := &Held{Machine: f.Machine, Answers: f.Answers, key: key}
	if f.Chain == "" {
		return h, nil
	}
	return h.with(wire.CertificateAnswer{Machine: f.Machine, Chain: f.Chain, URL: f.URL, IssuedAt: f.IssuedAt, ExpiresAt: f.Expires}, f.Plane)
}

// with is the key with a certificate. It refuses one that is not the key's:
// whatever a plane answers, what is on disk fits together.
func (h *Held) with(a wire.CertificateAnswer, plane string) (*Held, error) {
	var c tls.Certificate
	for rest := []byte(a.Chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(c.Certificate) == maxChain {
			return nil, errors.New("the plane's answer is no chain of certificates")
		}
		c.Certificate = append(c.Certificate, block.Bytes)
	}
	if len(c.Certificate) == 0 {
		return nil, errors.New("the plane's answer holds no certificate")
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		return nil, errors.New("the plane's answer holds a malformed certificate")
	}
	if a.Machine != h.Machine || !h.key.PublicKey.Equal(leaf.PublicKey) {
		return nil, errors.New("the plane's answer holds a certificate for another key or machine")
	}
	if _, err := wire.PlaneURL(a.URL); err != nil {
		return nil, fmt.Errorf("the plane's answer does not say where the certificate is accepted: %w", err)
	}
	if !a.IssuedAt.Before(a.ExpiresAt) {
		return nil, errors.New("the plane's answer holds a certificate that has expired")
	}
	c.PrivateKey, c.Leaf = h.key, leaf
	n := *h
	n.chain, n.URL, n.Plane, n.IssuedAt, n.Expires, n.TLS = a.Chain, a.URL, plane, a.IssuedAt, a.ExpiresAt, &c
	n.at = renewAt()
	return &n, nil
}

const maxChain = 4

// Request is the PKCS #10 request for the key, PEM. It names nobody.
func (h *Held) Request() (string, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, h.key)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }
