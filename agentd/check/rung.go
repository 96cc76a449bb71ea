package check

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"fleet.example/fleet/agentd/certificate"
	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/wire"
)

// Certifier asks the plane for a certificate, presenting a bearer.
type Certifier interface {
	Certify(ctx context.Context, cred credential.Credential, req wire.CertificateRequest) (*wire.CertificateAnswer, error)
}

// Mutual is the plane where certificates are accepted.
type Mutual interface {
	Plane
	Certifier
	// Reach opens a connection and asks for nothing that changes anything.
	Reach(ctx context.Context) error
}

// Rung is what a loop needs for the rung of mutual TLS. How a machine moves
// between rungs is argued in package certificate; this is the part of it that
// chooses what the next check presents.
//
// A check presents the certificate if there is one that may do. When it is
// refused, the key on its way, the one in use and the bearer take turns: the row
// accepts one of them, whichever answer was lost. A certificate that has expired
// is not presented but replaced, by the worker, since that waits for the disk.
type Rung struct {
	Certs *certificate.Store
	// Dial makes a client that presents what source returns at each handshake.
	Dial func(p credential.Plane, gate *wire.CredentialGate, url string, source func() *tls.Certificate) (Mutual, error)

	presented atomic.Pointer[tls.Certificate] // at the next handshake

	// Owned by Run's goroutine.
	turn    turn // whose it is after a refusal
	turns   int  // refusals in a row
	missed  int  // failures of the network in a row
	client  Mutual
	address string

	// Guarded by the loop's mu.
	by       *way // how the last accepted check was presented; nil since a refusal
	renew    bool // a certificate is wanted whatever its age
	barred   bool // the last request for one was refused
	descends bool // the next generation's bearer is to be presented
	mutual   Mutual
	problem  string // why a certificate that there is cannot be used
}

// Problem says why the machine cannot come to be known by certificate, or is
// empty.
func (l *Loop) Problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Rung == nil {
		return ""
	}
	return l.Rung.problem
}

// unusable sets Problem, and has the blockers looked at when it is another.
func (l *Loop) unusable(words string) {
	l.mu.Lock()
	changed := l.Rung.problem != words
	l.Rung.problem = words
	l.mu.Unlock()
	if changed && l.Changed != nil {
		l.Changed()
	}
}

// turn is what is to be presented. Of several that there are, one is accepted;
// which one, a machine that missed an answer finds out in turns.
type turn int

const (
	anyTurn turn = iota // nothing was refused: the newest that is known to work
	nextTurn
	currentTurn
	bearerTurn
)

func (l *Loop) turnOf(w way) turn {
	switch {
	case w.held == nil:
		return bearerTurn
	case w.held.Same(l.Rung.Certs.Next()):
		return nextTurn
	default:
		return currentTurn
	}
}

// held is the certificate whose turn it is, or nil for the bearer.
func (r *Rung) held() *certificate.Held {
	switch next := r.Certs.Next(); {
	case r.turn == anyTurn:
		return r.Certs.Present()
	case r.turn == nextTurn && next != nil && next.TLS != nil:
		return next
	case r.turn <= currentTurn:
		return r.Certs.Current()
	default:
		return nil
	}
}

// way is how a check is presented: with a certificate or, if held is nil, with
// the bearer.
type way struct {
	cred credential.Credential
	held *certificate.Held
}

// answers is the request that what is presented answers.
func (w way) answers() time.Time {
	if w.held != nil {
		return w.held.Answers
	}
	return w.cred.Answers
}

// planeNow is the plane's time, as far as its offset is known.
func (l *Loop) planeNow() time.Time {
	now := l.Now()
	if off := l.Offset(); off != nil {
		now = now.Add(*off)
	}
	return now
}

// choose says how the next check is presented. It is false where a certificate
// has to be asked for first.
func (l *Loop) choose(cred credential.Credential) (way, bool) {
	r := l.Rung
	if r == nil {
		return way{cred: cred}, true
	}
	h := r.held()
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.descends || r.barred || h == nil {
		return way{cred: cred}, true
	}
	offset := time.Duration(0)
	if l.offset != nil {
		offset = *l.offset
	}
	if r.Certs.Usable(h, l.Now().Add(offset)) {
		return way{cred: cred, held: h}, true
	}
	r.renew = true
	return way{}, false
}

// through is the client for the way, or an error that makes the check fail.
func (l *Loop) through(w way) (Plane, error) {
	if w.held == nil {
		return l.client, nil
	}
	r := l.Rung
	r.presented.Store(w.held.TLS)
	if r.client == nil || r.address != w.held.URL {
		r.close()
		p, gate := l.Store.Plane()
		if p == nil {
			return nil, errors.New("the plane's address is gone from the disk")
		}
		c, err := r.Dial(*p, gate, w.held.URL, r.presented.Load)
		if err != nil {
			return nil, err
		}
		r.client, r.address = c, w.held.URL
	}
	l.mu.Lock()
	r.mutual = r.client
	l.mu.Unlock()
	return r.client, nil
}

func (r *Rung) close() {
	if r != nil && r.client != nil {
		r.client.Close()
		r.client = nil
	}
}

// known is the certificate by which the plane knew this machine at the last
// check, or nil.
func (l *Loop) known() *certificate.Held {
	if l.Rung == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if by := l.Rung.by; by != nil && by.held != nil && by.held.TLS != nil {
		return by.held
	}
	return nil
}

// accepted takes note of how the plane accepted a check, and of which
// generation of the bearer it says is current.
func (l *Loop) accepted(w way, generation int64, now time.Time) {
	if w.held == nil {
		l.Store.Accepted(w.cred, now)
	} else {
		l.Store.Confirmed(w.cred.Machine, generation, now)
	}
	r := l.Rung
	if r == nil {
		return
	}
	r.turn, r.turns, r.missed = anyTurn, 0, 0
	l.mu.Lock()
	defer l.mu.Unlock()
	r.by = &w
	r.descends, r.barred = false, false
	if w.held == nil {
		r.renew = false
	}
}

// turned says that what was presented was refused, and that it is the other
// way's turn. soon reports whether that is worth trying before an interval is
// over: a lost answer is the commonest cause, and then the other way works.
func (l *Loop) turned(w way) (soon bool) {
	r := l.Rung
	if r == nil || r.Certs.Present() == nil && r.Certs.Previous() == nil {
		return false
	}
	if r.turn = l.turnOf(w) + 1; r.turn > bearerTurn {
		r.turn = nextTurn
	}
	r.turns++
	l.mu.Lock()
	defer l.mu.Unlock()
	r.by, r.descends, r.barred = nil, false, false
	// The key before is all that a plane knows which was taken back to then.
	r.renew = r.renew || w.held == nil && r.Certs.Present() == nil
	return r.turns <= 2
}

// lost says that a check by bearer was not answered. One that was to leave the
// certificate may have done so; the certificate knows, and is asked.
func (l *Loop) lost() {
	if l.Rung == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Rung.descends, l.Rung.barred = false, false
}

// refusedCertificate decides what a check that did not succeed over a
// certificate leads to.
func (l *Loop) refusedCertificate(w way, err error, now time.Time) time.Duration {
	r := l.Rung
	var no *plane.Refusal
	switch {
	case errors.As(err, &no) && (no.Code == wire.CodeUnauthorized || no.Code == wire.CodeBehind):
		if no.Code == wire.CodeUnauthorized && l.shutOut() {
			return l.refusal(w.cred, err, now)
		}
		l.doubted = time.Time{}
		r.Certs.Refused(w.held, false)
		if l.turned(w) {
			return l.pace.floor
		}
		return l.pace.refused()
	case errors.As(err, &no):
		return l.refusal(w.cred, err, now)
	case alerted(err): // expired, unknown, bad
		r.Certs.Refused(w.held, true)
		l.renewSoon()
		return l.pace.failed()
	}
	r.Certs.Refused(w.held, false)
	r.turn = anyTurn
	// The answer says where the listener is now. It is asked for more and more
	// rarely: a listener that is merely down is no reason for certificates.
	if r.missed++; r.missed > 1 && r.missed&(r.missed-1) == 0 {
		l.renewSoon()
	}
	return l.pace.failed()
}

// alerted reports whether the other side ended the handshake. Package tls keeps
// its alerts' type to itself, and says whose it is in the operation.
func alerted(err error) bool {
	op := new(net.OpError)
	return errors.As(err, &op) && op.Op == "remote error"
}

// renewSoon has the worker ask for another certificate.
func (l *Loop) renewSoon() {
	l.mu.Lock()
	l.Rung.renew = true
	l.mu.Unlock()
	poke(l.work)
}

// advance is the worker's: it does what the last success makes possible, or
// what a refusal makes necessary.
func (l *Loop) advance(ctx context.Context, client Plane, req wire.Requests) (moved bool, err error) {
	r := l.Rung
	if r == nil {
		return l.Store.Advance(ctx, client, req.Rotate)
	}
	l.mu.Lock()
	by, renew, mutual := r.by, r.renew, r.mutual
	l.mu.Unlock()
	switch {
	case by != nil && by.held == nil:
		return l.onBearer(ctx, client, req)
	case by != nil && mutual != nil:
		if moved, err = l.onMutual(ctx, client, mutual, by.held, req); err != nil || moved || !renew {
			return moved, err
		}
	case !renew:
		return false, nil
	}
	return l.renewNow(ctx, client)
}

// onBearer works after a check that the bearer made: any key in use has been
// left, and a first one is made if a person wants that.
func (l *Loop) onBearer(ctx context.Context, client Plane, req wire.Requests) (moved bool, err error) {
	certs := l.Rung.Certs
	climbs := req.Rotate != nil && req.RotateKind == wire.KindMTLS
	if !climbs {
		l.unusable("")
	}
	if h := certs.Next(); h != nil && !climbs {
		if err := certs.Abandon(); err != nil {
			return false, err
		}
	}
	if certs.Current() != nil {
		l.Log.Info("the plane takes the bearer, the certificate is put away")
		if err := certs.Retire(); err != nil {
			return false, err
		}
	}
	if !climbs {
		return l.Store.Advance(ctx, client, req.Rotate)
	}
	if moved, err := l.Store.Advance(ctx, client, nil); err != nil || moved {
		return moved, err
	}
	return l.newKey(ctx, client, *req.Rotate)
}

// onMutual works after a check that a certificate made.
func (l *Loop) onMutual(ctx context.Context, client, mutual Plane, held *certificate.Held, req wire.Requests) (moved bool, err error) {
	certs := l.Rung.Certs
	if held.Same(certs.Next()) {
		if err := certs.Promote(); err != nil {
			return false, err
		}
		l.Log.Info("known by certificate", "expires", held.Expires)
	}
	if req.Rotate == nil || req.RotateKind != wire.KindBearer && req.Rotate.Equal(held.Answers) {
		// A generation that an earlier move left behind is used where it can be.
		if moved, err = l.Store.Advance(ctx, mutual, nil); err != nil {
			return false, err
		}
		if h := certs.Current(); h != nil && (moved || l.ages(h)) {
			return false, l.certify(ctx, client, h)
		}
		return false, nil
	}
	moved, err = l.Store.Advance(ctx, mutual, req.Rotate)
	if err != nil {
		return false, err
	}
	cred, ok := l.Store.Present()
	if !ok || !cred.Answers.Equal(*req.Rotate) {
		// What was staged before answers nothing, and goes first.
		if h := certs.Current(); moved && h != nil {
			return false, l.certify(ctx, client, h)
		}
		return false, nil
	}
	if req.RotateKind == wire.KindBearer {
		if moved {
			l.mu.Lock()
			l.Rung.descends = true
			l.mu.Unlock()
		}
		return moved, nil
	}
	return l.newKey(ctx, mutual, *req.Rotate)
}

// newKey makes a key, or goes on with the one that is there, has it certified,
// and tries the connection that a check will depend on.
func (l *Loop) newKey(ctx context.Context, through Plane, request time.Time) (moved bool, err error) {
	r := l.Rung
	h, err := r.Certs.Stage(request)
	if err != nil {
		return false, err
	}
	if h.TLS == nil || l.ages(h) {
		if err := l.certify(ctx, through, h); err != nil {
			return false, err
		}
		if h = r.Certs.Next(); h == nil || h.TLS == nil {
			return false, nil
		}
	}
	p, gate := l.Store.Plane()
	if p == nil {
		return false, nil
	}
	c, err := r.Dial(*p, gate, h.URL, func() *tls.Certificate { return h.TLS })
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := c.Reach(ctx); err != nil {
		err = fmt.Errorf("cannot use its certificate at %s: %w", h.URL, err)
		l.unusable(err.Error())
		return false, err
	}
	l.unusable("")
	r.Certs.Tried(h)
	return true, nil
}

func (l *Loop) ages(h *certificate.Held) bool {
	p, _ := l.Store.Plane()
	return p != nil && l.Rung.Certs.Due(h, l.planeNow(), p.URL)
}

// renewNow asks for a certificate for the key in use, whatever its age, or for
// the key before, where that is all there is.
func (l *Loop) renewNow(ctx context.Context, client Plane) (moved bool, err error) {
	r := l.Rung
	h := r.Certs.Present()
	if h == nil {
		h = r.Certs.Previous()
	}
	if h == nil {
		return false, nil
	}
	usable, url := r.Certs.Usable(h, l.planeNow()), h.URL
	if err := l.certify(ctx, client, h); err != nil {
		return false, err
	}
	if n := r.Certs.Next(); n.Same(h) {
		r.Certs.Tried(n)
	}
	l.mu.Lock()
	r.renew, r.barred = false, false
	l.mu.Unlock()
	l.Log.Info("certificate renewed")
	n := r.Certs.Present()
	return n != nil && (!usable || n.URL != url), nil
}

var errNoCertifier = errors.New("this plane's client asks for no certificates")

// certify asks for a certificate for h and writes it.
func (l *Loop) certify(ctx context.Context, through Plane, h *certificate.Held) error {
	p, _ := l.Store.Plane()
	if p == nil {
		return nil
	}
	return l.certifyAt(ctx, through, h, p.URL)
}

// certifyAt asks the plane at a URL, which may be one that is only tried.
func (l *Loop) certifyAt(ctx context.Context, through Plane, h *certificate.Held, at string) error {
	r := l.Rung
	via, ok := through.(Certifier)
	if !ok {
		return errNoCertifier
	}
	cred, ok := l.Store.Present()
	if !ok {
		return nil
	}
	csr, err := h.Request()
	if err != nil {
		return err
	}
	a, err := via.Certify(ctx, cred, wire.CertificateRequest{CSR: csr})
	var no *plane.Refusal
	if errors.As(err, &no) {
		switch {
		case no.Code == wire.CodeUnauthorized || no.Code == wire.CodeBehind:
			l.Store.Refused(cred, no.Code)
			fallthrough
		case no.Code == wire.CodeRevoked: // the check loop hears that for itself
			l.mu.Lock()
			r.barred = true
			l.mu.Unlock()
			l.Kick()
		case no.Status == 409 && h.Same(r.Certs.Next()):
			return errors.Join(err, r.Certs.Abandon()) // the plane knows the key as one that was superseded
		}
	}
	if err != nil {
		return err
	}
	_, err = r.Certs.Certified(h, *a, at)
	return err
}
