package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

// ask is one request on a connection of its own, without anything that would
// try again.
func ask(network, addr, token string, wait func()) (*http.Response, error) {
	c, err := net.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if wait != nil {
		wait()
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	host := "agent"
	if network == "tcp" {
		host = addr
	}
	if _, err := fmt.Fprintf(c, "GET /v1/status HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", host, token); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, err
}

func TestNobodyIsRefusedWhileTheAgentHandsOver(t *testing.T) { // R4, R29
	m, p, _ := installed(t)
	if err := os.WriteFile(m.data+"/listen", []byte("127.0.0.1:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	p.Await(t, "a check", isCheck)
	var port string
	m.awaitStatus("the loopback port", func(s wire.AgentStatus) bool { port = s.Listen; return port != "" })

	stop := make(chan struct{})
	var asked, kept atomic.Int64
	var wg sync.WaitGroup
	hammer := func(network, addr string, want int, wait func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := ask(network, addr, "fa_nobody", wait)
				if err != nil || resp.StatusCode != want {
					t.Errorf("%s %s: %v %v", network, addr, resp, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	for range 3 {
		hammer("unix", m.run+"/mint.sock", 200, nil)
		hammer("unix", m.run+"/agent.sock", 401, nil)
	}
	// Some connect long before they ask, as what is kept ready does: in one
	// program, and ask the next.
	restarted := make([]chan struct{}, 4)
	for i := range restarted {
		restarted[i] = make(chan struct{})
	}
	connected := make(chan struct{}, 64)
	for i := range restarted {
		for _, at := range [][2]string{{"unix", m.run + "/mint.sock"}, {"unix", m.run + "/agent.sock"}, {"tcp", port}} {
			wg.Go(func() {
				resp, err := ask(at[0], at[1], "fa_nobody", func() { connected <- struct{}{}; <-restarted[i] })
				if err != nil || resp.StatusCode != 401 && resp.StatusCode != 200 {
					t.Errorf("connected before restart %d, asked after it at %s: %v %v", i, at, resp, err)
				}
				kept.Add(1)
			})
			<-connected
		}
	}
	for i := range restarted {
		before := m.status()
		if _, err := m.client().Restart(ctx(t)); err != nil {
			t.Error(err)
			close(restarted[i])
			continue
		}
		m.awaitStatus("another program", func(s wire.AgentStatus) bool { return s.StartedAt.After(before.StartedAt.Time) })
		close(restarted[i])
	}
	close(stop)
	wg.Wait()
	if asked.Load() < 20 || kept.Load() != 12 {
		t.Errorf("%d requests and %d that waited", asked.Load(), kept.Load())
	}
	m.awaitStatus("the same port", func(s wire.AgentStatus) bool { return s.Listen == port })
	// No descriptor is left of the programs before.
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	listening := 0
	for _, f := range fds {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", m.cmd.Process.Pid, f.Name()))
		if strings.HasPrefix(to, "socket:") {
			listening++
		}
	}
	if listening > 12 {
		t.Errorf("%d sockets are open after four restarts", listening)
	}
}

func TestALoopbackPortAnswersNobodyWithoutAToken(t *testing.T) { // R24, R31
	m, p, _ := installed(t)
	os.WriteFile(m.data+"/listen", []byte("127.0.0.1:0\n"), 0o600)
	m.start()
	p.Await(t, "a check", isCheck)
	var port string
	m.awaitStatus("the loopback port", func(s wire.AgentStatus) bool { port = s.Listen; return port != "" })
	onlyWithToken(t, port, strings.TrimSpace(m.must("", "token")))
}

// onlyWithToken holds that a port of the loopback interface answers the holder
// of a token, and everybody else, whatever they say, with the same bytes.
func onlyWithToken(t *testing.T, port, tok string) {
	t.Helper()
	raw := func(request string) string {
		c, err := net.Dial("tcp", port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if err != nil && len(b) == 0 {
			t.Fatalf("%q: %v", request, err)
		}
		return string(b)
	}
	good := "Authorization: Bearer " + tok + "\r\n"
	host := "Host: " + port + "\r\n"
	want := raw("GET /v1/status HTTP/1.1\r\n" + host + "\r\n")
	if !strings.HasPrefix(want, "HTTP/1.1 401 ") || !strings.HasSuffix(want, `{"error":{"code":"unauthorized"}}`+"\n") ||
		strings.Contains(want, "Server") || strings.Contains(want, "Date") {
		t.Fatalf("%q", want)
	}
	for name, request := range map[string]string{
		"another path":        "GET /nothing HTTP/1.1\r\n" + host + "\r\n",
		"another method":      "DELETE /v1/tokens HTTP/1.1\r\n" + host + "\r\n",
		"everything":          "OPTIONS * HTTP/1.1\r\n" + host + "\r\n",
		"a preflight":         "OPTIONS /v1/sessions HTTP/1.1\r\n" + host + "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n",
		"a wrong token":       "GET /v1/status HTTP/1.1\r\n" + host + "Authorization: Bearer fa_wrong\r\n\r\n",
		"an empty token":      "GET /v1/status HTTP/1.1\r\n" + host + "Authorization: Bearer \r\n\r\n",
		"a token's beginning": "GET /v1/status HTTP/1.1\r\n" + host + "Authorization: Bearer " + tok[:len(tok)-1] + "\r\n\r\n",
		"another scheme":      "GET /v1/status HTTP/1.1\r\n" + host + "Authorization: Basic " + tok + "\r\n\r\n",
		"garbage":             "\x16\x03\x01\x02\x00\x01\r\n\r\n",
		"no host":             "GET /v1/status HTTP/1.1\r\n\r\n",
		"HTTP/2":              "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"an expectation":      "GET /v1/status HTTP/1.1\r\n" + host + "Expect: wonders\r\n\r\n",
		"an encoding":         "POST /v1/sessions HTTP/1.1\r\n" + host + "Transfer-Encoding: wonders\r\n\r\n",
		"a long header":       "GET /v1/status HTTP/1.1\r\n" + host + "X: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"a browser's page":    "GET /v1/status HTTP/1.1\r\n" + host + good + "Origin: https://evil.example\r\n\r\n",
		"a page of this host": "GET /v1/status HTTP/1.1\r\n" + host + good + "Origin: http://" + port + "\r\n\r\n",
		"a browser's picture": "GET /v1/status HTTP/1.1\r\n" + host + good + "Sec-Fetch-Site: cross-site\r\n\r\n",
		"a rebound name":      "GET /v1/status HTTP/1.1\r\nHost: evil.example\r\n" + good + "\r\n",
		"a lookalike":         "GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n" + good + "\r\n",
		"a mapped address":    "GET /v1/status HTTP/1.1\r\nHost: [::ffff:127.0.0.1]\r\n" + good + "\r\n",
	} {
		if got := raw(request); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, name := range []string{port, "localhost:1", "127.0.0.1"} {
		if got := raw("GET /v1/status HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\n" + good + "\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
			t.Errorf("with a token, as %s: %q", name, got)
		}
	}
	// It is the loopback interface's and nobody else's.
	_, number, _ := net.SplitHostPort(port)
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		ip, _, _ := net.ParseCIDR(a.String())
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		if c, err := net.DialTimeout("tcp", net.JoinHostPort(ip.String(), number), time.Second); err == nil {
			c.Close()
			t.Errorf("the port answers at %s", ip)
		}
	}
}

func TestTheAgentListensNowhereElse(t *testing.T) {
	m, p, _ := installed(t)
	for _, addr := range []string{"0.0.0.0:0", "[::]:0", ":0", "localhost:0", "[::ffff:127.0.0.1]:0", "192.0.2.1:0", "127.0.0.1", "127.1:0", "[::1%lo]:0", "2130706433:0", "*:0"} {
		if _, words, exit := m.agentd("", "run", "--listen", addr); exit != 2 || !strings.Contains(words, "loopback") {
			t.Errorf("agentd run --listen %s: exit %d: %s", addr, exit, words)
		}
	}
	// What the file says does not end an agent, and is not served.
	os.WriteFile(m.data+"/listen", []byte("0.0.0.0:0\n"), 0o600)
	m.start()
	p.Await(t, "a check", isCheck)
	m.awaitStatus("the finding", func(s wire.AgentStatus) bool {
		for _, b := range s.Blockers {
			if b.Code == "listener_unusable" && strings.Contains(b.Detail, "0.0.0.0") {
				return s.Listen == ""
			}
		}
		return false
	})
}
