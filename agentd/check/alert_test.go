package check

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"testing"
	"time"
)

// expiredAlert is what a client hears of a server that takes its certificate to
// be expired, in the form that package tls gives it.
var expiredAlert = &url.Error{Op: "Post", URL: "https://plane/", Err: &net.OpError{Op: "remote error", Err: errors.New("tls: expired certificate")}}

// What is recognised is what a real handshake says, and nothing else is.
func TestARefusalInTheHandshakeIsRecognised(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	own, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(own)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ask := func(certs ...tls.Certificate) error {
		c := s.Client()
		c.Transport.(*http.Transport).TLSClientConfig.Certificates = certs
		c.CloseIdleConnections()
		resp, err := c.Get(s.URL)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := ask(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}); !alerted(err) {
		t.Errorf("%v is not recognised", err)
	}
	if !alerted(expiredAlert) {
		t.Error("what the other tests use is not recognised")
	}
	s.CloseClientConnections()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	_, dialErr := net.Dial("tcp", closed.Addr().String())
	for _, err := range []error{nil, io.EOF, dialErr, os.ErrDeadlineExceeded, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}} {
		if alerted(err) {
			t.Errorf("%v is none", err)
		}
	}
}
