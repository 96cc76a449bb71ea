package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/agentd/files"
	"fleet.example/fleet/agentd/workspace"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// apart is a server with two workspaces and a token for one of them.
type apart struct {
	t         *testing.T
	s         *Server
	h         http.Handler
	dir       string
	mine      secret.Text
	all       secret.Text
	bound     string
	sessionOf map[string]string
}

func newApart(t *testing.T) *apart {
	t.Helper()
	s, _ := server(t)
	dir := t.TempDir()
	s.Workspaces = &workspace.Manager{Dir: dir + "/workspaces", Account: account.Account{Home: dir, Shell: "/bin/sh"}, Getenv: os.Getenv, Log: hclog.NewNullLogger()}
	s.Files = &files.Files{Tree: files.Everything{}, Home: dir, Umask: 0o027}
	a := &apart{t: t, s: s, h: s.AgentServer().Handler, dir: dir, bound: dir + "/bound", sessionOf: map[string]string{}}
	if err := os.Mkdir(a.bound, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mine", "other"} {
		if _, err := s.Workspaces.Create(t.Context(), wire.WorkspaceRequest{Name: name, Binds: []string{a.bound, dir + "/none"}}); err != nil {
			t.Fatal(err)
		}
		a.put(dir+"/workspaces/"+name+"/file", name)
		// A session's record, as Create leaves it.
		id := "s_" + strings.Repeat(map[string]string{"mine": "a", "other": "b"}[name], 10)
		if err := os.MkdirAll(filepath.Join(s.Sessions.Dir, id), 0o700); err != nil {
			t.Fatal(err)
		}
		a.put(filepath.Join(s.Sessions.Dir, id, "record"), `{"id":"`+id+`","workspace":"`+name+`"}`)
		a.sessionOf[name] = id
	}
	a.put(dir+"/secret", "secret")
	a.put(a.bound+"/file", "bound")
	a.mine, _ = s.Tokens.Mint(0, "mine")
	a.all, _ = s.Tokens.Mint(0, "")
	return a
}

func (a *apart) put(path, text string) {
	a.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *apart) ask(tok secret.Text, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+tok.Reveal())
	w := httptest.NewRecorder()
	a.h.ServeHTTP(w, r)
	return w
}

// A token of a workspace is good for what is within it, and tells nothing of
// what is not.
func TestAWorkspacesTokenIsGoodForThatAlone(t *testing.T) { // R31, R33
	a := newApart(t)
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", wire.PathStatus, "", 200},
		{"GET", wire.PathIdentity, "", 200},
		{"GET", wire.PathWorkspaces + "/mine", "", 200},
		{"GET", wire.PathSessions + "/" + a.sessionOf["mine"], "", 200},
		{"GET", wire.PathWorkspaces + "/other", "", 403},
		{"GET", wire.PathWorkspaces + "/none", "", 403},
		{"GET", wire.PathWorkspaces, "", 403},
		{"POST", wire.PathWorkspaces, `{"name":"x"}`, 403},
		{"DELETE", wire.PathWorkspaces + "/mine", "", 403},
		{"GET", wire.PathSessions + "/" + a.sessionOf["other"], "", 404},
		{"GET", wire.PathSessions + "/s_cccccccccc", "", 404},
		{"POST", wire.PathSessions + "/" + a.sessionOf["other"] + "/signal", `{"signal":"KILL"}`, 404},
		{"POST", wire.PathSessions, `{"argv":["true"],"workspace":"other"}`, 403},
		{"POST", wire.PathSessions, `{"argv":["true"],"id":"` + a.sessionOf["other"] + `"}`, 403},
		{"GET", wire.PathLogs, "", 403},
		{"POST", wire.PathStop, "", 403},
		{"POST", wire.PathStart, "", 403},
		{"POST", wire.PathRestart, "", 403},
		{"POST", wire.PathDrain, "", 403},
		{"POST", wire.PathUndrain, "", 403},
		{"POST", wire.PathProbe, "", 403},
		{"GET", "/nothing", "", 403},
		{"PATCH", wire.PathStatus, "", 403},
	} {
		if w := a.ask(a.mine, c.method, c.path, c.body); w.Code != c.want {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
	covered := map[string]bool{}
	for _, rt := range agentRoutes {
		covered[rt.method+" "+rt.path] = true
	}
	for pattern := range within {
		if !covered[pattern] {
			t.Errorf("%s is no route", pattern)
		}
	}
	var list wire.Sessions
	if err := json.Unmarshal(a.ask(a.mine, "GET", wire.PathSessions, "").Body.Bytes(), &list); err != nil || len(list.Sessions) != 1 || list.Sessions[0].Workspace != "mine" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := json.Unmarshal(a.ask(a.all, "GET", wire.PathSessions, "").Body.Bytes(), &list); err != nil || len(list.Sessions) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	if w := a.ask(a.all, "GET", wire.PathWorkspaces, ""); w.Code != 200 || strings.Count(w.Body.String(), `"path"`) != 2 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestAWorkspacesFilesAreItsOwnAndTheBoundOnes(t *testing.T) { // R33
	a := newApart(t)
	mine := a.dir + "/workspaces/mine"
	for _, link := range [][2]string{{a.dir, mine + "/up"}, {a.dir + "/secret", mine + "/link"}, {"../other", mine + "/beside"}, {a.bound, mine + "/bound"}} {
		if err := os.Symlink(link[0], link[1]); err != nil {
			t.Fatal(err)
		}
	}
	file := func(p string) string { return wire.PathFiles + url.PathEscape(p) }
	for p, want := range map[string]string{
		"file": "mine", "~/file": "mine", mine + "/file": "mine", mine + "//./file": "mine", a.bound + "/file": "bound",
	} {
		if w := a.ask(a.mine, "GET", file(p), ""); w.Code != 200 || w.Body.String() != want {
			t.Errorf("%s: %d %s", p, w.Code, w.Body)
		}
	}
	for _, p := range []string{
		a.dir + "/secret", "../../secret", mine + "/../../secret", mine + "/../mine/../../secret", "up/secret", "link", "beside/file", mine + "x/file",
		a.dir + "/workspaces/other/file", a.bound + "/../secret", "bound/file", "/etc/passwd", "/proc/self/environ", "/proc/self/root/etc/passwd", "", "/",
	} {
		if w := a.ask(a.mine, "GET", file(p), ""); w.Code/100 != 4 || strings.Contains(w.Body.String(), "secret") && w.Body.String() == "secret" {
			t.Errorf("read %q: %d %s", p, w.Code, w.Body)
		}
		if w := a.ask(a.mine, "PUT", file(p), "owned"); w.Code/100 != 4 {
			t.Errorf("wrote %q: %d %s", p, w.Code, w.Body)
		}
		if p == "link" {
			continue // the link itself is the workspace's
		}
		if w := a.ask(a.mine, "DELETE", file(p)+"?recursive", ""); w.Code/100 == 2 {
			t.Errorf("removed %q: %d", p, w.Code)
		}
	}
	for path, want := range map[string]string{a.dir + "/secret": "secret", a.dir + "/workspaces/other/file": "other", a.bound + "/file": "bound", mine + "/file": "mine"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	// A workspace whose directory became a link elsewhere is none.
	if err := os.Rename(mine, mine+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(a.dir, mine); err != nil {
		t.Fatal(err)
	}
	if w := a.ask(a.mine, "GET", file("secret"), ""); w.Code/100 != 4 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// While another process turns what is in the way into links out and back, no
// request reads, writes or removes what is outside.
func TestARaceLeadsOutOfNoWorkspace(t *testing.T) { // R33
	a := newApart(t)
	mine := a.dir + "/workspaces/mine"
	if err := os.MkdirAll(mine+"/real", 0o700); err != nil {
		t.Fatal(err)
	}
	a.put(mine+"/real/secret", "inside")
	a.hostile(mine)
	at := wire.PathFiles + url.PathEscape("swap/secret")
	inside, refused := 0, 0
	for n, deadline := 0, time.Now().Add(time.Minute); n < 500 || inside == 0 || refused == 0; n++ {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was raced: %d reads inside, %d refused", inside, refused)
		}
		switch w := a.ask(a.mine, "GET", at, ""); {
		case w.Body.String() == "secret":
			t.Fatal("the outside was read")
		case w.Code == 200 && w.Body.String() == "inside":
			inside++
		case w.Code == 403:
			refused++
		}
		a.ask(a.mine, "PUT", at, "inside")
		a.ask(a.mine, "DELETE", wire.PathFiles+url.PathEscape("swap"), "")
	}
	if b, err := os.ReadFile(a.dir + "/secret"); err != nil || string(b) != "secret" {
		t.Errorf("%q, %v", b, err)
	}
}

// A workspace that is made anew under a name is none that an earlier token was
// made for.
func TestARemovedWorkspacesTokenIsOver(t *testing.T) { // R31
	a := newApart(t)
	if w := a.ask(a.all, "DELETE", wire.PathWorkspaces+"/mine", ""); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	if w := a.ask(a.mine, "GET", wire.PathStatus, ""); w.Code != 401 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := a.ask(a.all, "GET", wire.PathStatus, ""); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
