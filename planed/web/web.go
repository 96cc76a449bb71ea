// Package web is the plane's pages for a person's browser: sign in, type the
// code of a machine that waits, see what it says of itself, approve or deny.
// They are rendered here, need no script, and load nothing but one stylesheet.
//
// # Signing in
//
// fleet web, where the person is logged in with their key, mints a link that is
// good once and for two minutes. Opening it uses nothing up, since mail
// scanners and previews open links too: it shows whose it is and a button. The
// button's form opens a session that is always a new one, whatever cookies came
// along, so none can be fixed beforehand. The session is a cookie that scripts,
// other sites' requests and other hosts do not get (__Host-, HttpOnly,
// SameSite=Strict); its digest is what is stored, and the plane's API does not
// take it.
//
// # Other sites
//
//   - A form counts only with a token that is bound to the browser's own cookie
//     by a key of this process, and if the browser says where it came from, only
//     from this plane. That holds for signing in as well, so that nobody is
//     signed in as somebody else without pressing the button that names them.
//   - No page may stand in a frame, and a form leads nowhere but here.
//   - Redirects go to fixed paths; no request says where.
//   - Every word a machine says of itself passes html/template's escaping, and
//     the content security policy allows no script at all.
//
// The package must not know how a code is looked up or what guessing one costs:
// the store counts, and answers, as it does for fleet approve.
package web

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/enrol"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

//go:embed pages.html style.css
var files embed.FS

// Store is what the pages ask of the plane's store.
type Store interface {
	store.Web
	Logout(ctx context.Context, session secret.Digest, now time.Time) error
	Look(ctx context.Context, code secret.Digest, by machine.By, now time.Time) (enrol.Request, error)
	Decide(ctx context.Context, d store.Decision) (store.Decided, error)
}

// Config is what the pages are made of.
type Config struct {
	Store Store
	URL   string // the plane's own: the only origin
	// URLs are all that lead or led here, where there are several.
	URLs func() []string
	Now  func() time.Time
	Log  hclog.Logger
	// RequireTouch sends approvals to fleet approve: no page can ask a security
	// key yet.
	RequireTouch bool
}

// Life of a browser's session. It is for approving what stands on a screen.
const Life = time.Hour

const (
	cookieSession = "__Host-fleet"
	cookieForm    = "__Host-fleet-form" // before there is a session
	maxForm       = 8 << 10
	maxAtOnce     = 64

	pathLook    = "/approve/look"
	pathDecide  = "/approve/decide"
	pathSignOut = "/web/sign-out"
	pathStyle   = "/web/style.css"
)

// Pages are the pages.
type Pages struct {
	Config
	key     [32]byte // of form tokens
	pages   *template.Template
	style   []byte
	running atomic.Int64
}

// New makes the pages.
func New(c Config) *Pages {
	p := &Pages{Config: c, pages: template.Must(template.ParseFS(files, "pages.html"))}
	rand.Read(p.key[:])
	var err error
	if p.style, err = files.ReadFile("style.css"); err != nil {
		panic(err) // it is embedded
	}
	return p
}

// Handlers are the pages by pattern of http.ServeMux.
func (p *Pages) Handlers() map[string]http.Handler {
	return map[string]http.Handler{
		"GET " + wire.PathApprovePage: p.bound(p.start),
		"POST " + pathLook:            p.bound(p.form(p.look)),
		"POST " + pathDecide:          p.bound(p.form(p.decide)),
		"GET " + wire.PathSignInPage:  p.bound(p.offer),
		"POST " + wire.PathSignInPage: p.bound(p.signIn),
		"POST " + pathSignOut:         p.bound(p.form(p.signOut)),
		"GET " + pathStyle: p.bound(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/css; charset=utf-8")
			w.Write(p.style)
		}),
	}
}

// policy allows one stylesheet and forms to this plane, and nothing else.
const policy = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// bound sets what every page carries and bounds how many are made at once.
func (p *Pages) bound(f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		// Not no-referrer: browsers would say Origin: null with our own forms.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if p.running.Add(1) > maxAtOnce {
			p.running.Add(-1)
			h.Set("Retry-After", "5")
			p.show(w, http.StatusServiceUnavailable, page{Title: "Busy", Message: "The plane has too much to do. Try again in a few seconds."})
			return
		}
		defer p.running.Add(-1)
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		f(w, r)
	})
}

// page is what the template shows.
type page struct {
	Title   string
	Person  string // who is signed in
	Token   string // of the forms
	Message string
	Bad     bool   // Message tells of a failure
	Form    string // code | review | sign-in | ""
	Code    string
	Link    string
	Owner   string // whose the link is
	Report  wire.EnrollReport
	Expires string
	Touch   bool
	Machine string
}

func (p *Pages) show(w http.ResponseWriter, status int, v page) {
	var b strings.Builder
	if err := p.pages.Execute(&b, v); err != nil {
		p.Log.Error("cannot make a page", "error", err.Error())
		http.Error(w, "the plane cannot make this page", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write([]byte(b.String())) // a browser that went away is nobody's error
}

// visitor is a signed-in person and their session.
type visitor struct {
	store.Principal
	session secret.Digest
}

func (v visitor) by() machine.By {
	return machine.By{Actor: "person:" + v.Person, Person: v.Person, Owner: v.Role == wire.RoleOwner, Session: v.session}
}

// visitor finds out who is there.
func (p *Pages) visitor(r *http.Request) (visitor, bool) {
	c, err := r.Cookie(cookieSession)
	if err != nil || c.Value == "" {
		return visitor{}, false
	}
	d := secret.Of(c.Value).Digest()
	who, err := p.Store.Browser(r.Context(), d, p.Now())
	return visitor{who, d}, err == nil
}

// token binds a form to what a cookie holds.
func (p *Pages) token(kind string, value []byte) string {
	h := hmac.New(sha256.New, p.key[:])
	h.Write([]byte(kind))
	h.Write(value)
	return hex.EncodeToString(h.Sum(nil))
}

func (p *Pages) formToken(v visitor) string { return p.token("session", v.session[:]) }

// ours reports whether a form was sent by one of our pages: where the browser
// says where it comes from, it comes from here, and it carries the token.
func (p *Pages) ours(r *http.Request, want string) bool {
	if o := r.Header.Get("Origin"); o != "" && o != p.URL && (p.URLs == nil || !slices.Contains(p.URLs(), o)) {
		return false
	}
	if s := r.Header.Get("Sec-Fetch-Site"); s != "" && s != "same-origin" {
		return false
	}
	return hmac.Equal([]byte(r.PostFormValue("token")), []byte(want))
}

// form lets a signed-in person's own form through.
func (p *Pages) form(f func(http.ResponseWriter, *http.Request, visitor)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, ok := p.visitor(r)
		if !ok {
			p.signedOut(w, http.StatusUnauthorized)
			return
		}
		if err := r.ParseForm(); err != nil {
			p.show(w, http.StatusBadRequest, page{Title: "Approve a machine", Bad: true, Person: v.Person, Token: p.formToken(v), Form: "code", Message: "The form could not be read."})
			return
		}
		if !p.ours(r, p.formToken(v)) {
			p.Log.Warn("a form from elsewhere was refused", "person", v.Person)
			p.show(w, http.StatusForbidden, page{Title: "Approve a machine", Bad: true, Person: v.Person, Token: p.formToken(v), Form: "code",
				Message: "This form was not sent by this page, or is too old. Nothing was done."})
			return
		}
		f(w, r, v)
	}
}

func (p *Pages) signedOut(w http.ResponseWriter, status int) {
	p.show(w, status, page{Title: "Sign in", Form: "how"})
}

// start is GET /approve.
func (p *Pages) start(w http.ResponseWriter, r *http.Request) {
	v, ok := p.visitor(r)
	if !ok {
		p.signedOut(w, http.StatusOK)
		return
	}
	p.show(w, http.StatusOK, page{Title: "Approve a machine", Person: v.Person, Token: p.formToken(v), Form: "code"})
}

// refused shows why a code led nowhere. Whatever becomes of a code looks the
// same (R7).
func (p *Pages) refused(w http.ResponseWriter, v visitor, err error) {
	out := page{Title: "Approve a machine", Person: v.Person, Token: p.formToken(v), Form: "code", Bad: true}
	status := http.StatusServiceUnavailable
	var blocked *store.BlockedError
	var living *store.LivingError
	switch {
	case errors.Is(err, store.ErrNoCode):
		status, out.Message = http.StatusNotFound, "No machine waits with this code. Compare it with what the machine shows; a code is good once, and for ten minutes."
	case errors.As(err, &blocked):
		status = http.StatusTooManyRequests
		minutes := int((blocked.Wait + time.Minute - 1) / time.Minute)
		w.Header().Set("Retry-After", strconv.Itoa(60*minutes))
		out.Message = "Too many wrong codes. The next may be tried in " + strconv.Itoa(minutes) + " minutes."
	case errors.As(err, &living):
		status, out.Message = http.StatusConflict, "This installation is admitted as "+living.Machine+" already, and its credential has worked. If that is lost, delete the machine first: fleet delete "+living.Machine
	case errors.Is(err, store.ErrSessionEnded):
		p.signedOut(w, http.StatusUnauthorized)
		return
	case errors.Is(err, machine.ErrNotYours):
		status, out.Message = http.StatusForbidden, "This installation was admitted by somebody else."
	default:
		p.Log.Error("cannot look a code up", "error", err.Error())
		out.Message = "The plane cannot answer now. Try again."
	}
	p.show(w, status, out)
}

// look is POST /approve/look.
func (p *Pages) look(w http.ResponseWriter, r *http.Request, v visitor) {
	d, normal, _ := enrol.Digest(r.PostFormValue("code"))
	req, err := p.Store.Look(r.Context(), d, v.by(), p.Now())
	if err != nil {
		p.refused(w, v, err)
		return
	}
	left := int((req.ExpiresAt.Sub(p.Now()) + time.Minute - 1) / time.Minute)
	p.show(w, http.StatusOK, page{Title: "Is this your machine?", Person: v.Person, Token: p.formToken(v), Form: "review", Code: wire.ShowCode(normal), Report: req.Report,
		Expires: strconv.Itoa(left), Touch: p.RequireTouch})
}

// decide is POST /approve/decide.
func (p *Pages) decide(w http.ResponseWriter, r *http.Request, v visitor) {
	d, normal, _ := enrol.Digest(r.PostFormValue("code"))
	dec := store.Decision{By: v.by(), At: p.Now(), Code: d, Approve: r.PostFormValue("decision") == "approve"}
	done := page{Title: "Denied", Person: v.Person, Token: p.formToken(v), Form: "code", Message: "The machine was refused. It is told no more than that its request is over."}
	switch {
	case !dec.Approve && r.PostFormValue("decision") != "deny":
		p.show(w, http.StatusBadRequest, page{Title: "Approve a machine", Person: v.Person, Token: p.formToken(v), Form: "code", Bad: true, Message: "Nothing was decided."})
		return
	case dec.Approve && p.RequireTouch:
		p.show(w, http.StatusForbidden, page{Title: "Approve a machine", Person: v.Person, Token: p.formToken(v), Form: "code", Bad: true,
			Message: "This plane admits machines only with a touch of your security key, which this page cannot ask for. Run: fleet approve " + wire.ShowCode(normal)})
		return
	}
	did, err := p.Store.Decide(r.Context(), dec)
	if err != nil {
		p.refused(w, v, err)
		return
	}
	if dec.Approve {
		done.Title, done.Machine = "Admitted", did.Row.ID
		done.Message = "The machine is admitted and belongs to you. It picks this up within seconds."
	}
	p.show(w, http.StatusOK, done)
}

// offer is GET /web/sign-in. It uses nothing up.
func (p *Pages) offer(w http.ResponseWriter, r *http.Request) {
	link := r.URL.Query().Get("link")
	owner, err := p.Store.LinkOwner(r.Context(), secret.Of(link).Digest(), p.Now())
	if err != nil {
		p.deadLink(w)
		return
	}
	var raw [32]byte
	rand.Read(raw[:])
	value := base64.RawURLEncoding.EncodeToString(raw[:])
	p.setCookie(w, cookieForm, value, linkForm)
	p.show(w, http.StatusOK, page{Title: "Sign in", Form: "sign-in", Link: link, Owner: owner, Token: p.token("sign-in", []byte(value))})
}

// linkForm is how long the button of a link may be waited with.
const linkForm = 5 * time.Minute

func (p *Pages) deadLink(w http.ResponseWriter) {
	p.show(w, http.StatusNotFound, page{Title: "Sign in", Form: "how", Bad: true, Message: "This link is not good any more. It is good once, and for two minutes."})
}

// signIn is POST /web/sign-in.
func (p *Pages) signIn(w http.ResponseWriter, r *http.Request) {
	c, err := r.Cookie(cookieForm)
	if err != nil || r.ParseForm() != nil || !p.ours(r, p.token("sign-in", []byte(c.Value))) {
		p.show(w, http.StatusForbidden, page{Title: "Sign in", Form: "how", Bad: true, Message: "This form was not sent by this page, or is too old. Nothing was done."})
		return
	}
	session := secret.New("fw_")
	now := p.Now()
	who, err := p.Store.SpendLink(r.Context(), secret.Of(r.PostFormValue("link")).Digest(), session.Digest(), now, now.Add(Life))
	if err != nil {
		if !errors.Is(err, store.ErrNotFound) {
			p.Log.Error("cannot sign in", "error", err.Error())
		}
		p.deadLink(w)
		return
	}
	p.Log.Info("signed in to the pages", "person", who.Name)
	p.setCookie(w, cookieForm, "", 0)
	p.setCookie(w, cookieSession, session.Reveal(), Life)
	http.Redirect(w, r, wire.PathApprovePage, http.StatusSeeOther)
}

// signOut is POST /web/sign-out.
func (p *Pages) signOut(w http.ResponseWriter, r *http.Request, v visitor) {
	if err := p.Store.Logout(r.Context(), v.session, p.Now()); err != nil && !errors.Is(err, store.ErrNotFound) {
		p.refused(w, v, err)
		return
	}
	p.setCookie(w, cookieSession, "", 0)
	p.show(w, http.StatusOK, page{Title: "Signed out", Form: "how", Message: "You are signed out."})
}

// setCookie sets a cookie that only this host gets back, and only from itself.
// A life of 0 takes it away.
func (p *Pages) setCookie(w http.ResponseWriter, name, value string, life time.Duration) {
	c := &http.Cookie{Name: name, Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: int(life / time.Second)}
	if life == 0 {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}
