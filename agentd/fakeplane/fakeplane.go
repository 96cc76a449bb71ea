// Package fakeplane is a small real plane for the agent's tests: HTTPS with
// its own root, one machine, rotation by first use, and knobs for every bad
// day that a machine may meet. It shares nothing with planed but the wire
// documents.
package fakeplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Seen is one request that the plane got.
type Seen struct {
	At         time.Time
	Path       string
	Mark       wire.CheckMark
	Body       wire.CheckBody
	Generation int64 // of what was presented, 0: unknown
	Status     int
}

// Plane is the server. Fields may be changed under Lock.
type Plane struct {
	sync.Mutex
	URL     string
	Roots   string
	Machine string

	Generation int64
	Current    secret.Digest
	Next       secret.Digest
	Old        []secret.Digest

	IntervalS  float64
	TestFloorS float64
	Requests   wire.Requests
	Deleted    bool
	// Answer, where set, answers in the plane's place when it returns true.
	Answer func(w http.ResponseWriter, r *http.Request) bool
	// LoseAnswers closes the connection after the request had its effect.
	LoseAnswers bool

	ahead  time.Duration
	seen   []Seen
	marks  int
	server *httptest.Server
}

// Start starts a plane with one machine, whose first credential it returns.
func Start(t testing.TB) (*Plane, wire.Credential) { return StartAt(t, 0) }

// StartAt is Start of a plane whose clock is ahead of the machine's. Its
// certificate is of its own time, backdated as planed's is.
func StartAt(t testing.TB, ahead time.Duration) (*Plane, wire.Credential) {
	t.Helper()
	p := &Plane{ahead: ahead, Machine: wire.NewMachineID(), Generation: 1, IntervalS: 1, TestFloorS: 0.1}
	first := secret.New("fm_")
	p.Current = first.Digest()
	root, cert := certificate(t, time.Now().Add(ahead))
	p.Roots = root
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	p.server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	p.URL = p.server.URL
	t.Cleanup(p.server.Close)
	return p, wire.Credential{Schema: wire.SchemaCredential, Machine: p.Machine, Generation: 1, Secret: first.Reveal(),
		Plane: wire.CredentialPlane{URL: p.URL, RootsPEM: root}}
}

// Addr is where the plane listens.
func (p *Plane) Addr() string { return p.server.Listener.Addr().String() }

// CloseConnections drops every connection, as a restart does.
func (p *Plane) CloseConnections() { p.server.CloseClientConnections() }

func certificate(t testing.TB, now time.Time) (rootPEM string, leaf tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test root"},
		NotBefore: now.Add(-72 * time.Hour), NotAfter: now.Add(14 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	leafDER, err := x509.CreateCertificate(rand.Reader, tmpl, root, &leafKey.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	rootPEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return rootPEM, tls.Certificate{Certificate: [][]byte{leafDER, der}, PrivateKey: leafKey}
}

// Seen returns the requests so far.
func (p *Plane) Seen() []Seen {
	p.Lock()
	defer p.Unlock()
	return append([]Seen(nil), p.seen...)
}

// Count is how many requests there were. The caller holds the lock.
func (p *Plane) Count() int { return len(p.seen) }

// Await waits until a request satisfies ok.
func (p *Plane) Await(t testing.TB, what string, ok func(Seen) bool) Seen {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for _, s := range p.Seen() {
			if ok(s) {
				return s
			}
		}
	}
	t.Fatalf("the plane never saw %s; it saw %d requests, the last %+v", what, len(p.Seen()), tail(p.Seen()))
	return Seen{}
}

func tail(s []Seen) []Seen { return s[max(0, len(s)-3):] }

func (p *Plane) serve(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	p.Lock()
	s := Seen{At: time.Now(), Path: r.URL.Path}
	s.Mark, _ = wire.ParseCheckMark(r.Header.Get(wire.HeaderCheck))
	json.Unmarshal(b, &s.Body)
	answer := p.Answer
	p.Unlock()
	rec := &recorder{ResponseWriter: w, status: http.StatusOK}
	lose := false
	if answer == nil || !answer(rec, r) {
		p.Lock()
		s.Generation = p.answer(rec, r, b)
		lose = p.LoseAnswers
		p.Unlock()
	}
	s.Status = rec.status
	p.record(s)
	if lose {
		panic(http.ErrAbortHandler)
	}
	rec.flush()
}

func (p *Plane) record(s Seen) {
	p.Lock()
	defer p.Unlock()
	p.seen = append(p.seen, s)
}

// recorder keeps an answer until it is decided whether it is lost.
type recorder struct {
	http.ResponseWriter
	status int
	body   []byte
}

func (r *recorder) WriteHeader(status int) { r.status = status }
func (r *recorder) Write(b []byte) (int, error) {
	r.body = append(r.body, b...)
	return len(b), nil
}
func (r *recorder) flush() {
	r.ResponseWriter.WriteHeader(r.status)
	r.ResponseWriter.Write(r.body)
}

// Refuse answers with an error document.
func Refuse(w http.ResponseWriter, status int, code, machine string) {
	w.Header().Set("Content-Type", "application/json")
	b, _ := json.Marshal(wire.Error{Error: wire.ErrorDetail{Code: code, Machine: machine}})
	w.WriteHeader(status)
	w.Write(b)
}

// answer is called with the lock held.
func (p *Plane) answer(w http.ResponseWriter, r *http.Request, body []byte) (generation int64) {
	id, sec, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ".")
	d := secret.Of(sec).Digest()
	known := id == p.Machine
	var behind bool
	for _, o := range p.Old {
		behind = behind || o == d
	}
	switch {
	case known && d == p.Current:
		generation = p.Generation
	case known && !p.Next.IsZero() && d == p.Next:
		generation = p.Generation + 1
	}
	switch {
	case p.Deleted && (generation > 0 || behind):
		Refuse(w, http.StatusGone, wire.CodeRevoked, p.Machine)
	case generation == 0 && behind:
		Refuse(w, http.StatusConflict, wire.CodeBehind, "")
	case generation == 0:
		Refuse(w, http.StatusUnauthorized, wire.CodeUnauthorized, "")
	case r.URL.Path == wire.PathCheck:
		p.promote(generation)
		p.marks++
		b, _ := json.Marshal(wire.CheckAnswer{Machine: p.Machine, Generation: generation, IntervalS: p.IntervalS, MinGapS: p.TestFloorS,
			TestFloorS: p.TestFloorS, Mark: "m" + strconv.Itoa(p.marks), PlaneTime: time.Now().Add(p.ahead), Requests: p.Requests})
		w.Write(b)
	case r.URL.Path == wire.PathRotate:
		var req wire.RotateRequest
		json.Unmarshal(body, &req)
		p.promote(generation)
		dig, err := secret.ParseDigest(req.Digest)
		if err != nil || req.Generation != p.Generation+1 {
			Refuse(w, http.StatusBadRequest, wire.CodeBadRequest, "")
			return generation
		}
		p.Next = dig
		b, _ := json.Marshal(wire.RotateAnswer{Machine: p.Machine, Generation: req.Generation})
		w.Write(b)
	default:
		Refuse(w, http.StatusNotFound, wire.CodeNotFound, "")
	}
	return generation
}

// promote: the first use of next makes it current.
func (p *Plane) promote(generation int64) {
	if generation == p.Generation+1 {
		p.Old = append(p.Old, p.Current)
		p.Current, p.Next, p.Generation = p.Next, secret.Digest{}, generation
	}
}
