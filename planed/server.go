package planed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/addrfree"
	"fleet.example/fleet/planed/admin"
	"fleet.example/fleet/planed/api"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/gate"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/signed"
	"fleet.example/fleet/planed/store"
	"fleet.example/fleet/planed/store/bolt"
	"fleet.example/fleet/planed/web"
)

const (
	drainFor   = 20 * time.Second
	maxHeaders = 16 << 10
)

// server is a running plane.
type server struct {
	opts  *serveOpts
	store *bolt.Store
	api   *api.API
	certs certificates
	// authority is the plane's own, whoever's certificate it presents.
	authority *authority
	sink      *audit.Sink
	started   time.Time
	conns     atomic.Int64
	guard     *guard
	gate      *gate.Gate // nil without --gate-token-file
	engine    *rotation.Engine
	place     *signed.URL
	trust     *signed.Trust      // nil with --tls-cert
	moving    []*rotation.Engine // of what a person signs

	public  *http.Server
	mtls    *http.Server // nil without --mtls-listen
	admin   *http.Server
	metrics *http.Server // nil without --metrics-listen

	listeners []net.Listener // all of them, to close
	serving   []func() error // one for each
	ended     chan error     // what a listener's server returned before its time
	wg        sync.WaitGroup
}

// certificates presents the server's chain.
type certificates interface {
	Certificate() (*tls.Certificate, error)
}

// fileCert is --tls-cert and --tls-key.
type fileCert struct {
	certFile, keyFile string
	current           atomic.Pointer[tls.Certificate]
}

func (f *fileCert) load() error {
	c, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return fmt.Errorf("cannot read the certificate: %w", err)
	}
	f.current.Store(&c)
	return nil
}

func (f *fileCert) Certificate() (*tls.Certificate, error) { return f.current.Load(), nil }

// start opens everything and begins to serve. On an error nothing is left open.
func start(o *serveOpts) (_ *server, err error) {
	s := &server{opts: o, started: time.Now(), ended: make(chan error, 4+len(o.Listen))}
	defer func() {
		if err == nil {
			return
		}
		for _, l := range s.listeners {
			l.Close()
		}
		if s.store != nil {
			s.store.Close()
		}
	}()
	if s.store, err = bolt.Open(filepath.Join(o.Dir, datadir.FileStore), bolt.Options{}); err != nil {
		return nil, err
	}
	// The store's lock makes the directory ours.
	if err = durable.Sweep(o.Dir); err != nil {
		return nil, err
	}
	if s.authority, err = openAuthority(o.Dir, o.Plane); err != nil {
		return nil, err
	}
	if s.certs, err = openCertificates(o, s.authority); err != nil {
		return nil, err
	}
	mtls, err := s.listenMTLS()
	if err != nil {
		return nil, err
	}
	if mtls != nil {
		s.listeners = append(s.listeners, mtls)
	}
	if o.AuditSink != "" {
		head, err := s.store.AuditHead(context.Background())
		if err != nil {
			return nil, err
		}
		if s.sink, err = audit.OpenSink(o.AuditSink, head); err != nil {
			return nil, err
		}
		if err = s.sinkFits(); err != nil {
			s.sink.Close()
			return nil, err
		}
	}
	if err = s.openGate(); err != nil {
		return nil, err
	}
	if err = s.openSigned(); err != nil {
		return nil, err
	}
	s.api = api.New(api.Config{
		Gate: s.gate, Place: s.place, Trust: s.trust,
		Store: s.store, URL: o.Plane.URL, Policy: o.Policy, Version: o.Version, Log: o.Log, Now: time.Now, RequireTouch: o.RequireTouch,
		Certificates: s.authority, MTLSURL: o.MTLSURL, CertificateLife: o.CertificateLife,
		Pages: web.New(web.Config{Store: s.store, URL: o.Plane.URL, URLs: s.place.Own, Now: time.Now, Log: o.Log, RequireTouch: o.RequireTouch}).Handlers(),
		Keep:  func() bool { return s.conns.Load() <= o.KeepConnections },
	})
	if s.engine != nil {
		s.api.Rotate(s.engine)
	}
	for _, e := range s.moving {
		s.api.Rotate(e)
	}
	if err = s.listen(mtls); err != nil {
		return nil, err
	}
	return s, nil
}

// sinkFits refuses a store whose chain does not hold what was copied out of it:
// somebody shortened it, or it is an older copy. The sink cannot be ahead
// otherwise, since it follows what is durable.
func (s *server) sinkFits() error {
	last := s.sink.Last()
	if last.Seq == 0 {
		return nil
	}
	doc, err := s.store.Audit(context.Background(), store.AuditFilter{After: last.Seq - 1, Limit: 1})
	if err != nil {
		return err
	}
	if len(doc.Entries) == 1 && audit.Head(doc.Entries[0]) == last {
		return nil
	}
	return fault.New(fault.Refused, "audit_truncated", "the audit log in the store is not the one that %s was copied from: entry %d there is not in the store, which ends at entry %d",
		s.opts.AuditSink, last.Seq, doc.Head.Seq).
		WithHint("the store was shortened, or is an older copy; fleet audit verify compares it with what was seen before. After planed restore begin another file: move this one away")
}

func openCertificates(o *serveOpts, own *authority) (certificates, error) {
	if o.CertFile != "" {
		f := &fileCert{certFile: o.CertFile, keyFile: o.KeyFile}
		return f, f.load()
	}
	return own, nil
}

// listenTCP says which flag names another address.
func listenTCP(addr, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l, nil
	}
	err = fmt.Errorf("cannot listen: %w", err)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fault.New(fault.Failure, "address_in_use", "%w", err).WithHint("another program has it; %s ADDRESS:PORT names another", flag)
	}
	return nil, err
}

// listen opens the listeners and says how each is served.
func (s *server) listen(mtls net.Listener) error {
	o := s.opts
	errorLog := log.New(addrfree.Writer{W: httpLog{o.Log}}, "", 0)
	idle := max(2*time.Minute, 2*o.Policy.Interval+30*time.Second)
	s.guard = newGuard(limits{first: 20 * time.Second, active: 80 * time.Second, idle: idle})
	s.guard.most = room(o.KeepConnections)
	s.public = &http.Server{ // its time-outs are the guard's
		Handler:        s.api.Handler(),
		MaxHeaderBytes: maxHeaders,
		ErrorLog:       errorLog,
		ConnState:      s.count,
		Protocols:      http1(),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS13,
			GetCertificate: s.present,
		},
	}
	for _, addr := range o.Listen {
		l, err := listenTCP(addr, "--listen")
		if err != nil {
			return err
		}
		s.attach(l, func() error { return s.public.ServeTLS(s.guard.listen(l), "", "") })
	}
	if mtls != nil {
		s.mtls = s.newMachineServer(s.public)
		s.serving = append(s.serving, func() error { return s.mtls.ServeTLS(s.guard.listen(mtls), "", "") })
	}

	s.admin = &http.Server{Handler: admin.Handler(s), ReadHeaderTimeout: 10 * time.Second, ErrorLog: errorLog, MaxHeaderBytes: maxHeaders}
	a, err := admin.Listen(o.Dir, datadir.FileSocket)
	if err != nil {
		return err
	}
	s.attach(a, func() error { return s.admin.Serve(a) })

	if o.MetricsListen != "" {
		s.metrics = &http.Server{Handler: s.api.MetricsHandler(), ReadHeaderTimeout: 10 * time.Second,
			WriteTimeout: 30 * time.Second, ErrorLog: errorLog, MaxHeaderBytes: maxHeaders}
		m, err := net.Listen("tcp", o.MetricsListen)
		if err != nil {
			return fmt.Errorf("cannot listen for metrics: %w", err)
		}
		s.attach(m, func() error { return s.metrics.Serve(m) })
	}
	return nil
}

func (s *server) attach(l net.Listener, serve func() error) {
	s.listeners, s.serving = append(s.listeners, l), append(s.serving, serve)
}

// http1 is HTTP/1.1 alone: a check is one request, and HTTP/2 costs memory on
// every idle connection and knows floods that the guard does not see. NextProtos
// of the TLS configuration would not do: net/http adds its own.
func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// httpLog takes net/http's lines, each of which names a client until addrfree
// has seen it. Most tell of a client that went away.
type httpLog struct{ log hclog.Logger }

func (h httpLog) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	if strings.Contains(line, "panic") {
		h.log.Error("a request failed", "error", line)
	} else {
		h.log.Debug("http", "event", line)
	}
	return len(p), nil
}

// count follows how many connections are open and what they do.
func (s *server) count(c net.Conn, st http.ConnState) {
	s.guard.changed(c, st)
	switch st {
	case http.StateNew:
		s.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.conns.Add(-1)
	}
}

// run serves until ctx ends or a listener fails, then drains.
func (s *server) run(ctx context.Context, hup <-chan os.Signal) error {
	o := s.opts
	work, endWork := context.WithCancel(context.Background())
	for _, f := range s.serving {
		s.serve(f)
	}
	s.wg.Go(func() { s.guard.run(work) })
	if s.engine != nil {
		s.wg.Go(func() { s.engine.Run(work) })
	}
	for _, e := range s.moving {
		s.wg.Go(func() { e.Run(work) })
	}
	if s.sink != nil {
		s.wg.Go(func() { s.sink.Run(work, auditSource{s.store}) })
	}
	if o.Policy.TestFloor > 0 {
		o.Log.Warn("for labs only: the floor between checks is lowered", "test_floor", o.Policy.TestFloor.String())
	}
	if s.mtls != nil {
		o.Log.Info("serving certificates", "url", o.MTLSURL, "life", o.CertificateLife.String())
	}
	o.Log.Info("serving", "url", o.Plane.URL, "version", o.Version, "machines", s.store.Stats().Machines)
	daemon.SdNotify(false, daemon.SdNotifyReady)

	err := s.attend(ctx, hup)

	daemon.SdNotify(false, daemon.SdNotifyStopping)
	o.Log.Info("draining")
	drain, cancel := context.WithTimeout(context.Background(), drainFor)
	defer cancel()
	for _, srv := range []*http.Server{s.public, s.mtls, s.admin, s.metrics} {
		if srv == nil {
			continue
		}
		if e := srv.Shutdown(drain); e != nil {
			o.Log.Warn("some requests did not end in time", "after", drainFor.String())
			srv.Close()
		}
	}
	endWork()
	s.wg.Wait()
	durable.Remove(filepath.Join(o.Dir, datadir.FileSocket))
	if e := s.store.Close(); e != nil {
		err = errors.Join(err, fmt.Errorf("cannot close the store: %w", e))
	}
	o.Log.Info("stopped")
	return err
}

func (s *server) serve(f func() error) {
	s.wg.Go(func() {
		if err := f(); !errors.Is(err, http.ErrServerClosed) {
			s.ended <- err
		}
	})
}

// attend waits, and does what comes up meanwhile.
func (s *server) attend(ctx context.Context, hup <-chan os.Signal) error {
	sweep := time.NewTicker(time.Minute)
	defer sweep.Stop()
	var watchdog <-chan time.Time
	if every, err := daemon.SdWatchdogEnabled(false); err == nil && every > 0 {
		t := time.NewTicker(every / 3)
		defer t.Stop()
		watchdog = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.ended:
			return fmt.Errorf("cannot serve: %s", addrfree.Scrub(err.Error()))
		case <-hup:
			s.reload()
		case <-sweep.C:
			s.api.Sweep()
		case <-watchdog:
			daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
	}
}

// reload reads again what SIGHUP asks for. What cannot be read stays as it was.
func (s *server) reload() {
	if s.engine != nil {
		if err := s.engine.Reload(context.Background()); err != nil {
			s.opts.Log.Error("keeping the gate tokens in use", "error", err.Error())
		}
	}
	if err := s.authority.load(); err != nil {
		s.opts.Log.Error("keeping the authority in use", "error", err.Error())
	} else {
		s.opts.Log.Info("authority read again")
	}
	for _, e := range s.moving {
		if err := e.Reload(context.Background()); err != nil {
			s.opts.Log.Error("keeping what is in use", "kind", e.Kind, "error", err.Error())
		}
	}
	f, ok := s.certs.(*fileCert)
	if !ok {
		return
	}
	if err := f.load(); err != nil {
		s.opts.Log.Error("keeping the certificate in use", "error", err.Error())
		return
	}
	s.opts.Log.Info("certificate read again")
}

// auditSource lets a sink follow the store.
type auditSource struct{ st store.Auditor }

func (a auditSource) After(ctx context.Context, seq uint64) ([]wire.AuditEntry, <-chan struct{}, error) {
	changed := a.st.AuditChanged() // first: an append after the reading must wake
	doc, err := a.st.Audit(ctx, store.AuditFilter{After: seq, Limit: 200})
	return doc.Entries, changed, err
}
