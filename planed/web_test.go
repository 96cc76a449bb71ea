package planed_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// TestThePagesOfARunningPlane goes the whole way over a real plane: a link, a
// browser's session, a waiting machine, an approval, and the pick-up by curl;
// and holds that curl cannot tell what became of other requests. // R7
func TestThePagesOfARunningPlane(t *testing.T) {
	p := newPlane(t)
	key := newKey(t)
	owner, err := p.login(key, p.invite)
	if err != nil {
		t.Fatal(err)
	}
	l, err := owner.WebLink(t.Context())
	if err != nil || !strings.HasPrefix(l.URL, p.url+wire.PathSignInPage+"?link=fl_") {
		t.Fatal(l.URL, err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots))
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(tr.CloseIdleConnections)
	browser := &http.Client{Transport: tr, Jar: jar, Timeout: 20 * time.Second}
	read := func(resp *http.Response, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	field := func(page string) string {
		t.Helper()
		m := regexp.MustCompile(`name="token" value="([0-9a-f]+)"`).FindStringSubmatch(page)
		if m == nil {
			t.Fatal(page)
		}
		return m[1]
	}
	link := strings.SplitN(l.URL, "link=", 2)[1]
	page := read(browser.PostForm(p.url+wire.PathSignInPage, url.Values{"link": {link}, "token": {field(read(browser.Get(l.URL)))}}))
	if !strings.Contains(page, "Signed in as") || !strings.Contains(page, "dana") {
		t.Fatal(page)
	}
	token := field(page)

	apply := func() (code string, poll secret.Text) {
		t.Helper()
		poll = secret.New("fp_")
		a, err := p.client(secret.Text{}).Enroll(t.Context(), wire.EnrollRequest{InstallationDigest: secret.New("").Digest().Hex(), CredentialDigest: secret.New("fm_").Digest().Hex(),
			PollDigest: poll.Digest().Hex(), Report: wire.EnrollReport{Host: "box", Account: "ops", OS: "linux", Arch: "amd64", Scope: "user"}})
		if err != nil {
			t.Fatal(err)
		}
		return a.Code, poll
	}
	decide := func(code, decision string) string {
		t.Helper()
		return read(browser.PostForm(p.url+"/approve/decide", url.Values{"token": {token}, "code": {code}, "decision": {decision}}))
	}
	code, poll := apply()
	if page := read(browser.PostForm(p.url+"/approve/look", url.Values{"token": {token}, "code": {code}})); !strings.Contains(page, "Nobody has vouched for it") || !strings.Contains(page, "ops") {
		t.Fatal(page)
	}
	if page := decide(code, "approve"); !strings.Contains(page, "Admitted") {
		t.Fatal(page)
	}
	denied, deniedPoll := apply()
	decide(denied, "deny")

	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("the rest takes curl")
	}
	roots := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(roots, []byte(p.roots), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(bearer, path, body string) string {
		t.Helper()
		out, err := exec.Command(curl, "-sS", "-i", "--cacert", roots, "-X", "POST", "-H", "Authorization: Bearer "+bearer, "-d", body, p.url+path).CombinedOutput()
		if err != nil {
			t.Fatal(err, string(out))
		}
		return regexp.MustCompile(`(?m)^Date: .*\r\n`).ReplaceAllString(string(out), "")
	}
	if out := ask(poll.Reveal(), wire.PathEnrollPoll, ""); !strings.Contains(out, `"approved"`) || strings.Contains(out, "fm_") {
		t.Fatal(out)
	}
	person := p.session(t, key)
	seen := map[string][]string{}
	for name, s := range map[string]secret.Text{"used": poll, "refused": deniedPoll, "unknown": secret.New("fp_"), "no secret": secret.Of("x")} {
		out := ask(s.Reveal(), wire.PathEnrollPoll, "")
		seen[out] = append(seen[out], name)
	}
	if len(seen) != 1 || !strings.Contains(fmt.Sprint(seen), "401") {
		t.Errorf("polls are told apart: %v", seen)
	}
	for _, path := range []string{wire.PathEnrollmentLook, wire.PathEnrollmentApprove, wire.PathEnrollmentDeny} {
		seen := map[string][]string{}
		for name, c := range map[string]string{"used": code, "refused": denied, "unknown": "0000-0000", "no code": "hello"} {
			body, _ := json.Marshal(wire.CodeRequest{Code: c})
			out := ask(person.Reveal(), path, string(body))
			seen[out] = append(seen[out], name)
		}
		if len(seen) != 1 || !strings.Contains(fmt.Sprint(seen), "404") {
			t.Errorf("%s: codes are told apart: %v", path, seen)
		}
	}
}
