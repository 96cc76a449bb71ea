package api

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/agentd/logfile"
	"fleet.example/fleet/agentd/session"
	"fleet.example/fleet/agentd/token"
	"fleet.example/fleet/agentd/watch"
	"fleet.example/fleet/core/wire"
)

type fakeAgent struct{ stopped string }

func (*fakeAgent) Identity() wire.Identity     { return wire.Identity{Schema: wire.SchemaIdentity} }
func (*fakeAgent) Status() wire.AgentStatus    { return wire.AgentStatus{Schema: wire.SchemaAgent} }
func (a *fakeAgent) Stop(reason string) error  { a.stopped = reason; return nil }
func (*fakeAgent) Start() error                { return nil }
func (*fakeAgent) Restart() error              { return nil }
func (*fakeAgent) Drain(bool) error            { return nil }
func (*fakeAgent) Draining() bool              { return false }
func (*fakeAgent) Probe(context.Context) error { return nil }
func (*fakeAgent) Reload()                     {}

func server(t testing.TB) (*Server, *fakeAgent) {
	a := &fakeAgent{}
	dir := t.TempDir()
	return &Server{Agent: a, Tokens: &token.Set{}, Watches: &watch.Set{}, Log: logfile.Open(filepath.Join(dir, "log")), Logger: hclog.NewNullLogger(),
		Sessions: &session.Manager{Dir: filepath.Join(dir, "sessions"), Run: dir, Shim: "/nonexistent", Getenv: func(string) string { return "" },
			Account: account.Account{Home: "/"}, Machine: func() string { return "" }, Log: hclog.NewNullLogger()}}, a
}

func TestEveryRouteOfTheAgentsSocketNeedsAToken(t *testing.T) { // R31
	s, a := server(t)
	h := s.AgentServer().Handler
	want := ""
	for _, rt := range append(agentRoutes, route{"GET", "/nothing", nil}, route{"PATCH", "/v1/status", nil}) {
		for _, auth := range []string{"", "Bearer", "Bearer ", "Bearer fa_x", "Basic x"} {
			r := httptest.NewRequest(rt.method, strings.ReplaceAll(rt.path, "{id}", "s_aaaaaaaaaa"), nil)
			if auth != "" {
				r.Header.Set("Authorization", auth)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			got := w.Body.String()
			if want == "" {
				want = got
			}
			if w.Code != http.StatusUnauthorized || got != want {
				t.Errorf("%s %s with %q: %d %s", rt.method, rt.path, auth, w.Code, got)
			}
		}
	}
	if a.stopped != "" {
		t.Fatal("an unauthenticated request stopped the agent")
	}
}

func TestListenRefusesWhatOthersCouldReach(t *testing.T) { // R31
	dir, err := os.MkdirTemp("", "ap")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	open, private := filepath.Join(dir, "open"), filepath.Join(dir, "private")
	os.Mkdir(open, 0o755)
	os.Chmod(open, 0o755)
	os.Mkdir(private, 0o700)
	os.Symlink(private, filepath.Join(dir, "link"))
	os.WriteFile(filepath.Join(private, "file"), nil, 0o600)
	for name, path := range map[string]string{
		"an open directory": filepath.Join(open, "s"), "a symbolic link": filepath.Join(dir, "link", "s"),
		"a file in the way": filepath.Join(private, "file"), "a path too long": filepath.Join(private, strings.Repeat("x", 104)),
	} {
		if l, err := Listen(path, nil); err == nil {
			l.Close()
			t.Errorf("%s was taken", name)
		}
	}
	for range 2 { // a socket that a dead agent left is replaced
		l, err := Listen(filepath.Join(private, "s"), nil)
		if err != nil {
			t.Fatal(err)
		}
		l.socket.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
}

func FuzzSessionRequest(f *testing.F) {
	s, _ := server(f)
	f.Add(`{"argv":["true"],"env":{"A":"b"},"pty":{"term":"x","rows":1,"cols":2}}`)
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequest("POST", wire.PathSessions, strings.NewReader(body))
		w := httptest.NewRecorder()
		s.createSession(w, r)
		var e wire.Error
		// The shim does not exist, so nothing can be started: each request must
		// be refused in words.
		if w.Code < 400 || json.Unmarshal(w.Body.Bytes(), &e) != nil || e.Error.Code == "" {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if entries, _ := os.ReadDir(s.Sessions.Dir); len(entries) > 0 {
			t.Fatal("a session that did not start left a directory")
		}
	})
}

func TestAFullSocketIsClosedAllTheSame(t *testing.T) { // R29
	dir, err := os.MkdirTemp("", "ap")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	l, err := Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	full := make(chan struct{}, maxConns)
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			full <- struct{}{}
		}
	}()
	for range maxConns {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		<-full
	}
	l.Close()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("a socket with all its connections taken goes on accepting after it was closed")
	}
}
