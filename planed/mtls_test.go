package planed_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/federation"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
)

// TestWhatIsNoCertificateOfOursIsRefused: whatever a certificate says of itself,
// it opens nothing unless our root is behind it, its purpose is a client's
// alone, its time is now, and the row knows its key. // R13, R27
func TestWhatIsNoCertificateOfOursIsRefused(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	c := p.owner()
	m, other := p.climb(c, mtls, "box"), p.climb(c, mtls, "other")
	ours := p.authority()
	leafOf := func(c tls.Certificate) []byte { return c.Certificate[0] }
	for name, cert := range map[string]tls.Certificate{
		"of another authority": forge(t, anotherCA(t), m.id, m.key, nil),
		"of itself": func() tls.Certificate {
			der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), URIs: []*url.URL{ca.MachineURI("localhost", m.id)},
				NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
				&x509.Certificate{SerialNumber: big.NewInt(1)}, m.key.Public(), m.key)
			if err != nil {
				t.Fatal(err)
			}
			return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: m.key}
		}(),
		"expired":       forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
		"not yet valid": forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }),
		"with serverAuth": forge(t, ours, m.id, m.key, func(c *x509.Certificate) {
			c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		}),
		"a server's":                  forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
		"for any purpose":             forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }),
		"without a purpose":           forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.ExtKeyUsage = nil }),
		"of another trust domain":     forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.URIs[0].Host = "elsewhere" }),
		"with two names":              forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.URIs = append(c.URIs, ca.MachineURI("localhost", other.id)) }),
		"with a host's name too":      forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.DNSNames = []string{"localhost"} }),
		"with a path that goes on":    forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.URIs[0].Path += "/x" }),
		"with a query":                forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.URIs[0].RawQuery = "a=b" }),
		"whose name is its subject's": forge(t, ours, m.id, m.key, func(c *x509.Certificate) { c.URIs = nil }),
		"an authority's":              {Certificate: [][]byte{ours.Intermediate.Raw}, PrivateKey: ours.Key},
		"with another's signature":    {Certificate: [][]byte{append(slices.Clone(leafOf(m.cert)[:len(leafOf(m.cert))-4]), 1, 2, 3, 4), ours.Intermediate.Raw}, PrivateKey: m.key},
	} {
		if status, words := m.over(cert, wire.PathCheck, running); status != 0 || !strings.Contains(words, "remote error: tls: ") {
			t.Errorf("a certificate %s gets %d %s", name, status, words)
		}
	}
	// Under our own intermediate, with a key that the row does not know: by
	// somebody who has the intermediate, or issued it otherwise.
	for name, cert := range map[string]tls.Certificate{
		"for a key that was never certified": forge(t, ours, m.id, ecKey(t), nil),
		"for another machine's key":          forge(t, ours, m.id, other.key, nil),
		"of a machine that never was":        forge(t, ours, "m_aaaaaaaaaaaaaaaaaaaaaaaaaa", m.key, nil),
	} {
		if status, words := m.over(cert, wire.PathCheck, running); status != http.StatusUnauthorized {
			t.Errorf("a certificate %s gets %d %s", name, status, words)
		}
	}
	if _, err := m.http.Get(mtls + wire.PathHealthz); err == nil {
		t.Error("without a certificate the listener answers")
	}
	// The subject is the certificate's whatever the headers and the body say.
	before, err := c.Machine(t.Context(), other.id)
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequest("POST", mtls+wire.PathCheck, strings.NewReader(strings.Replace(running, `{"name"`, `{"machine":"`+other.id+`","name"`, 1)))
	req.Header.Set("Authorization", "Bearer "+other.id+"."+other.secret.Reveal())
	req.Header.Set(wire.HeaderCheck, "instance=z; seq=1")
	for _, h := range []string{"X-Fleet-Machine", "X-Forwarded-Client-Cert", "X-SSL-Client-S-DN", "X-Client-Cert"} {
		req.Header.Set(h, `By=spiffe://localhost;URI=`+ca.MachineURI("localhost", other.id).String())
	}
	resp, err := m.with(m.cert).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var a wire.CheckAnswer
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || a.Machine != m.id {
		t.Error(a, err)
	}
	resp.Body.Close()
	if after, err := c.Machine(t.Context(), other.id); err != nil || !after.LastCheck.Equal(before.LastCheck.Time) {
		t.Error("the other machine was heard", err)
	}
	// Persons are not served there.
	if status, _ := m.over(m.cert, wire.PathLogout, ""); status != http.StatusNotFound {
		t.Error(status)
	}
	if status, words := m.over(m.cert, wire.PathCheck, running); status != http.StatusOK {
		t.Error(status, words)
	}
}

// TestAStolenBearerOnTheMTLSRungGetsARefusal and nothing else, though it is the
// right one, at every endpoint. // R22, R27
func TestAStolenBearerOnTheMTLSRungGetsARefusal(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	c := p.owner()
	m := p.climb(c, mtls, "box")
	_, nobody, err := (&climber{box: &box{p: p, id: m.id, instance: "i", http: m.http}}).post(wire.PathCheck, secret.New("fm_"), running)
	if err != nil {
		t.Fatal(err)
	}
	thief := ecKey(t)
	for path, body := range map[string]string{
		wire.PathCheck:       running,
		wire.PathRotate:      fmt.Sprintf(`{"generation":2,"digest":"%s"}`, secret.New("fm_").Digest().Hex()),
		wire.PathCertificate: fmt.Sprintf(`{"csr":%q}`, csr(t, &x509.CertificateRequest{}, thief)),
	} {
		status, out, err := m.post(path, m.secret, body)
		if err != nil || status != http.StatusUnauthorized || !bytes.Equal(out, nobody) {
			t.Errorf("%s: %d %s %v", path, status, out, err)
		}
	}
	// A person's wish to replace the credential gives the thief nothing either.
	for _, kind := range []string{"", wire.KindMTLS, wire.KindBearer} {
		if _, err := c.AskToRotate(t.Context(), m.id, 0, kind); err != nil {
			t.Fatal(err)
		}
		if status, _, _ := m.post(wire.PathCheck, m.secret, running); status != http.StatusUnauthorized {
			t.Errorf("asked for %q: a check gets %d", kind, status)
		}
		if status, _ := m.certify(thief, nil); status != http.StatusUnauthorized {
			t.Errorf("asked for %q: a certificate for another key gets %d", kind, status)
		}
	}
	// Nor does the certified key without the bearer, or another machine's bearer.
	if status, _, err := m.do(m.cert, wire.PathCertificate, fmt.Sprintf(`{"csr":%q}`, csr(t, &x509.CertificateRequest{}, m.key)), ""); err != nil || status != http.StatusUnauthorized {
		t.Error(status, err)
	}
	other := p.climb(c, mtls, "other")
	if status, _, err := m.do(m.cert, wire.PathCertificate, fmt.Sprintf(`{"csr":%q}`, csr(t, &x509.CertificateRequest{}, thief)),
		"Bearer "+other.id+"."+other.secret.Reveal()); err != nil || status != http.StatusUnauthorized {
		t.Error(status, err)
	}
	// The machine itself gets another one, though its own expired long ago.
	if status, body := m.certify(m.key, nil); status != http.StatusOK {
		t.Error(status, body)
	}
	if status, body := m.over(m.cert, wire.PathCheck, running); status != http.StatusOK {
		t.Error(status, body)
	}
	seen, err := c.Machine(t.Context(), m.id)
	if err != nil || seen.Credential.Kind != wire.KindMTLS || seen.Credential.BarredAt == nil || seen.Credential.ExpiresAt == nil {
		t.Errorf("%+v %v", seen.Credential, err)
	}
}

// TestComingDownTakesAFreshSecret: the secret that a machine climbed with never
// opens anything again, and neither does the key that it leaves. // R20, R27
func TestComingDownTakesAFreshSecret(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	c := p.owner()
	m := p.climb(c, mtls, "box")
	if _, err := c.AskToRotate(t.Context(), m.id, 0, wire.KindBearer); err != nil {
		t.Fatal(err)
	}
	next := secret.New("fm_")
	if status, body := m.over(m.cert, wire.PathRotate, fmt.Sprintf(`{"generation":2,"digest":"%s"}`, next.Digest().Hex())); status != http.StatusOK {
		t.Fatal(status, body)
	}
	// Until it is used the certificate is accepted, and again after a kill.
	p.kill()
	p.start()
	if status, body := m.over(m.cert, wire.PathCheck, running); status != http.StatusOK {
		t.Fatal(status, body)
	}
	if status, _, _ := m.post(wire.PathCheck, m.secret, running); status != http.StatusUnauthorized {
		t.Errorf("the secret of before gets %d", status)
	}
	kept := m.with(m.cert)
	if status, _, err := m.send(kept, wire.PathCheck, running, ""); status != http.StatusOK {
		t.Fatal(status, err)
	}
	if status, body, _ := m.post(wire.PathCheck, next, running); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if status, out, _ := m.send(kept, wire.PathCheck, running, ""); status != http.StatusConflict {
		t.Errorf("the certificate on its live connection gets %d %s", status, out)
	}
	if status, body := m.certify(m.key, nil); status != http.StatusConflict {
		t.Errorf("the key of before, with the secret of before, gets %d %s", status, body)
	}
	m.secret = next
	if status, body := m.certify(m.key, nil); status != http.StatusConflict {
		t.Errorf("the key of before gets %d %s", status, body)
	}
	if status, _ := m.certify(ecKey(t), nil); status != http.StatusUnauthorized {
		t.Errorf("without a person's wish a key gets %d", status)
	}
	// Up again, with another key.
	if _, err := c.AskToRotate(t.Context(), m.id, 0, wire.KindMTLS); err != nil {
		t.Fatal(err)
	}
	if status, body := m.certify(ecKey(t), nil); status != http.StatusOK {
		t.Fatal(status, body)
	}
	m.mustCheck(running) // as long as the certificate was not used
	if status, body := m.over(m.cert, wire.PathCheck, running); status != http.StatusOK {
		t.Fatal(status, body)
	}
	if status, _, _ := m.post(wire.PathCheck, next, running); status != http.StatusUnauthorized {
		t.Error(status)
	}
}

// TestAKeyIsReplacedOverTheKeyThatGoes. // R27
func TestAKeyIsReplacedOverTheKeyThatGoes(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	c := p.owner()
	m := p.climb(c, mtls, "box")
	old := m.cert
	key := ecKey(t)
	if status, body := m.certify(key, &old); status != http.StatusOK {
		t.Fatal(status, body)
	}
	fresh := m.cert
	if status, _ := m.over(old, wire.PathCheck, running); status != http.StatusOK {
		t.Error("before the new one is used the old one gets", status)
	}
	if status, body := m.over(fresh, wire.PathCheck, running); status != http.StatusOK {
		t.Fatal(status, body)
	}
	if status, body := m.over(old, wire.PathCheck, running); status != http.StatusConflict || !strings.Contains(body, wire.CodeBehind) {
		t.Error(status, body)
	}
	// A disk that went back, or was copied, brings the key before back to nobody.
	if status, _ := m.certify(old.PrivateKey.(*ecdsa.PrivateKey), &fresh); status != http.StatusConflict {
		t.Error(status)
	}
}

// TestDeletionCutsALiveCertificate at its next request, on the connection that
// is open. // R23, R27
func TestDeletionCutsALiveCertificate(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	c := p.owner()
	m := p.climb(c, mtls, "box")
	kept := m.with(m.cert)
	if status, _, err := m.send(kept, wire.PathCheck, running, ""); status != http.StatusOK {
		t.Fatal(status, err)
	}
	if _, err := c.Delete(t.Context(), m.id); err != nil {
		t.Fatal(err)
	}
	status, out, err := m.send(kept, wire.PathCheck, running, "")
	if err != nil || status != http.StatusGone || !strings.Contains(string(out), m.id) {
		t.Errorf("%d %s %v", status, out, err)
	}
	if status, body := m.certify(m.key, nil); status != http.StatusGone {
		t.Error(status, body)
	}
	if status, body := m.over(m.cert, wire.PathRotate, fmt.Sprintf(`{"generation":2,"digest":"%s"}`, secret.New("fm_").Digest().Hex())); status != http.StatusGone {
		t.Error(status, body)
	}
}

// TestACertificateEndsOnALiveConnection: the handshake is over, the certificate
// is not good any more. // R27
func TestACertificateEndsOnALiveConnection(t *testing.T) {
	p, mtls := newMTLSPlane(t, "--test-floor", "100ms", "--certificate-life", "10s")
	c := p.owner()
	m := p.climb(c, mtls, "box")
	kept := m.with(m.cert)
	status, _, err := m.send(kept, wire.PathCheck, running, "")
	if err != nil || status != http.StatusOK && status != http.StatusUnauthorized {
		t.Fatal(status, err)
	}
	p.until("the certificate ends", func() bool {
		status, _, _ = m.send(kept, wire.PathCheck, running, "")
		return status != http.StatusOK
	})
	// A plane that closed the connection answered so first; a new one is refused
	// in the handshake.
	if status != http.StatusUnauthorized && status != 0 {
		t.Error(status)
	}
	if status, body := m.certify(m.key, nil); status != http.StatusOK {
		t.Error(status, body)
	}
}

// TestCertificatesAreWhatOthersTakeForOne: openssl and go-spiffe accept a
// machine's certificate, as a client's and nothing else, and the trust bundle.
func TestCertificatesAreWhatOthersTakeForOne(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	m := p.climb(p.owner(), mtls, "box")
	dir := t.TempDir()
	leaf, inter := m.cert.Certificate[0], m.cert.Certificate[1]
	files := map[string][]byte{"root.pem": []byte(p.roots),
		"leaf.pem":  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf}),
		"inter.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: inter})}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openssl := func(args ...string) (string, error) {
		out, err := exec.Command("openssl", args...).CombinedOutput()
		return string(out), err
	}
	verify := []string{"verify", "-x509_strict", "-CAfile", filepath.Join(dir, "root.pem"), "-untrusted", filepath.Join(dir, "inter.pem"), "-purpose"}
	if out, err := openssl(append(slices.Clone(verify), "sslclient", filepath.Join(dir, "leaf.pem"))...); err != nil {
		t.Errorf("openssl: %s", out)
	}
	if out, err := openssl(append(slices.Clone(verify), "sslserver", filepath.Join(dir, "leaf.pem"))...); err == nil {
		t.Errorf("openssl takes it for a server's: %s", out)
	}
	text, err := openssl("x509", "-in", filepath.Join(dir, "leaf.pem"), "-noout", "-text")
	if err != nil || !strings.Contains(text, "URI:spiffe://localhost/machine/"+m.id) || strings.Contains(text, "TLS Web Server") {
		t.Error(text)
	}

	domain := spiffeid.RequireTrustDomainFromString("localhost")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots))
	bundle, err := federation.FetchBundle(t.Context(), domain, p.url+wire.PathTrustBundle, federation.WithWebPKIRoots(pool))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := bundle.SequenceNumber(); !ok || n == 0 || len(bundle.X509Authorities()) != 1 {
		t.Error(n, ok)
	}
	if _, ok := bundle.RefreshHint(); !ok {
		t.Error("no refresh hint")
	}
	id, _, err := x509svid.ParseAndVerify([][]byte{leaf, inter}, x509bundle.FromX509Authorities(domain, bundle.X509Authorities()))
	if err != nil || id.String() != "spiffe://localhost/machine/"+m.id {
		t.Error(id, err)
	}
	c, err := x509.ParseCertificate(leaf)
	if err != nil {
		t.Fatal(err)
	}
	if life := time.Until(c.NotAfter); life > 8*time.Hour || life < 7*time.Hour || time.Since(c.NotBefore) < 50*time.Minute {
		t.Errorf("from %v to %v", c.NotBefore, c.NotAfter)
	}
}

// TestACertificateRequestThatNamesSomebodyIsRefused. // R13
func TestACertificateRequestThatNamesSomebodyIsRefused(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	c := p.owner()
	m, other := p.climb(c, mtls, "box"), p.climb(c, mtls, "other")
	rsaLike := ecKey(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := csr(t, &x509.CertificateRequest{}, m.key)
	block, _ := pem.Decode([]byte(good))
	block.Bytes[len(block.Bytes)-1] ^= 1
	for name, body := range map[string]string{
		"another's SPIFFE id": csr(t, &x509.CertificateRequest{URIs: []*url.URL{ca.MachineURI("localhost", other.id)}}, m.key),
		"a host":              csr(t, &x509.CertificateRequest{DNSNames: []string{"localhost"}}, m.key),
		"a subject":           csr(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: other.id}}, rsaLike),
		"another curve":       csr(t, &x509.CertificateRequest{}, p384),
		"a broken signature":  string(pem.EncodeToMemory(block)),
		"two requests":        good + good,
		"nothing":             "",
		"too much":            good + strings.Repeat(" ", 5000),
	} {
		doc, err := json.Marshal(wire.CertificateRequest{CSR: body})
		if err != nil {
			t.Fatal(err)
		}
		if status, out, err := m.post(wire.PathCertificate, m.secret, string(doc)); err != nil || status != http.StatusBadRequest {
			t.Errorf("%s: %d %s %v", name, status, out, err)
		}
	}
}

// TestAnIntermediateIsReplacedUnderARunningPlane: what was issued before stays
// good, what is issued and presented afterwards is the new one's, and nothing
// restarts. // R27
func TestAnIntermediateIsReplacedUnderARunningPlane(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	m := p.climb(p.owner(), mtls, "box")
	old := m.cert
	kept := m.with(old)
	if status, _, err := m.send(kept, wire.PathCheck, running, ""); status != http.StatusOK {
		t.Fatal(status, err)
	}
	before := p.presented()
	out, errOut, exit := planed(t, "ca", "renew", "--data", p.dir, "--rehearse")
	if exit != 0 {
		t.Fatal(out, errOut)
	}
	if now := p.authority(); sha256.Sum256(now.Intermediate.Raw) != sha256.Sum256(old.Certificate[1]) {
		t.Fatal("a rehearsal changed the intermediate")
	}
	if out, errOut, exit = planed(t, "ca", "renew", "--data", p.dir); exit != 0 {
		t.Fatal(out, errOut)
	}
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.until("the new chain is presented", func() bool { return !slices.Equal(p.presented(), before) })
	if status, _, err := m.send(kept, wire.PathCheck, running, ""); status != http.StatusOK {
		t.Error("the kept connection:", status, err)
	}
	if status, body := m.over(old, wire.PathCheck, running); status != http.StatusOK {
		t.Error("the certificate of before:", status, body)
	}
	if status, body := m.certify(m.key, nil); status != http.StatusOK {
		t.Fatal(status, body)
	}
	if bytes.Equal(m.cert.Certificate[1], old.Certificate[1]) {
		t.Error("the old intermediate issued it")
	}
	if status, body := m.over(m.cert, wire.PathCheck, running); status != http.StatusOK {
		t.Error(status, body)
	}
}

// TestThePlaneDoesNotStartWithoutTheListenerThatMachinesNeed. // R27
func TestThePlaneDoesNotStartWithoutTheListenerThatMachinesNeed(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	c := p.owner()
	m := p.climb(c, mtls, "box")
	if code := p.term(); code != 0 {
		t.Fatal(code)
	}
	_, errOut, exit := planed(t, "serve", "--data", p.dir, "--listen", "127.0.0.1:0")
	if exit != 9 || !strings.Contains(errOut, "--mtls-listen") {
		t.Errorf("%d %s", exit, errOut)
	}
	p.start()
	if _, err := c.Delete(t.Context(), m.id); err != nil {
		t.Fatal(err)
	}
}

// TestWithoutTheListenerNobodyIsAskedToClimb.
func TestWithoutTheListenerNobodyIsAskedToClimb(t *testing.T) {
	p := newPlane(t)
	c := p.owner()
	b := p.newBox()
	b.admit(c, "box")
	b.mustCheck(running)
	if _, err := c.AskToRotate(t.Context(), b.id, 0, wire.KindMTLS); err == nil || !strings.Contains(err.Error(), "listener") {
		t.Error(err)
	}
	status, out, err := b.post(wire.PathCertificate, b.secret, fmt.Sprintf(`{"csr":%q}`, csr(t, &x509.CertificateRequest{}, ecKey(t))))
	if err != nil || status != http.StatusConflict {
		t.Errorf("%d %s %v", status, out, err)
	}
}

// TestBehindAGateASleeperOfTheMTLSRungGetsBackIn: its certificate has ended and
// its gate token was replaced. It asks for a certificate and fetches the token in
// front of the gate; its bearer alone brings it no token. // R26, R27
func TestBehindAGateASleeperOfTheMTLSRungGetsBackIn(t *testing.T) {
	p, mtls := newMTLSPlane(t)
	c := p.owner()
	m := p.climb(c, mtls, "box")
	if code := p.term(); code != 0 {
		t.Fatal(code)
	}
	file := filepath.Join(t.TempDir(), "gate")
	if out, errOut, exit := planed(t, "gate", "new", file, "--version", "7"); exit != 0 {
		t.Fatal(out, errOut)
	}
	p.flags = append(p.flags, "--gate-token-file", file)
	p.start()
	if status, _, err := m.post(wire.PathCheck, m.secret, running); err != nil || status != http.StatusUnauthorized {
		t.Error(status, err)
	}
	if status, body := m.certify(m.key, nil); status != http.StatusOK {
		t.Fatal(status, body)
	}
	if status, body := m.over(m.cert, wire.PathCheck, running); status != http.StatusUnauthorized {
		t.Errorf("without the token a check gets %d %s", status, body)
	}
	fetch := func(via *http.Client, url, auth string) (int, wire.Material) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+wire.PathMaterial+"/"+wire.MaterialGate+"/7", nil)
		if err != nil {
			t.Fatal(err)
		}
		if auth != "" {
			req.Header.Set("Authorization", auth)
		}
		resp, err := via.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var doc wire.Material
		json.NewDecoder(resp.Body).Decode(&doc)
		return resp.StatusCode, doc
	}
	if status, _ := fetch(m.http, p.url, "Bearer "+m.id+"."+m.secret.Reveal()); status != http.StatusUnauthorized {
		t.Errorf("the bearer alone fetches the token: %d", status)
	}
	status, doc := fetch(m.with(m.cert), mtls, "")
	if status != http.StatusOK || doc.Value != valueOf(t, file).Value {
		t.Fatalf("%d", status)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mtls+wire.PathCheck, strings.NewReader(running))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderCheck, "instance=z; seq=1")
	req.Header.Set(wire.HeaderGate, doc.Value)
	resp, err := m.with(m.cert).Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
}
