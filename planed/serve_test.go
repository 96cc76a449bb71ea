package planed_test

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/planed/ca"
)

func TestTheServiceManagerIsTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "n")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "300000")
	p := newPlane(t)
	expect := func(want string) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, 100)
		for {
			n, err := c.Read(b)
			if err != nil {
				t.Fatalf("no %s: %v", want, err)
			}
			if string(b[:n]) == want {
				return
			}
		}
	}
	expect("READY=1")
	expect("WATCHDOG=1")
	if code := p.term(); code != 0 {
		t.Fatal(code)
	}
	expect("STOPPING=1")
}

func TestConnectionsAboveTheBoundAreClosed(t *testing.T) {
	p := newPlane(t, "--keep-connections", "1")
	closed := 0
	for range 3 {
		c := p.machineHTTP()
		resp, err := c.Get(p.url + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body) // or the client would close it
		resp.Body.Close()
		if resp.Close {
			closed++
		}
	}
	if closed != 2 {
		t.Errorf("%d of 3 connections were closed, want 2", closed)
	}
}

// presented dials and returns the chain.
func (p *plane) presented() []string {
	p.t.Helper()
	c, err := tls.Dial("tcp", "127.0.0.1"+p.url[strings.LastIndex(p.url, ":"):], &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	if v := c.ConnectionState().Version; v != tls.VersionTLS13 {
		p.t.Errorf("TLS version %x", v)
	}
	var pins []string
	for _, cert := range c.ConnectionState().PeerCertificates {
		pins = append(pins, ca.Pin(cert))
	}
	return pins
}

func TestTheChainEndsInTheRootAndOlderTLSIsRefused(t *testing.T) {
	p := newPlane(t)
	if chain := p.presented(); len(chain) != 3 || chain[2] != p.pin {
		t.Errorf("%v", chain)
	}
	_, err := tls.Dial("tcp", "127.0.0.1"+p.url[strings.LastIndex(p.url, ":"):], &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	if err == nil {
		t.Error("TLS 1.2 was spoken")
	}
}

func writeCert(t *testing.T, dir string) (pin string) {
	t.Helper()
	key, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.NewRoot(key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	k, err := ca.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "cert"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), 0o600)
	os.WriteFile(filepath.Join(dir, "key"), k, 0o600)
	return ca.Pin(cert)
}

func TestSIGHUPReadsTheCertificateAgain(t *testing.T) {
	dir := t.TempDir()
	first := writeCert(t, dir)
	p := initPlane(t, filepath.Join(t.TempDir(), "data"), "--tls-cert", filepath.Join(dir, "cert"), "--tls-key", filepath.Join(dir, "key"))
	p.start()
	if got := p.presented()[0]; got != first {
		t.Fatal(got)
	}
	os.WriteFile(filepath.Join(dir, "cert"), []byte("torn"), 0o600)
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.until("the bad certificate is refused", func() bool { return strings.Contains(p.log.String(), "keeping the certificate") })
	if got := p.presented()[0]; got != first {
		t.Fatal(got)
	}
	second := writeCert(t, dir)
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.until("the new certificate is presented", func() bool { return p.presented()[0] == second })
}

func TestMetricsHaveAListenerOfTheirOwn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	p := newPlane(t, "--metrics-listen", addr)
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	b.ReadFrom(resp.Body)
	if !strings.Contains(b.String(), "fleet_machines 0") {
		t.Error(b.String())
	}
	if resp, err := p.machineHTTP().Get(p.url + "/metrics"); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Error(resp, err)
	}
}
