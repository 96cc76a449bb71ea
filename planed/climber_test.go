package planed_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/datadir"
)

// climber is a machine that has a key.
type climber struct {
	*box
	mtls  string
	key   *ecdsa.PrivateKey
	chain string
	cert  tls.Certificate
}

// newMTLSPlane is a plane with a listener for certificates.
func newMTLSPlane(t *testing.T, flags ...string) (p *plane, mtls string) {
	t.Helper()
	port := freePort(t)
	p = newPlane(t, append([]string{"--mtls-listen", fmt.Sprintf("127.0.0.1:%d", port)}, flags...)...)
	return p, fmt.Sprintf("https://localhost:%d", port)
}

// climb takes a machine to the rung of mutual TLS.
func (p *plane) climb(c *planeclient.Client, mtls, name string) *climber {
	p.t.Helper()
	m := &climber{box: p.newBox(), mtls: mtls, key: ecKey(p.t)}
	m.admit(c, name)
	m.mustCheck(running)
	if _, err := c.AskToRotate(p.t.Context(), m.id, 0, wire.KindMTLS); err != nil {
		p.t.Fatal(err)
	}
	if status, body := m.certify(m.key, nil); status != http.StatusOK {
		p.t.Fatalf("certify: %d %s", status, body)
	}
	if status, body := m.over(m.cert, wire.PathCheck, running); status != http.StatusOK {
		p.t.Fatalf("check: %d %s", status, body)
	}
	return m
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func csr(t *testing.T, tmpl *x509.CertificateRequest, key crypto.Signer) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// certify asks with the bearer, and with the certificate of the connection if
// one is given; what it gets it keeps.
func (m *climber) certify(key *ecdsa.PrivateKey, over *tls.Certificate) (int, string) {
	t := m.p.t
	t.Helper()
	body, err := json.Marshal(wire.CertificateRequest{CSR: csr(t, &x509.CertificateRequest{}, key)})
	if err != nil {
		t.Fatal(err)
	}
	var status int
	var out []byte
	if over == nil {
		status, out, err = m.post(wire.PathCertificate, m.secret, string(body))
	} else {
		status, out, err = m.do(*over, wire.PathCertificate, string(body), "Bearer "+m.id+"."+m.secret.Reveal())
	}
	if err != nil {
		t.Fatal(err)
	}
	var a wire.CertificateAnswer
	if status == http.StatusOK {
		if err := json.Unmarshal(out, &a); err != nil {
			t.Fatal(err)
		}
		m.key, m.chain = key, a.Chain
		m.cert = pair(t, a.Chain, key)
		if a.URL != m.mtls {
			t.Errorf("it is sent to %s", a.URL)
		}
	}
	return status, string(out)
}

func pair(t *testing.T, chain string, key *ecdsa.PrivateKey) tls.Certificate {
	t.Helper()
	k, err := ca.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair([]byte(chain), k)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// with is an HTTP client that presents the certificate; it keeps connections.
func (m *climber) with(c tls.Certificate) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(m.p.roots))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }}}
	m.p.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func (m *climber) do(c tls.Certificate, path, body, auth string) (int, []byte, error) {
	return m.send(m.with(c), path, body, auth)
}

func (m *climber) send(via *http.Client, path, body, auth string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(context.Background(), "POST", m.mtls+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	m.seq++
	req.Header.Set(wire.HeaderCheck, wire.CheckMark{Instance: m.instance, Seq: m.seq, Clock: time.Now()}.String())
	resp, err := via.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, out, err
}

// over sends a request over a fresh connection with the certificate. Status 0
// is a refusal of the handshake.
func (m *climber) over(c tls.Certificate, path, body string) (int, string) {
	status, out, err := m.do(c, path, body, "")
	if err != nil {
		return 0, err.Error()
	}
	return status, string(out)
}

// authority reads the plane's keys, as one who broke in would.
func (p *plane) authority() *ca.Server {
	p.t.Helper()
	plane, err := datadir.Load(p.dir)
	if err != nil {
		p.t.Fatal(err)
	}
	a, err := datadir.Authority(p.dir, plane)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// forge makes a certificate under the given authority.
func forge(t *testing.T, under *ca.Server, id string, key *ecdsa.PrivateKey, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	now := time.Now()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: id}, URIs: []*url.URL{ca.MachineURI("localhost", id)},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if change != nil {
		change(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, under.Intermediate, key.Public(), under.Key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, under.Intermediate.Raw}, PrivateKey: key}
}

// anotherCA is a whole authority that is not the plane's.
func anotherCA(t *testing.T) *ca.Server {
	t.Helper()
	rootKey, key := ecKey(t), ecKey(t)
	root, err := ca.NewRoot(rootKey, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	inter, err := ca.NewIntermediate(root, rootKey, key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &ca.Server{Root: root, Intermediate: inter, Key: key, Now: time.Now, TrustDomain: "localhost"}
}
