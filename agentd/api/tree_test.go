package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/agentd/files"
	"fleet.example/fleet/core/wire"
)

// A request that is no copy's is refused before anything is opened.
func TestACopyIsAskedForInOrder(t *testing.T) {
	s, _ := server(t)
	s.Files = &files.Files{Tree: files.Everything{}, Home: t.TempDir()}
	h := s.AgentServer().Handler
	tok, _ := s.Tokens.Mint(time.Minute, "")
	id := strings.Repeat("0a", 16)
	for _, x := range []struct {
		upgrade, body string
		status        int
	}{
		{"", `{}`, http.StatusUpgradeRequired},
		{wire.UpgradeForward, `{}`, http.StatusUpgradeRequired},
		{wire.UpgradeTree, `{`, http.StatusBadRequest},
		{wire.UpgradeTree, `{"op":"send","path":"x"}`, http.StatusBadRequest},
		{wire.UpgradeTree, `{"op":"send","id":"../` + id[3:] + `"}`, http.StatusBadRequest},
		{wire.UpgradeTree, `{"op":"take","id":"` + id + `"}`, http.StatusBadRequest},
		{wire.UpgradeTree, `{"op":"lane","id":"` + id + `"}`, http.StatusNotFound},
		{wire.UpgradeTree, `{"op":"send","id":"` + id + `","path":"none"}`, http.StatusNotFound},
		{wire.UpgradeTree, `{"op":"send","id":"` + id + `","path":"."}`, http.StatusConflict}, // a directory, and not recursive
		{wire.UpgradeTree, `{"op":"send","id":"` + id + `","path":"/dev/null"}`, http.StatusConflict},
		{wire.UpgradeTree, `{"op":"send","id":"` + id + `","path":"a\u0000b"}`, http.StatusBadRequest},
		{wire.UpgradeTree, `{"op":"receive","id":"` + id + `","path":"none/x","base":"x"}`, http.StatusNotFound},
		{wire.UpgradeTree, `{"op":"receive","id":"` + id + `","path":".","base":"a/b"}`, http.StatusBadRequest},
	} {
		r := httptest.NewRequest("POST", wire.PathTree, strings.NewReader(x.body))
		r.Header.Set("Authorization", "Bearer "+tok.Reveal())
		r.Header.Set("Upgrade", x.upgrade)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != x.status {
			t.Errorf("%s: %d: %s", x.body, w.Code, w.Body)
		}
	}
	if len(s.copies.byID) != 0 {
		t.Errorf("%d copies are under way", len(s.copies.byID))
	}
}

// There are no more copies at a time than the agent has memory for, and an
// attempt ends the one before it.
func TestCopiesAreBounded(t *testing.T) {
	var c copies
	var first *copying
	for i := range maxCopies {
		n, err := c.begin(string(rune('a'+i)), func() {})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = n
		}
	}
	if _, err := c.begin("more", func() {}); err == nil {
		t.Error("one more is taken")
	}
	ended := false
	first.end = func() {
		if !ended {
			ended = true
			c.finish("a", first)
		}
	}
	if n, err := c.begin("a", func() {}); err != nil || n == first || !ended {
		t.Errorf("%v, ended: %v", err, ended)
	}
}
