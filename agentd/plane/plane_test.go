package plane

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/fakeplane"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

func connect(t *testing.T, p *fakeplane.Plane) *Client {
	t.Helper()
	c, err := New(credential.Plane{URL: p.URL, RootsPEM: p.Roots}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func cred(doc wire.Credential) credential.Credential {
	return credential.Credential{Machine: doc.Machine, Generation: doc.Generation, Secret: secret.Of(doc.Secret)}
}

var mark = wire.CheckMark{Instance: "x", Seq: 1, Clock: time.Unix(0, 0)}

func TestOnlyThePlanesOwnRootsAreBelieved(t *testing.T) { // R22
	p, doc := fakeplane.Start(t)
	if _, err := connect(t, p).Check(t.Context(), cred(doc), mark, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	other, _ := fakeplane.Start(t)
	c, err := New(credential.Plane{URL: p.URL, RootsPEM: other.Roots}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := len(p.Seen())
	_, err = c.Check(t.Context(), cred(doc), mark, []byte("{}"))
	if err == nil || !strings.Contains(err.Error(), "not from the plane's roots") || len(p.Seen()) != n {
		t.Fatalf("err = %v", err)
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	c, err = New(credential.Plane{URL: strings.Replace(plain.URL, "http:", "https:", 1), RootsPEM: p.Roots}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Check(t.Context(), cred(doc), mark, []byte("{}")); err == nil {
		t.Fatal("a plane without TLS was believed")
	}
}

func TestKeptConnectionThatTheServerClosedIsReplacedAtOnce(t *testing.T) { // R17, R19
	p, doc := fakeplane.Start(t)
	c := connect(t, p)
	for range 3 {
		if _, err := c.Check(t.Context(), cred(doc), mark, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		p.CloseConnections()
	}
}

func TestSilentServerCostsOneDeadline(t *testing.T) { // R17
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it accepts nothing: the handshake hangs
	_, doc := fakeplane.Start(t)
	c, err := New(credential.Plane{URL: "https://" + l.Addr().String(), RootsPEM: doc.Plane.RootsPEM}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Check(ctx, cred(doc), mark, []byte("{}")); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("err = %v", err)
	}
}

func TestGateIsPresented(t *testing.T) {
	p, doc := fakeplane.Start(t)
	got := ""
	p.Answer = func(_ http.ResponseWriter, r *http.Request) bool { got = r.Header.Get(wire.HeaderGate); return false }
	c, err := New(credential.Plane{URL: p.URL, RootsPEM: p.Roots}, &wire.CredentialGate{Version: 1, Value: "fg_x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Check(t.Context(), cred(doc), mark, []byte("{}")); err != nil || got != "fg_x" {
		t.Fatal(got, err)
	}
}

func FuzzAnswer(f *testing.F) { // R22: whatever comes back, only the exact words mean something
	f.Add(200, `{"machine":"m_x","interval_s":30}`, "")
	f.Add(410, `{"error":{"code":"revoked","machine":"m_x"}}`, "")
	f.Add(503, `<html>`, "1e300")
	f.Fuzz(func(t *testing.T, status int, body, after string) {
		r := refusal(status, after, []byte(body))
		if r.RetryAfter < 0 || r.RetryAfter > maxRetryAfter {
			t.Fatalf("retry after %v", r.RetryAfter)
		}
		want := map[string]int{wire.CodeRevoked: 410, wire.CodeBehind: 409, wire.CodeUnauthorized: 401}
		if s, ok := want[r.Code]; ok && (s != status || !strings.Contains(body, "error")) {
			t.Fatalf("%s concluded from status %d: %q", r.Code, status, body)
		}
		if strings.Contains(body, "<") && strings.Contains(r.Error(), "<html") {
			t.Fatal("the answer's text is quoted")
		}
	})
}

// TestAClockIsBlamedForThePlanesOwnCertificateAlone: one that ran out and is
// somebody else's says nothing of this machine's clock.
func TestAClockIsBlamedForThePlanesOwnCertificateAlone(t *testing.T) { // R22, R27
	for name, v := range map[string]struct {
		ahead time.Duration
		words string
	}{
		"behind by a year":      {365 * 24 * time.Hour, "361 days behind"},
		"ahead by ten years":    {-10 * 365 * 24 * time.Hour, "9 years ahead"},
		"ahead by fifteen days": {-15 * 24 * time.Hour, "this machine's clock is at least 24h0m"},
	} {
		p, doc := fakeplane.StartAt(t, v.ahead)
		_, err := connect(t, p).Check(t.Context(), cred(doc), mark, []byte("{}"))
		var off *ClockError
		if !errors.As(err, &off) || !strings.Contains(err.Error(), v.words) || (off.Off < 0) != (v.ahead > 0) {
			t.Errorf("%s: %v", name, err)
		}
		other, _ := fakeplane.Start(t)
		c, err := New(credential.Plane{URL: p.URL, RootsPEM: other.Roots}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Check(t.Context(), cred(doc), mark, []byte("{}")); err == nil || errors.As(err, &off) || !strings.Contains(err.Error(), "not the plane") {
			t.Errorf("%s, of another root: %v", name, err)
		}
		c, err = New(credential.Plane{URL: strings.Replace(p.URL, "127.0.0.1", "localhost", 1), RootsPEM: p.Roots}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Check(t.Context(), cred(doc), mark, []byte("{}")); err == nil || errors.As(err, &off) {
			t.Errorf("%s, under another name: %v", name, err)
		}
		if len(p.Seen()) > 0 {
			t.Errorf("%s: something was sent", name)
		}
	}
}
