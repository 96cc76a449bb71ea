package web

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/enrol"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
	"fleet.example/fleet/planed/store/bolt"
)

var update = flag.Bool("update", false, "write the golden files anew")

// site is the pages over a real store and TLS, with two persons.
type site struct {
	t     *testing.T
	now   time.Time
	store *bolt.Store
	pages *Pages
	srv   *httptest.Server
	by    map[string]machine.By
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), by: map[string]machine.By{}}
	clock := func() time.Time { return s.now }
	var err error
	s.store, err = bolt.Open(filepath.Join(t.TempDir(), "db"), bolt.Options{Create: true, Now: clock})
	must(t, err)
	t.Cleanup(func() { s.store.Close() })
	for _, p := range []string{"dana", "mo"} {
		inv, sess := secret.New("fi_"), secret.New("fs_")
		must(t, s.store.Invite(t.Context(), store.Invitation{Actor: "local:init", Digest: inv.Digest(), Person: p, Role: wire.RoleOwner, At: s.now, ExpiresAt: s.now.Add(time.Hour)}))
		_, err := s.store.Login(t.Context(), store.Login{Fingerprint: "SHA256:" + p, Key: "k", Invitation: inv.Digest(), Session: sess.Digest(), At: s.now, ExpiresAt: s.now.Add(12 * time.Hour)})
		must(t, err)
		s.by[p] = machine.By{Actor: "person:" + p, Person: p, Owner: true, Session: sess.Digest()}
	}
	mux := http.NewServeMux()
	s.srv = httptest.NewTLSServer(mux)
	t.Cleanup(s.srv.Close)
	s.pages = New(Config{Store: s.store, URL: s.srv.URL, Now: clock, Log: hclog.NewNullLogger()})
	for pattern, h := range s.pages.Handlers() {
		mux.Handle(pattern, h)
	}
	return s
}

// browser is one with its own cookies, that does not follow redirects.
type browser struct {
	*site
	http *http.Client
	jar  http.CookieJar
}

func (s *site) browser() *browser {
	jar, err := cookiejar.New(nil)
	must(s.t, err)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}
	s.t.Cleanup(tr.CloseIdleConnections)
	return &browser{s, &http.Client{Transport: tr, Jar: jar, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, jar}
}

type answer struct {
	*http.Response
	body string
}

func (b *browser) do(method, path string, form url.Values, header ...string) answer {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.srv.URL+path, strings.NewReader(form.Encode()))
	must(b.t, err)
	if method == "POST" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", b.srv.URL)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i+1] == "" {
			req.Header.Del(header[i])
		}
	}
	resp, err := b.http.Do(req)
	must(b.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(b.t, err)
	return answer{resp, string(body)}
}

var tokenField = regexp.MustCompile(`name="token" value="([0-9a-f]{64})"`)

func (a answer) token(t *testing.T) string {
	t.Helper()
	m := tokenField.FindStringSubmatch(a.body)
	if m == nil {
		t.Fatalf("a page without a form: %d %s", a.StatusCode, a.body)
	}
	return m[1]
}

func (s *site) link(person string) secret.Text {
	s.t.Helper()
	l := secret.New("fl_")
	must(s.t, s.store.MakeLink(s.t.Context(), s.by[person], "SHA256:"+person, l.Digest(), s.now, s.now.Add(2*time.Minute)))
	return l
}

// signIn signs the browser in and returns the token of its forms.
func (b *browser) signIn(person string) string {
	b.t.Helper()
	link := b.link(person).Reveal()
	offer := b.do("GET", "/web/sign-in?link="+link, nil)
	a := b.do("POST", "/web/sign-in", url.Values{"link": {link}, "token": {offer.token(b.t)}})
	if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/approve" {
		b.t.Fatal(a.StatusCode, a.body)
	}
	return b.do("GET", "/approve", nil).token(b.t)
}

func (s *site) waiting(report wire.EnrollReport) string {
	s.t.Helper()
	code := enrol.NewCode()
	d, _, _ := enrol.Digest(code)
	must(s.t, s.store.Enrol(s.t.Context(), d, enrol.Request{Installation: secret.New("").Digest(), Credential: secret.New("fm_").Digest(), Poll: secret.New("fp_").Digest(),
		Report: enrol.Report(report), At: s.now, ExpiresAt: s.now.Add(enrol.Life)}))
	return wire.ShowCode(code)
}

var box = wire.EnrollReport{Host: "box", Account: "ops", OS: "linux", Arch: "amd64", Version: "1.0.0", Scope: "user"}

func (s *site) machines() (n int, owner string) {
	s.t.Helper()
	must(s.t, s.store.EachMachine(s.t.Context(), func(r *machine.Row) error { n++; owner = r.Owner; return nil }))
	return n, owner
}

// TestAPersonApprovesInABrowser is the whole way, and holds what the pages look
// like. // R7, R8
func TestAPersonApprovesInABrowser(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	show := func(name string, a answer, status int) answer {
		t.Helper()
		if a.StatusCode != status {
			t.Fatalf("%s: %d %s", name, a.StatusCode, a.body)
		}
		got := tokenField.ReplaceAllString(a.body, `name="token" value="…"`)
		got = regexp.MustCompile(`fl_[\w-]{43}`).ReplaceAllString(got, "fl_…")
		got = regexp.MustCompile(`m_[a-z2-7]{26}`).ReplaceAllString(got, "m_…")
		got = regexp.MustCompile(`\b[0-9A-Z]{4}-[0-9A-Z]{4}\b`).ReplaceAllString(strings.ReplaceAll(got, "ABCD-EFGH", "abcd-efgh"), "CODE-CODE")
		path := filepath.Join("testdata", name+".golden")
		if *update {
			must(t, os.WriteFile(path, []byte(got), 0o644))
		}
		want, err := os.ReadFile(path)
		must(t, err)
		if got != string(want) {
			t.Errorf("%s differs; got:\n%s", path, got)
		}
		return a
	}
	show("signed-out", b.do("GET", "/approve", nil), 200)
	link := s.link("dana").Reveal()
	offer := show("sign-in", b.do("GET", "/web/sign-in?link="+link, nil), 200)
	b.do("POST", "/web/sign-in", url.Values{"link": {link}, "token": {offer.token(t)}})
	token := show("code", b.do("GET", "/approve", nil), 200).token(t)
	show("wrong-code", b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {"0000-0000"}}), 404)
	code := s.waiting(box)
	show("review", b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {strings.ToLower(code)}}), 200)
	if n, _ := s.machines(); n != 0 {
		t.Fatal("looking admitted it")
	}
	show("admitted", b.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {code}, "decision": {"approve"}}), 200)
	if n, owner := s.machines(); n != 1 || owner != "dana" {
		t.Fatal(n, owner)
	}
	if a := b.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {code}, "decision": {"approve"}}); a.StatusCode != 404 {
		t.Error("approved twice:", a.StatusCode)
	}
	show("denied", b.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {s.waiting(box)}, "decision": {"deny"}}), 200)
	if a := b.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {s.waiting(box)}, "decision": {"maybe"}}); a.StatusCode != 400 {
		t.Error(a.StatusCode)
	}
	show("signed-out-now", b.do("POST", "/web/sign-out", url.Values{"token": {token}}), 200)
	if a := b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {code}}); a.StatusCode != 401 {
		t.Error("a session outlives signing out:", a.StatusCode)
	}
	if n, _ := s.machines(); n != 1 {
		t.Error(n)
	}
	doc, err := s.store.Audit(t.Context(), store.AuditFilter{})
	must(t, err)
	seen := ""
	for _, e := range doc.Entries {
		seen += e.Actor + " " + e.Action + "\n"
	}
	for _, want := range []string{"person:dana person.web_link\n", "person:dana person.web_login\n", "person:dana enroll.approve\n", "person:dana enroll.deny\n", "person:dana person.logout\n"} {
		if !strings.Contains(seen, want) {
			t.Errorf("not audited: %s", want)
		}
	}
}

// TestFormsFromElsewhereDoNothing: without the token of this very session, or
// from another site, nothing happens, signing in included. (CSRF)
func TestFormsFromElsewhereDoNothing(t *testing.T) {
	s := newSite(t)
	victim, attacker := s.browser(), s.browser()
	token, others := victim.signIn("dana"), attacker.signIn("mo")
	code := s.waiting(box)
	for name, c := range map[string]struct {
		token  string
		header []string
	}{
		"no token":              {"", nil},
		"another's token":       {others, nil},
		"a made-up one":         {strings.Repeat("0", 64), nil},
		"another site":          {token, []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}},
		"a site of the domain":  {token, []string{"Origin", s.srv.URL, "Sec-Fetch-Site", "same-site"}},
		"an opaque origin":      {token, []string{"Origin", "null", "Sec-Fetch-Site", ""}},
		"another site, no meta": {token, []string{"Origin", "https://evil.example", "Sec-Fetch-Site", ""}},
	} {
		for _, path := range []string{"/approve/look", "/approve/decide", "/web/sign-out"} {
			a := victim.do("POST", path, url.Values{"token": {c.token}, "code": {code}, "decision": {"approve"}}, c.header...)
			if a.StatusCode != http.StatusForbidden || strings.Contains(a.body, "ops") {
				t.Errorf("%s, %s: %d", name, path, a.StatusCode)
			}
		}
	}
	if n, _ := s.machines(); n != 0 {
		t.Fatal("a form from elsewhere admitted a machine")
	}
	// Old browsers say nothing of where a form comes from; the token counts.
	if a := victim.do("POST", "/approve/look", url.Values{"token": {token}, "code": {code}}, "Origin", "", "Sec-Fetch-Site", ""); a.StatusCode != 200 {
		t.Error(a.StatusCode)
	}
	// Nobody is signed in as the attacker by a form that the attacker sent.
	link := s.link("mo").Reveal()
	foreign := attacker.do("GET", "/web/sign-in?link="+link, nil).token(t)
	fresh := s.browser()
	for _, token := range []string{foreign, ""} {
		if a := fresh.do("POST", "/web/sign-in", url.Values{"link": {link}, "token": {token}}); a.StatusCode != http.StatusForbidden || len(a.Cookies()) > 0 {
			t.Error("signed in by a foreign form:", a.StatusCode)
		}
	}
	own := fresh.do("GET", "/web/sign-in?link="+link, nil).token(t)
	if a := fresh.do("POST", "/web/sign-in", url.Values{"link": {link}, "token": {own}}, "Origin", "https://evil.example"); a.StatusCode != http.StatusForbidden {
		t.Error(a.StatusCode)
	}
	if a := fresh.do("POST", "/web/sign-in", url.Values{"link": {link}, "token": {own}}); a.StatusCode != http.StatusSeeOther {
		t.Error("the link was used up by forms that did nothing:", a.StatusCode)
	}
}

// TestASessionCannotBeFixedBeforehand: whatever cookies a browser brings,
// signing in makes a new session; and cookies go to this host alone.
func TestASessionCannotBeFixedBeforehand(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	at, err := url.Parse(s.srv.URL)
	must(t, err)
	known := secret.New("fw_").Reveal()
	b.jar.SetCookies(at, []*http.Cookie{{Name: cookieSession, Value: known, Path: "/", Secure: true}})
	b.signIn("dana")
	var got string
	for _, c := range b.jar.Cookies(at) {
		if c.Name == cookieSession {
			got = c.Value
		}
	}
	if got == known || !strings.HasPrefix(got, "fw_") {
		t.Fatal("the session is the one that was there")
	}
	thief := s.browser()
	thief.jar.SetCookies(at, []*http.Cookie{{Name: cookieSession, Value: known, Path: "/", Secure: true}})
	if a := thief.do("GET", "/approve", nil); strings.Contains(a.body, "Signed in as") {
		t.Error("the known cookie is signed in")
	}
	link := s.link("dana").Reveal()
	offer := thief.do("GET", "/web/sign-in?link="+link, nil)
	a := thief.do("POST", "/web/sign-in", url.Values{"link": {link}, "token": {offer.token(t)}})
	for _, c := range append(offer.Cookies(), a.Cookies()...) {
		if !strings.HasPrefix(c.Name, "__Host-") || !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" {
			t.Errorf("%+v", c)
		}
	}
}

// TestALinkIsGoodOnceAndForAShortTime, and opening it uses nothing up: mail
// scanners open links too.
func TestALinkIsGoodOnceAndForAShortTime(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	link := s.link("dana").Reveal()
	var token string
	for _, method := range []string{"GET", "HEAD", "GET"} {
		a := b.do(method, "/web/sign-in?link="+link, nil)
		if a.StatusCode != 200 {
			t.Fatal(method, a.StatusCode)
		}
		if method == "GET" {
			token = a.token(t)
		}
	}
	use := func(link, token string) int {
		return b.do("POST", "/web/sign-in", url.Values{"link": {link}, "token": {token}}).StatusCode
	}
	if got := use(link, token); got != http.StatusSeeOther {
		t.Fatal(got)
	}
	dead := map[string]string{"used": link, "unknown": secret.New("fl_").Reveal(), "none": ""}
	dead["replaced"] = s.link("mo").Reveal()
	s.link("mo")
	dead["expired"] = s.link("dana").Reveal()
	s.now = s.now.Add(2 * time.Minute)
	pages := map[string]string{}
	for name, l := range dead {
		a := b.do("GET", "/web/sign-in?link="+l, nil)
		if a.StatusCode != 404 {
			t.Errorf("%s: %d", name, a.StatusCode)
		}
		pages[a.body] = name
		// With a form's token of a good link.
		good := s.link("mo").Reveal()
		if got := use(l, b.do("GET", "/web/sign-in?link="+good, nil).token(t)); got != 404 {
			t.Errorf("%s: %d", name, got)
		}
	}
	if len(pages) != 1 {
		t.Errorf("dead links are told apart: %v", pages)
	}
	// Neither is a session of the other kind.
	for _, d := range []secret.Digest{s.by["dana"].Session, secret.Of(s.link("dana").Reveal()).Digest()} {
		if _, err := s.store.Browser(t.Context(), d, s.now); err == nil {
			t.Error("a program's session or a link opens the pages")
		}
	}
	at, _ := url.Parse(s.srv.URL)
	b.signIn("dana")
	for _, c := range b.jar.Cookies(at) {
		if _, err := s.store.Principal(t.Context(), secret.Of(c.Value).Digest(), s.now); err == nil {
			t.Error("a browser's session opens the API")
		}
	}
	if _, err := s.store.Principal(t.Context(), s.link("dana").Digest(), s.now); err == nil {
		t.Error("a link opens the API")
	}
}

// TestALockEndsBrowsersToo: sessions and links, at the next request. // R8
func TestALockEndsBrowsersToo(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	token, code, link := b.signIn("dana"), s.waiting(box), s.link("dana").Reveal()
	if _, err := s.store.ChangePerson(t.Context(), store.PersonChange{By: s.by["mo"], At: s.now, Name: "dana", Lock: true}); err != nil {
		t.Fatal(err)
	}
	if a := b.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {code}, "decision": {"approve"}}); a.StatusCode != 401 {
		t.Error(a.StatusCode)
	}
	if a := b.do("GET", "/web/sign-in?link="+link, nil); a.StatusCode != 404 {
		t.Error(a.StatusCode)
	}
	c := s.browser()
	token = c.signIn("mo")
	s.now = s.now.Add(Life)
	if a := c.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {code}, "decision": {"approve"}}); a.StatusCode != 401 {
		t.Error("a session has no end:", a.StatusCode)
	}
	if n, _ := s.machines(); n != 0 {
		t.Error(n)
	}
}

var (
	forms  = regexp.MustCompile(`<form [^>]*action="([^"]*)"`)
	inline = regexp.MustCompile(`(?i)<script|<iframe|<img|\son[a-z]+\s*=|\sstyle\s*=|javascript:|https?://`)
)

// TestEveryPageKeepsOtherSitesOut: no frame, no script, nothing loaded from
// elsewhere, no redirect or form that a request could send elsewhere - on
// failures too. (clickjacking, open redirects, injection)
func TestEveryPageKeepsOtherSitesOut(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	evil := wire.EnrollReport{Host: `"><script>alert(1)</script>`, Account: `<img src=x onerror=alert(1)>`, OS: `javascript:alert(1)`, Arch: `' onload='x`, Version: "https://evil.example/"}
	token := b.signIn("dana")
	code := s.waiting(evil)
	answers := map[string]answer{
		"start":      b.do("GET", "/approve?next=https://evil.example&code="+url.QueryEscape(`"><script>`), nil),
		"signed out": s.browser().do("GET", "/approve?next=//evil.example", nil),
		"review":     b.do("POST", "/approve/look?next=//evil.example", url.Values{"token": {token}, "code": {code}, "next": {"https://evil.example"}}),
		"wrong code": b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {`"><script>alert(1)</script>`}}),
		"no token":   b.do("POST", "/approve/look", url.Values{"code": {code}}),
		"dead link":  b.do("GET", "/web/sign-in?link="+url.QueryEscape(`"><script>alert(1)</script>`), nil),
		"offer":      b.do("GET", "/web/sign-in?link="+s.link("mo").Reveal()+"&next=https://evil.example", nil),
		"too large":  b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {strings.Repeat("A", 20<<10)}}),
		"style":      b.do("GET", "/web/style.css", nil),
	}
	link := s.link("dana").Reveal()
	offer := b.do("GET", "/web/sign-in?link="+link, nil)
	answers["signed in"] = b.do("POST", "/web/sign-in?next=https://evil.example", url.Values{"link": {link}, "token": {offer.token(t)}, "next": {"https://evil.example"}})
	for name, a := range answers {
		for k, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "same-origin", "Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin",
		} {
			if got := a.Header.Get(k); got != want {
				t.Errorf("%s: %s is %q", name, k, got)
			}
		}
		if l := a.Header.Get("Location"); l != "" && l != "/approve" {
			t.Errorf("%s: redirected to %s", name, l)
		}
		shown := a.body
		if name == "review" { // what the machine says stands there, as text
			for _, text := range []string{"&lt;script&gt;", "&lt;img", "javascript:alert(1)", "&#39; onload=&#39;x", "https://evil.example/"} {
				if !strings.Contains(shown, text) {
					t.Errorf("the review lacks %s: %s", text, shown)
				}
			}
			shown = regexp.MustCompile(`(?s)<dl>.*?</dl>`).ReplaceAllString(shown, "")
		}
		if m := inline.FindString(shown); m != "" && name != "style" {
			t.Errorf("%s: %q", name, m)
		}
		for _, f := range forms.FindAllStringSubmatch(a.body, -1) {
			if !strings.HasPrefix(f[1], "/") || strings.HasPrefix(f[1], "//") {
				t.Errorf("%s: a form leads to %s", name, f[1])
			}
		}
	}
	if a := answers["too large"]; a.StatusCode != http.StatusBadRequest {
		t.Error(a.StatusCode)
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "script") {
		t.Error(policy)
	}
}

// TestDeadCodesLookAlikeHere holds the pages to what the API does. // R7
func TestDeadCodesLookAlikeHere(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	expired := s.waiting(box)
	s.now = s.now.Add(enrol.Life)
	token := b.signIn("dana")
	used, denied := s.waiting(box), s.waiting(box)
	for code, d := range map[string]string{used: "approve", denied: "deny"} {
		if a := b.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {code}, "decision": {d}}); a.StatusCode != 200 {
			t.Fatal(a.StatusCode)
		}
	}
	seen := map[string][]string{}
	for name, code := range map[string]string{"expired": expired, "used": used, "denied": denied, "unknown": enrol.NewCode(), "no code": "hello"} {
		a := b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {code}})
		a.Header.Del("Date")
		k := fmt.Sprint(a.StatusCode, a.Header, a.body)
		seen[k] = append(seen[k], name)
	}
	if len(seen) != 1 {
		t.Errorf("codes are told apart: %v", seen)
	}
	for i := 5; ; i++ {
		a := b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {enrol.NewCode()}})
		if a.StatusCode == http.StatusTooManyRequests {
			if i != enrol.MaxWrong || a.Header.Get("Retry-After") == "" {
				t.Errorf("limited after %d codes", i)
			}
			break
		}
		if i > enrol.MaxWrong {
			t.Fatal("codes are not limited")
		}
	}
	if a := b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {s.waiting(box)}}); a.StatusCode != http.StatusTooManyRequests {
		t.Error("a right code is told from a wrong one over the limit:", a.StatusCode)
	}
}

func TestAPlaneThatWantsATouchApprovesNothingHere(t *testing.T) {
	s := newSite(t)
	s.pages.RequireTouch = true
	b := s.browser()
	token, code := b.signIn("dana"), s.waiting(box)
	a := b.do("POST", "/approve/look", url.Values{"token": {token}, "code": {code}})
	if strings.Contains(a.body, `value="approve"`) || !strings.Contains(a.body, "fleet approve "+code) {
		t.Error(a.body)
	}
	if a := b.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {code}, "decision": {"approve"}}); a.StatusCode != http.StatusForbidden {
		t.Error(a.StatusCode)
	}
	if n, _ := s.machines(); n != 0 {
		t.Error(n)
	}
	if a := b.do("POST", "/approve/decide", url.Values{"token": {token}, "code": {code}, "decision": {"deny"}}); a.StatusCode != 200 {
		t.Error(a.StatusCode)
	}
}

// TestPagesAreMadeForPhones: the viewport, one column, targets of a finger's
// size, text large enough that a phone does not zoom, labels, a language.
func TestPagesAreMadeForPhones(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	b.signIn("dana")
	page, style := b.do("GET", "/approve", nil).body, b.do("GET", "/web/style.css", nil).body
	for _, want := range []string{`<html lang="en">`, `name="viewport" content="width=device-width, initial-scale=1"`, `<label for="code">`, `id="code"`, `autocapitalize="characters"`, `autocomplete="off"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, want := range []string{"min-height: 3rem", "max-width: 32rem", "overflow-wrap: anywhere", "font: 17px", "prefers-color-scheme: dark", ":focus-visible"} {
		if !strings.Contains(style, want) {
			t.Errorf("the stylesheet lacks %s", want)
		}
	}
	if len(page)+len(style) > 8<<10 {
		t.Errorf("page and stylesheet are %d bytes", len(page)+len(style))
	}
}

func FuzzForms(f *testing.F) {
	f.Add("token=1&code=ABCD-EFGH&decision=approve", "x")
	f.Add("%zz;;&code=%00", "__Host-fleet=\xff")
	f.Fuzz(func(t *testing.T, form, cookie string) {
		p := New(Config{Store: nobody{}, URL: "https://plane", Now: time.Now, Log: hclog.NewNullLogger()})
		mux := http.NewServeMux()
		for pattern, h := range p.Handlers() {
			mux.Handle(pattern, h)
		}
		for _, path := range []string{"/approve/look", "/approve/decide", "/web/sign-in", "/web/sign-out"} {
			r := httptest.NewRequest("POST", path, strings.NewReader(form))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Cookie", cookie)
			rec := httptest.NewRecorder()
			mux.ServeHTTP(rec, r)
			if rec.Code != 401 && rec.Code != 403 {
				t.Errorf("%s: %d", path, rec.Code)
			}
		}
	})
}

// nobody is a store in which nobody is signed in; the rest of it panics.
type nobody struct{ Store }

func (nobody) Browser(context.Context, secret.Digest, time.Time) (store.Principal, error) {
	return store.Principal{}, store.ErrNotFound
}
