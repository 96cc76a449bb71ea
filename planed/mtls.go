package planed

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/api"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/datadir"
)

// authority is the plane's own, as its files were read last.
type authority struct {
	dir     string
	current atomic.Pointer[ca.Server]

	mu      sync.Mutex          // of load
	more    []string            // URLs besides the one in plane.json
	retired []*x509.Certificate // roots that are trusted no more
}

// Current is the authority in use.
func (a *authority) Current() *ca.Server { return a.current.Load() }

// Retire is part of signed.Authority.
func (a *authority) Retire(roots []*x509.Certificate) error {
	a.mu.Lock()
	a.retired = roots
	a.mu.Unlock()
	return a.load()
}

func openAuthority(dir string, p datadir.Plane) (*authority, error) {
	a := &authority{dir: dir, more: p.Former}
	return a, a.load()
}

// at has the certificate be for these URLs.
func (a *authority) at(urls []string) error {
	a.mu.Lock()
	a.more = urls
	a.mu.Unlock()
	return a.load()
}

// load reads the files again. What was issued under the intermediate before
// stays valid.
func (a *authority) load() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, err := datadir.Load(a.dir)
	if err != nil {
		return err
	}
	s, err := datadir.Authority(a.dir, p)
	if err != nil {
		return err
	}
	s.More, s.Retired = a.more, a.retired
	if _, err := s.Certificate(); err != nil {
		return err
	}
	a.current.Store(s)
	return nil
}

func (a *authority) Certificate() (*tls.Certificate, error) { return a.current.Load().Certificate() }

func (a *authority) Machine(r ca.Request, machine string, now, until time.Time) (string, *x509.Certificate, error) {
	return a.current.Load().Machine(r, machine, now, until)
}

func (a *authority) Identify(c *x509.Certificate, now time.Time) (string, error) {
	return a.current.Load().Identify(c, now)
}

func (a *authority) Bundle() ([]byte, error) { return a.current.Load().Bundle() }

var (
	_ certificates  = (*authority)(nil)
	_ api.Authority = (*authority)(nil)
)

// mtlsConfig is TLS of the listener that wants a machine's certificate: every
// handshake reads anew what is presented and what is trusted, and none is
// resumed, since that would skip the certificate.
func (s *server) mtlsConfig() *tls.Config {
	base := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"http/1.1"},
		SessionTicketsDisabled: true,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		GetCertificate:         s.present,
		VerifyConnection: func(st tls.ConnectionState) error {
			if len(st.VerifiedChains) == 0 {
				return errors.New("no verified certificate")
			}
			_, err := s.authority.Identify(st.VerifiedChains[0][0], time.Now())
			return err
		},
	}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := base.Clone()
		c.GetConfigForClient = nil
		c.ClientCAs = s.authority.current.Load().Pool()
		return c, nil
	}
	return base
}

// listenMTLS opens the listener of the rung of mutual TLS, if one is wanted.
func (s *server) listenMTLS() (net.Listener, error) {
	o := s.opts
	if o.MTLSListen == "" {
		// Nothing but a certificate is taken from machines on that rung.
		if n := s.store.Certificates(time.Now(), nil).Machines; n > 0 {
			return nil, fault.New(fault.Refused, "mtls_listener_missing", "machines that are known by certificates alone: %d; without --mtls-listen none of them gets in", n).
				WithHint("give --mtls-listen ADDR as before; fleet rotate --kind bearer takes machines off the mtls rung")
		}
		return nil, nil
	}
	l, err := listenTCP(o.MTLSListen, "--mtls-listen")
	if err != nil {
		return nil, err
	}
	if o.MTLSURL == "" {
		u, err := url.Parse(o.Plane.URL)
		if err != nil {
			l.Close()
			return nil, err
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		o.MTLSURL = "https://" + net.JoinHostPort(u.Hostname(), port)
	}
	return l, nil
}

// mtlsURL checks what --mtls-url says: certificates are for the plane's host.
func mtlsURL(given string, plane datadir.Plane) (string, error) {
	if given == "" {
		return "", nil
	}
	at, err := wire.PlaneURL(given)
	if err != nil {
		return "", fault.Usagef("--mtls-url: %s", err)
	}
	for _, own := range append([]string{plane.URL}, plane.Former...) {
		a, errA := url.Parse(at)
		b, errB := url.Parse(own)
		if errA == nil && errB == nil && a.Hostname() == b.Hostname() {
			return at, nil
		}
	}
	return "", fault.Usagef("--mtls-url: the plane's certificate is for the host of %s", plane.URL)
}

func certificateLife(life, testFloor time.Duration) error {
	if testFloor > 0 {
		if life < time.Second {
			return fault.Usagef("--certificate-life %s is too short even for a lab", life)
		}
		return nil
	}
	if life < api.MinCertificateLife || life > api.MaxCertificateLife {
		return fault.Usagef("--certificate-life is from %s to %s", api.MinCertificateLife, api.MaxCertificateLife)
	}
	return nil
}

// newMachineServer serves the machines' part of the interface.
func (s *server) newMachineServer(from *http.Server) *http.Server {
	return &http.Server{Handler: s.api.MachineHandler(), MaxHeaderBytes: maxHeaders, ErrorLog: from.ErrorLog, ConnState: s.count,
		Protocols: http1(), TLSConfig: s.mtlsConfig()}
}

func (s *server) present(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c, err := s.certs.Certificate()
	if err != nil {
		err = fmt.Errorf("cannot present a certificate: %w", err)
		s.opts.Log.Error("cannot present a certificate", "error", err.Error())
	}
	return c, err
}
