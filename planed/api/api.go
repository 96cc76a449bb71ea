package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/gate"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/login"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/signed"
	"fleet.example/fleet/planed/store"
)

// Config is what the interface is made of.
type Config struct {
	Store   store.Store
	URL     string // the plane's own, as wire.PlaneURL spells it
	Policy  machine.Policy
	Version string
	Log     hclog.Logger
	Now     func() time.Time
	// RequireTouch lets persons admit and approve only with a signature of their
	// security key that was touched for it.
	RequireTouch bool
	// Certificates issues and reads machines' certificates; MTLSURL is where they
	// are accepted, empty without a listener that does; CertificateLife is how
	// long they are valid, 0 for the default.
	Certificates    Authority
	MTLSURL         string
	CertificateLife time.Duration
	// Pages are the pages for persons' browsers, by pattern of http.ServeMux.
	Pages map[string]http.Handler
	// MaxConcurrent is how many requests may be worked on at once; more are
	// shed with 503 before they slow the others down (R19). 0 means 1024.
	MaxConcurrent int
	// Gate stands in front of the machine endpoints; nil: there is none.
	Gate *gate.Gate
	// Place is where the plane is, by persons' statements; nil: at URL, for ever.
	// Trust are the roots that vouch for it; nil: they never change.
	Place *signed.URL
	Trust *signed.Trust
	// Keep reports whether an answered connection may stay open. nil: always.
	Keep func() bool
}

// API is the plane's HTTP interface.
type API struct {
	Config
	nonces    login.Verifier
	failures  login.Limiter
	enrollers login.Limiter // of requests for approval, refused or not
	metrics   *metrics
	running   atomic.Int64
	calls     sync.Pool
	constant  []byte // the part of a check's answer that is the same for all
	engines   map[string]*rotation.Engine
	gated     []string // paths behind the gate
}

// New makes the interface.
func New(c Config) *API {
	if c.MaxConcurrent == 0 {
		c.MaxConcurrent = 1024
	}
	if c.Keep == nil {
		c.Keep = func() bool { return true }
	}
	if c.CertificateLife == 0 {
		c.CertificateLife = CertificateLife
	}
	a := &API{Config: c}
	a.nonces = login.Verifier{URL: c.URL, URLs: a.ownURLs, Now: c.Now}
	a.failures = login.Limiter{Now: c.Now}
	a.enrollers = login.Limiter{Now: c.Now, Most: enrollPerSource}
	a.metrics = newMetrics(c.Store, c.Policy, c.Now)
	a.engines = map[string]*rotation.Engine{}
	for _, rt := range Routes {
		if rt.Who.gated() {
			a.gated = append(a.gated, rt.Path)
		}
	}
	a.calls.New = func() any { return new(call) }
	a.constant = constantAnswer(c.Policy)
	return a
}

// Sweep forgets what was kept for a while only. It is called every minute or so.
func (a *API) Sweep() {
	a.failures.Sweep()
	a.enrollers.Sweep()
}

// call is one request on its way through a handler. Calls are used again, with
// their buffers: nothing of one may be kept after the handler has returned.
type call struct {
	w    http.ResponseWriter
	r    *http.Request
	body []byte
	who  store.Principal
	with secret.Digest // of the session or token that asks
	gate gate.Use      // what came through the gate
	told bool          // the gate's use was counted for a machine
	old  bool          // it came to a URL that retires

	received bytes.Buffer // what body lies in
	made     []byte       // a check's answer
}

// release gives the call back, unless it has grown beyond what is usual.
func (a *API) release(c *call) {
	c.w, c.r, c.body, c.who, c.with, c.gate, c.told, c.old = nil, nil, nil, store.Principal{}, secret.Digest{}, gate.Use{}, false, false
	if c.received.Cap() <= pooledBody {
		a.calls.Put(c)
	}
}

func (c *call) ctx() context.Context { return c.r.Context() }

// by is the principal as the store wants it.
func (c *call) by() machine.By {
	return machine.By{Actor: c.who.Kind + ":" + c.who.Name, Person: c.who.Person, Owner: c.who.Role == wire.RoleOwner, Session: c.with}
}

// pooledBody is the largest buffer that goes back into the pool.
const pooledBody = 16 << 10

// serve bounds, authenticates and answers one route.
func (a *API) serve(rt *Route) http.Handler {
	counters := a.metrics.route(rt)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.Keep() {
			w.Header()["Connection"] = closeHeader
		}
		c := a.calls.Get().(*call)
		defer a.release(c)
		c.w, c.r = w, r
		c.received.Reset()
		// The gate is decided first, before a byte of the body is read.
		if rt.Who.gated() && (a.Gate != nil && !a.pass(c) || a.Place != nil && !a.rightPlace(c)) {
			counters.refused(http.StatusUnauthorized).Inc()
			writeError(w, http.StatusUnauthorized, errUnauthorized.detail)
			return
		}
		// The body is read before a place is taken, so that slow senders do
		// not crowd out the others.
		err := readBody(&c.received, r, rt.MaxBody)
		c.body = c.received.Bytes()
		if err == nil {
			err = a.admitAndRun(rt, c)
		}
		if c.gate.Retiring {
			a.retiring(rt, c)
		}
		if c.old && !c.told {
			a.Store.CallerUsed(wire.MaterialURL, rt.Path, a.Now())
		}
		if err == nil {
			counters.ok.Inc()
			return
		}
		status, detail := a.explain(err)
		counters.refused(status).Inc()
		a.metrics.refusals.WithLabelValues(detail.Code).Inc()
		if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", strconv.Itoa(retryAfter(err)))
		}
		// What a connection was opened with is no longer good for anything.
		cut := verified(r.TLS) != nil && (status == http.StatusUnauthorized || status == http.StatusConflict || status == http.StatusGone)
		if cut || status == http.StatusRequestEntityTooLarge {
			w.Header()["Connection"] = closeHeader
		}
		writeError(w, status, detail)
	})
}

var closeHeader = []string{"close"}

func (a *API) admitAndRun(rt *Route, c *call) error {
	if n := a.running.Add(1); n > int64(a.MaxConcurrent) && rt.Path != wire.PathHealthz {
		a.running.Add(-1)
		a.metrics.shed.Inc()
		return errShed
	}
	defer a.running.Add(-1)
	if rt.Who.own() {
		return rt.handle(a, c)
	}
	token, ok := bearer(c.r)
	if !ok {
		return errUnauthorized
	}
	c.with = token.Digest()
	p, err := a.Store.Principal(c.ctx(), c.with, a.Now())
	if errors.Is(err, store.ErrNotFound) {
		return errUnauthorized
	}
	if err != nil {
		return err
	}
	if !allowed(rt, p) {
		return errForbidden
	}
	c.who = p
	return rt.handle(a, c)
}

func allowed(rt *Route, p store.Principal) bool {
	person := p.Kind == "person"
	switch rt.Who {
	case Person:
		return person
	case Owner:
		return person && p.Role == wire.RoleOwner
	case Scoped:
		return person || slices.ContainsFunc(rt.Scopes, func(s string) bool { return slices.Contains(p.Scopes, s) })
	case AnyOne:
		return true
	}
	return false
}

func bearer(r *http.Request) (secret.Text, bool) {
	h := r.Header["Authorization"]
	if len(h) != 1 {
		return secret.Text{}, false
	}
	const scheme = "bearer "
	if len(h[0]) <= len(scheme) || len(h[0]) > 512 || !strings.EqualFold(h[0][:len(scheme)], scheme) {
		return secret.Text{}, false
	}
	return secret.Of(h[0][len(scheme):]), true
}

func readBody(buf *bytes.Buffer, r *http.Request, limit int64) error {
	if r.ContentLength > limit {
		return errTooLarge
	}
	n, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	if n > limit {
		return errTooLarge
	}
	if err != nil {
		return bad("the request's body ended early")
	}
	return nil
}

// decodeStrict reads a person's request: a field that we do not know is an
// error, since ignoring it would do something else than was asked.
func (c *call) decodeStrict(v any) error {
	d := json.NewDecoder(bytes.NewReader(c.body))
	d.DisallowUnknownFields()
	return decode(d, v)
}

// decodeLenient reads a machine's document: a later agent may say more.
func decodeLenient(body []byte, v any) error {
	return decode(json.NewDecoder(bytes.NewReader(body)), v)
}

func decode(d *json.Decoder, v any) error {
	if err := d.Decode(v); err != nil {
		return bad("the request's body is no such document: %s", jsonWords(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return bad("something follows the document in the request's body")
	}
	return nil
}

// jsonWords keeps what a decoder says short.
func jsonWords(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "it ends early"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

var jsonType = []string{"application/json"}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(b.Len())}
	h["Cache-Control"] = noStore
	w.WriteHeader(status)
	w.Write(b.Bytes()) // a client that went away is nobody's error
	return nil
}

var noStore = []string{"no-store"}

func (c *call) answer(v any) error { return writeJSON(c.w, http.StatusOK, v) }

// retryAfter spreads those who were refused together (R19).
func retryAfter(err error) int {
	var limited *limitedError
	if errors.As(err, &limited) {
		return max(1, int(limited.wait.Seconds()))
	}
	return 5 + rand.IntN(11)
}

// standing turns a refused standing into the closed vocabulary (R22).
func standing(s identity.Standing, machine string) error {
	switch s {
	case identity.Current, identity.Next:
		return nil
	case identity.Behind:
		return &refusal{http.StatusConflict, wire.ErrorDetail{Code: wire.CodeBehind, Machine: machine}}
	case identity.Revoked:
		return &refusal{http.StatusGone, wire.ErrorDetail{Code: wire.CodeRevoked, Machine: machine}}
	}
	return errUnauthorized
}
