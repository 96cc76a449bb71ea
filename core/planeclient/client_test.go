package planeclient

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
)

// fakePlane is a TLS server with a plane's chain and a handler of the test's.
func fakePlane(t *testing.T, h http.HandlerFunc) (url string, authority *ca.Server) {
	t.Helper()
	key, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	root, err := ca.NewRoot(key, now)
	if err != nil {
		t.Fatal(err)
	}
	interKey, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	inter, err := ca.NewIntermediate(root, key, interKey, now)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	authority = &ca.Server{Root: root, Intermediate: inter, Key: interKey, URL: "https://127.0.0.1", Now: time.Now}
	chain, err := authority.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{*chain}, MinVersion: tls.VersionTLS13}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.URL, authority
}

func pemOf(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

func client(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	url, authority := fakePlane(t, h)
	c, err := New(Options{URL: url, RootsPEM: pemOf(authority.Root), Token: secret.Of("fs_x")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestWhatIsNoPlaneIsSaidToBeNone(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"a captive portal": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Write([]byte("<html>please log in</html>"))
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://portal.example/", http.StatusFound)
		},
		"a proxy's error": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(502)
			w.Write([]byte(`{"oops":true}`))
		},
		"an empty document": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte(`{}`))
		},
		"garbage called JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte(`<html>`))
		},
	} {
		_, err := client(t, h).Whoami(t.Context())
		if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || f.Code != "not_a_plane" || f.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusalsBecomeExitCodes(t *testing.T) {
	var status int
	var detail wire.ErrorDetail
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer fs_x" {
			t.Error("the token is missing")
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"code":%q,"message":%q,"deleted":{"machine":"m_x","name":"web","at":"2026-01-02T03:04:05Z","by":"person:dana","last_presented":null}}}`, detail.Code, detail.Message)
	})
	for _, tt := range []struct {
		status int
		code   string
		exit   int
		words  string
	}{
		{401, "unauthorized", fault.NeedPerson, "session or token"},
		{403, "forbidden", fault.Refused, "because"},
		{404, "not_found", fault.NotFound, "because"},
		{409, "conflict", fault.Refused, "because"},
		{410, "deleted", fault.NotFound, "web (m_x) was deleted at 2026-01-02T03:04:05Z by person:dana; its credential was never presented"},
		{400, "bad_request", fault.Usage, "because"},
		{429, "busy", fault.Unreachable, "because"},
		{503, "busy", fault.Unreachable, "because"},
		{500, "internal", fault.Failure, "because"},
	} {
		status, detail = tt.status, wire.ErrorDetail{Code: tt.code, Message: "because"}
		_, err := c.Machine(t.Context(), "m_x")
		if f := fault.Of(err); f == nil || f.Exit != tt.exit || !strings.Contains(f.Msg, tt.words) {
			t.Errorf("%d: %v", tt.status, err)
		}
		if tt.status >= 500 && tt.status != 500 && !strings.Contains(fault.Of(err).Hint, "7 seconds") {
			t.Errorf("%d: hint %q", tt.status, fault.Of(err).Hint)
		}
		var gone *DeletedError
		if errors.As(err, &gone) != (tt.status == 410) {
			t.Errorf("%d: %v", tt.status, err)
		}
	}
}

func TestALongOrEndlessAnswerIsBounded(t *testing.T) {
	c := client(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"name":"`))
		for range maxAnswer/1024 + 10 {
			w.Write([]byte(strings.Repeat("x", 1024)))
		}
	})
	_, err := c.Whoami(t.Context())
	if f := fault.Of(err); f == nil || f.Code != wire.CodeTooLarge {
		t.Fatal(err)
	}
	c = client(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"schema":"x","machines":[{"id":"m_x"},`))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	_, err = c.Machines(t.Context(), wire.MachineFilter{})
	if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || !strings.Contains(f.Msg, "cut off") {
		t.Fatal(err)
	}
}

func TestUnreachableGivesTheCauseInItsOwnWords(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c, err := New(Options{URL: "https://" + addr})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Version(t.Context())
	if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || !strings.Contains(f.Msg, "connection refused") {
		t.Fatal(err)
	}
	url, _ := fakePlane(t, nil)
	if c, err = New(Options{URL: url}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Version(t.Context())
	if f := fault.Of(err); f == nil || f.Code != "plane_untrusted" || f.Exit != fault.Unreachable {
		t.Fatal(err)
	}
}

// A silent port accepts and says nothing.
func TestASilentPortDoesNotHangForEver(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	c, err := New(Options{URL: "https://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Version(ctx)
	if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable {
		t.Fatal(err)
	}
	if _, err = VerifyPin(ctx, "https://"+l.Addr().String(), "sha256:"+strings.Repeat("0", 64)); fault.Of(err).Exit != fault.Unreachable {
		t.Fatal(err)
	}
}

func TestThePinFindsTheRootAndNothingElse(t *testing.T) {
	url, authority := fakePlane(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"schema":"fleet.version/v1","version":"1"}`))
	})
	roots, err := VerifyPin(t.Context(), url, ca.Pin(authority.Root))
	if err != nil || roots != pemOf(authority.Root) {
		t.Fatal(roots, err)
	}
	c, err := New(Options{URL: url, RootsPEM: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if v, err := c.Version(t.Context()); err != nil || v.Version != "1" {
		t.Fatal(v, err)
	}
	other := sha256.Sum256([]byte("another"))
	_, err = VerifyPin(t.Context(), url, fmt.Sprintf("sha256:%x", other))
	if f := fault.Of(err); f == nil || f.Code != "plane_pin_mismatch" || f.Exit != fault.Refused || !strings.Contains(f.Msg, ca.Pin(authority.Root)) {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "sha256:", "sha256:zz", "md5:00", strings.Repeat("0", 64)} {
		if _, err = VerifyPin(t.Context(), url, bad); fault.Of(err).Exit != fault.Usage {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// The pinned root presented, but another authority's leaf before it.
	_, mallory := fakePlane(t, nil)
	leaf, err := mallory.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	chain := []*x509.Certificate{leaf.Leaf, mallory.Intermediate, authority.Root}
	if _, err := pinned(chain, sha256.Sum256(authority.Root.RawSubjectPublicKeyInfo), "127.0.0.1"); err == nil {
		t.Error("a foreign leaf was taken")
	}
	// The right chain for another host.
	good, err := authority.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	chain = []*x509.Certificate{good.Leaf, authority.Intermediate, authority.Root}
	if _, err := pinned(chain, sha256.Sum256(authority.Root.RawSubjectPublicKeyInfo), "plane.example"); err == nil {
		t.Error("another host's certificate was taken")
	}
}
