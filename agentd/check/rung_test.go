package check

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/certificate"
	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// row is a plane's row of one machine, with both of its listeners: what package
// identity of planed argues, in small.
type row struct {
	t  *testing.T
	mu sync.Mutex

	generation    int64
	secret, next  secret.Digest
	mtls          bool
	key, nextKey  []byte // SubjectPublicKeyInfo
	request       *time.Time
	kind          string
	life          time.Duration
	down          bool // the listener for certificates
	loseMove      bool // lose the answer of the check that moves the row
	expiredAlerts int

	checks, refused, missed int // accepted; refused; not answered
	last                    time.Time
	widest                  time.Duration
	issuer                  *ecdsa.PrivateKey
}

// side is one of the listeners.
type side struct {
	*row
	source func() *tls.Certificate // nil: the bearer's
}

func unauthorized() error {
	return &plane.Refusal{Code: wire.CodeUnauthorized, Status: http.StatusUnauthorized}
}

// holder is the key that a connection was opened with.
func (s side) holder() ([]byte, error) {
	if s.down {
		return nil, errors.New("connection refused")
	}
	c := s.source()
	if c == nil {
		return nil, errors.New("no certificate")
	}
	if time.Now().After(c.Leaf.NotAfter) {
		s.expiredAlerts++
		return nil, expiredAlert
	}
	return c.Leaf.RawSubjectPublicKeyInfo, nil
}

func (s side) Check(_ context.Context, c credential.Credential, _ wire.CheckMark, body []byte) (*wire.CheckAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := struct {
		mtls       bool
		generation int64
		key        []byte
	}{s.mtls, s.generation, s.key}
	answer, err := s.judge(c, body)
	var no *plane.Refusal
	switch {
	case err == nil:
		s.checks++
		now := time.Now()
		if !s.last.IsZero() {
			s.widest = max(s.widest, now.Sub(s.last))
		}
		s.last = now
		if s.loseMove && (s.mtls != was.mtls || s.generation != was.generation || !bytes.Equal(s.key, was.key)) {
			s.loseMove = false
			return nil, errors.New("the answer is lost")
		}
	case errors.As(err, &no):
		s.refused++
	default:
		s.missed++
	}
	return answer, err
}

func (s side) judge(c credential.Credential, body []byte) (*wire.CheckAnswer, error) {
	if s.source != nil {
		key, err := s.holder()
		switch {
		case err != nil:
			return nil, err
		case bytes.Equal(key, s.nextKey):
			s.key, s.nextKey, s.mtls = key, nil, true
		case !bytes.Equal(key, s.key):
			return nil, &plane.Refusal{Code: wire.CodeBehind, Status: http.StatusConflict}
		}
	} else {
		switch d := c.Secret.Digest(); {
		case d == s.next && (!s.mtls || s.kind == wire.KindBearer):
			s.secret, s.next = s.next, secret.Digest{}
			s.generation++
			if s.mtls {
				s.mtls, s.key, s.nextKey = false, nil, nil
			}
		case d != s.secret || s.mtls:
			return nil, unauthorized()
		}
	}
	var b wire.CheckBody
	json.Unmarshal(body, &b)
	if at := b.Echo.Rotate; at != nil && s.request != nil && at.Equal(*s.request) && (s.kind == "" || s.mtls == (s.kind == wire.KindMTLS)) {
		s.request, s.kind = nil, ""
	}
	return &wire.CheckAnswer{Machine: c.Machine, Generation: s.generation, IntervalS: 30, MinGapS: 10, Mark: "m", PlaneTime: time.Now(),
		Requests: wire.Requests{Rotate: s.request, RotateKind: s.kind}}, nil
}

func (s side) Rotate(_ context.Context, c credential.Credential, req wire.RotateRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source != nil {
		if key, err := s.holder(); err != nil || !bytes.Equal(key, s.key) {
			return unauthorized()
		}
	} else if s.mtls || c.Secret.Digest() != s.secret {
		return unauthorized()
	}
	d, err := secret.ParseDigest(req.Digest)
	if err == nil && d != s.secret {
		s.next = d
	}
	return err
}

func (s side) Certify(_ context.Context, c credential.Credential, req wire.CertificateRequest) (*wire.CertificateAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := c.Secret.Digest()
	if d != s.secret && d != s.next {
		return nil, unauthorized()
	}
	block, _ := pem.Decode([]byte(req.CSR))
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || r.CheckSignature() != nil {
		return nil, errors.New("no request")
	}
	if key := r.RawSubjectPublicKeyInfo; !bytes.Equal(key, s.key) && !bytes.Equal(key, s.nextKey) {
		held := false
		if s.source != nil {
			h, err := s.holder()
			held = err == nil && bytes.Equal(h, s.key)
		}
		if !(s.mtls && held) && !(!s.mtls && s.kind == wire.KindMTLS) {
			return nil, unauthorized()
		}
		s.nextKey = key
	}
	if d == s.next {
		s.secret, s.next = s.next, secret.Digest{}
		s.generation++
	}
	now := time.Now()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(s.life)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, r.PublicKey, s.issuer)
	return &wire.CertificateAnswer{Machine: c.Machine, Generation: s.generation, URL: "https://p.example:9443", IssuedAt: now, ExpiresAt: now.Add(s.life),
		Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}, err
}

func (s side) Reach(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.holder()
	return err
}

func (side) Close() {}

// ask is a person's request.
func (r *row) ask(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now().Round(0)
	r.request, r.kind = &now, kind
}

// look reads the row.
func (r *row) look(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// climbing runs a loop of a machine that knows of certificates. restart ends it
// and begins another on the same disk.
func climbing(t *testing.T, f func(r *row, l *Loop, restart func() *Loop)) {
	t.Helper()
	issuer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := credential.Dir(t.TempDir())
	first := secret.New("fm_")
	if _, err := credential.Open(dir).Install(&wire.Credential{Schema: wire.SchemaCredential, Machine: wire.NewMachineID(), Generation: 7,
		Secret: first.Reveal(), Plane: wire.CredentialPlane{URL: "https://p.example", RootsPEM: "system"}}, false); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := &row{t: t, generation: 7, secret: first.Digest(), life: 8 * time.Hour, issuer: issuer}
		var stop func()
		start := func() *Loop {
			s := credential.Open(dir)
			l := &Loop{Store: s, Body: func() wire.CheckBody { return wire.CheckBody{Name: "box"} }, Log: hclog.NewNullLogger(),
				Dial: func(credential.Plane, *wire.CredentialGate) (Plane, error) { return side{row: r}, nil },
				Rung: &Rung{Certs: certificate.Open(dir, s.Machine),
					Dial: func(_ credential.Plane, _ *wire.CredentialGate, _ string, source func() *tls.Certificate) (Mutual, error) {
						return side{row: r, source: source}, nil
					}}}
			l.Init()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { l.Run(ctx); close(done) }()
			stop = func() { cancel(); <-done }
			synctest.Wait()
			return l
		}
		l := start()
		f(r, l, func() *Loop { stop(); return start() })
		stop()
	})
}

// TestAMachineMovesBetweenTheRungsWithoutAMissedCheck. // R9, R20, R27
func TestAMachineMovesBetweenTheRungsWithoutAMissedCheck(t *testing.T) {
	climbing(t, func(r *row, l *Loop, _ func() *Loop) {
		time.Sleep(time.Minute)
		r.ask(wire.KindMTLS)
		time.Sleep(2 * time.Minute)
		r.look(func() {
			if !r.mtls || r.request != nil {
				t.Fatal("it did not climb")
			}
		})
		r.ask("")
		time.Sleep(2 * time.Minute)
		r.look(func() {
			if r.request != nil || r.generation != 8 || !r.mtls {
				t.Errorf("it did not rotate: generation %d", r.generation)
			}
		})
		time.Sleep(24 * time.Hour) // three lives
		r.ask(wire.KindBearer)
		time.Sleep(2 * time.Minute)
		r.look(func() {
			if r.mtls || r.request != nil || r.generation != 9 {
				t.Errorf("it did not come down: generation %d", r.generation)
			}
			if r.refused+r.missed > 0 || r.widest > 32*time.Second || r.expiredAlerts > 0 {
				t.Errorf("%d checks refused, %d missed, %v between two", r.refused, r.missed, r.widest)
			}
		})
		if l.Rung.Certs.Present() != nil || l.Rung.Certs.Previous() == nil {
			t.Error("the certificate was not put away")
		}
	})
}

// TestAListenerOutOfReachCostsNoCheck: the machine stays, and says why; when the
// way is open it goes. // R17, R27
func TestAListenerOutOfReachCostsNoCheck(t *testing.T) {
	climbing(t, func(r *row, l *Loop, _ func() *Loop) {
		r.look(func() { r.down = true })
		r.ask(wire.KindMTLS)
		time.Sleep(10 * time.Minute)
		r.look(func() {
			if r.mtls || r.refused+r.missed > 0 || r.widest > 32*time.Second {
				t.Errorf("%d refused, %d missed, %v", r.refused, r.missed, r.widest)
			}
			r.down = false
		})
		if l.Problem() == "" {
			t.Error("nobody is told")
		}
		time.Sleep(2 * time.Minute)
		r.look(func() {
			if !r.mtls || r.missed > 0 {
				t.Error("it did not climb when it could")
			}
		})
		if p := l.Problem(); p != "" {
			t.Error(p)
		}
	})
}

// TestAMachineThatSleptPastItsCertificateGetsBackIn, by itself, whether its
// clock knows how long it slept or not. // R27
func TestAMachineThatSleptPastItsCertificateGetsBackIn(t *testing.T) {
	for _, clock := range []string{"right", "frozen"} {
		climbing(t, func(r *row, l *Loop, restart func() *Loop) {
			r.ask(wire.KindMTLS)
			time.Sleep(2 * time.Minute)
			r.look(func() { r.down = true })
			time.Sleep(9 * time.Hour) // its checks and renewals, if any, do not get through
			r.look(func() {
				r.down, r.checks, r.refused = false, 0, 0
				if clock == "frozen" { // what it holds has ended by the plane's clock alone
					r.life = -time.Minute
				}
			})
			restart()
			time.Sleep(time.Second)
			r.look(func() { r.life = 8 * time.Hour })
			time.Sleep(5 * time.Minute)
			r.look(func() {
				if r.checks < 5 || !r.mtls || time.Since(r.last) > time.Minute {
					t.Errorf("%s: %d checks since, %d refused", clock, r.checks, r.refused)
				}
			})
		})
	}
}

// TestALostAnswerOfAMoveCostsNoIdentity: first use took the machine to the other
// rung, and it was not told. // R20, R27
func TestALostAnswerOfAMoveCostsNoIdentity(t *testing.T) {
	climbing(t, func(r *row, l *Loop, restart func() *Loop) {
		for i, kind := range []string{wire.KindMTLS, wire.KindBearer, wire.KindMTLS, "", wire.KindBearer} {
			time.Sleep(time.Minute)
			r.look(func() { r.loseMove = true })
			r.ask(kind)
			lost := func() (lost bool) {
				r.look(func() { lost = !r.loseMove })
				return lost
			}
			for end := time.Now().Add(10 * time.Minute); !lost(); time.Sleep(time.Second) {
				if time.Now().After(end) {
					t.Fatalf("%q: nothing moved", kind)
				}
			}
			if i%2 == 0 { // and the process dies before anything is on disk
				restart()
			}
			r.look(func() { r.widest, r.last = 0, time.Now() })
			time.Sleep(5 * time.Minute)
			r.look(func() {
				if r.request != nil || r.widest > 80*time.Second || time.Since(r.last) > 40*time.Second {
					t.Errorf("%q: request %v, widest gap %v", kind, r.request, r.widest)
				}
			})
		}
	})
}

// TestAPlaneTakenBackInTimeFindsItsMachine: a store from before the climb knows
// the bearer, one from before the descent the key. // R21, R27
func TestAPlaneTakenBackInTimeFindsItsMachine(t *testing.T) {
	climbing(t, func(r *row, l *Loop, _ func() *Loop) {
		time.Sleep(time.Minute)
		var before, up row
		keep := func(to *row) {
			r.look(func() {
				to.generation, to.secret, to.next, to.mtls, to.key, to.nextKey = r.generation, r.secret, r.next, r.mtls, r.key, r.nextKey
			})
		}
		restore := func(from *row) {
			r.look(func() {
				r.generation, r.secret, r.next, r.mtls, r.key, r.nextKey = from.generation, from.secret, from.next, from.mtls, from.key, from.nextKey
				r.request, r.kind, r.last = nil, "", time.Time{}
			})
			time.Sleep(6 * time.Minute)
			r.look(func() {
				if r.last.IsZero() || time.Since(r.last) > time.Minute {
					t.Errorf("the machine was not heard of: %+v", from.mtls)
				}
			})
		}
		keep(&before)
		r.ask(wire.KindMTLS)
		time.Sleep(2 * time.Minute)
		restore(&before)
		r.ask(wire.KindMTLS)
		time.Sleep(2 * time.Minute)
		keep(&up)
		r.ask(wire.KindBearer)
		time.Sleep(2 * time.Minute)
		r.look(func() {
			if r.mtls {
				t.Fatal("it did not come down")
			}
		})
		restore(&up)
	})
}
