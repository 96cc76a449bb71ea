package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

func TestAPortToTheAgentAnswersItsCallerAlone(t *testing.T) { // R24, R31
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "a check", isCheck)
	echo := reverse(t, "tcp4", "127.0.0.1:0").Addr().(*net.TCPAddr).Port

	for name, stdin := range map[string]string{"none": "", "an empty line": "\n", "a short one": strings.Repeat("x", 31) + "\n",
		"one with blanks": strings.Repeat("x ", 32) + "\n", "a long one": strings.Repeat("x", 300) + "\n"} {
		if out, words, exit := m.front(stdin, "forward", "box", "0:agent"); exit != 2 || out != "" || !strings.Contains(words, "token") || strings.Contains(words, "xxx") {
			t.Errorf("with %s for a token: exit %d: %s%s", name, exit, out, words)
		}
	}
	for _, bind := range []string{"0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "192.0.2.1"} {
		if _, words, exit := m.front("", "forward", "box", bind+":0:agent"); exit != 2 || !strings.Contains(words, "loopback") {
			t.Errorf("at %s: exit %d: %s", bind, exit, words)
		}
	}

	s, err := m.client().Create(ctx(t), wire.SessionRequest{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	tok := strings.Repeat("0123456789abcdef", 4)
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() { // ends with the session
		_, exit := m.frontTo(w, target{m}, tok+"\n", "forward", "--json", "--session", s.ID, "box", "0:agent")
		w.Close()
		ended <- exit
	}()
	var doc wire.Forward
	if err := json.NewDecoder(r).Decode(&doc); err != nil || doc.Target != "agent" || strings.Contains(fmt.Sprint(doc), tok) {
		t.Fatalf("%+v %v", doc, err)
	}
	go io.Copy(io.Discard, r) // ends with the command
	onlyWithToken(t, doc.Listen, tok)

	// The agent's own token is not the caller's, nor the other way round.
	if resp, err := ask("tcp", doc.Listen, strings.TrimSpace(m.must("", "token")), nil); err != nil || resp.StatusCode != 401 {
		t.Error(resp, err)
	}
	if resp, err := ask("unix", m.run+"/agent.sock", tok, nil); err != nil || resp.StatusCode != 401 {
		t.Error(resp, err)
	}
	call := func(method, path, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx(t), method, "http://"+doc.Listen+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+tok)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp
	}
	// It survives the end of the agent's tokens, for requests with a body, too.
	for range 2 {
		m.must("", "token", "revoke", "--all")
		if resp := call("POST", wire.PathSessions, `{"argv":["true"]}`); resp.StatusCode/100 != 2 {
			t.Errorf("a session over the port: %s", resp.Status)
		}
		if resp := call("GET", "/v1/nothing", ""); resp.StatusCode != 404 {
			t.Errorf("a path that is not there: %s", resp.Status)
		}
	}
	// A sum that follows the body arrives, and is heeded.
	for sum, want := range map[string]int{fmt.Sprintf("%x", sha256.Sum256([]byte("whole"))): 2, strings.Repeat("0", 64): 4} {
		req, err := http.NewRequestWithContext(ctx(t), "PUT", "http://"+doc.Listen+wire.PathFiles+"over-the-port", io.MultiReader(strings.NewReader("whole")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+tok)
		req.Trailer = http.Header{wire.HeaderSHA256: {sum}}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode/100 != want {
			t.Errorf("a file whose sum is said to be %s: %s", sum, resp.Status)
		}
	}
	// And what becomes a stream does.
	c, err := net.Dial("tcp", doc.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(c, "GET %s?to=%d HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
		wire.PathForward, echo, doc.Listen, tok, wire.UpgradeForward)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	io.WriteString(c, "stream")
	c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(in); err != nil || string(b) != "maerts" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := m.client().Signal(ctx(t), s.ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	select {
	case exit := <-ended:
		if exit != 1 {
			t.Errorf("the forward ended with %s", strconv.Itoa(exit))
		}
	case <-time.After(time.Minute):
		t.Fatal("the forward goes on after its session")
	}
	if c, err := net.Dial("tcp", doc.Listen); err == nil {
		c.Close()
		t.Error("the port is still there")
	}
}
