package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/agentd/fakeplane"
	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/wire"
)

type seen = fakeplane.Seen

func TestInstalledSecretIsRotatedAwayAfterTheFirstCheck(t *testing.T) { // R1, R20
	m, p, doc := installed(t)
	m.start()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	m.await("the promotion on disk", func() bool {
		b, _ := os.ReadFile(m.data + "/credential")
		_, err := os.Stat(m.data + "/credential.next")
		return !bytes.Contains(b, []byte(doc.Secret)) && os.IsNotExist(err)
	})
	if b, _ := os.ReadFile(m.data + "/credential.previous"); !bytes.Contains(b, []byte(doc.Secret)) {
		t.Fatal("the previous credential is not kept")
	}
	var first seen
	for _, s := range p.Seen() {
		if s.Path == wire.PathCheck {
			first = s
			break
		}
	}
	if first.Mark.Seq != 1 || first.Mark.Mark != "" || first.Body.Version != "1.2.3" || first.Body.Readiness != nil || first.Body.Lifecycle.State != wire.SaidRunning {
		t.Fatalf("%+v", first)
	}
	p.Await(t, "an echoed mark", func(s seen) bool { return s.Mark.Seq == 3 && s.Mark.Mark == "m2" }) // R28
	s := m.awaitStatus("an ok credential", func(s wire.AgentStatus) bool { return s.Credential == wire.CredentialOK && s.Generation == 2 })
	if s.Machine != doc.Machine || s.LastCheck == nil || !s.LastCheck.OK || s.Plane != p.URL {
		t.Fatalf("%+v", s)
	}
	id, err := m.client().Identity(ctx(t))
	if err != nil || id.Row == nil || !id.Row.Fresh || id.Row.Machine != doc.Machine || len(id.OrderAudience) != 64 {
		t.Fatalf("%+v %v", id, err)
	}
}

func TestRequestedRotationIsEchoedOnce(t *testing.T) { // R16
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	want := time.Now().UTC().Truncate(time.Millisecond)
	p.Lock()
	p.Requests.Rotate = &want
	p.Unlock()
	p.Await(t, "the echo", func(s seen) bool {
		return s.Body.Echo.Rotate != nil && s.Body.Echo.Rotate.Equal(want) && s.Generation == 3
	})
	m.kill() // at once: nothing but the credential itself records the answer
	n := len(p.Seen())
	m.start()
	p.Await(t, "more checks", func(s seen) bool { return len(p.Seen()) > n+3 })
	p.Lock()
	defer p.Unlock()
	if p.Generation != 3 {
		t.Fatalf("generation %d: an answered request was answered again", p.Generation)
	}
}

func TestNoSecretInArgvEnvironmentOrLog(t *testing.T) { // R1, R31, R39
	m, p, doc := installed(t)
	m.start()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	tok, err := m.Token(ctx(t), false)
	if err != nil {
		t.Fatal(err)
	}
	c := m.client()
	s, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "sleep 1000; : argument-of-mine"}, Env: map[string]string{"PRIVATE": "value-of-mine"}})
	if err != nil {
		t.Fatal(err)
	}
	var current, rec struct{ Secret, Token string }
	for name, into := range map[string]any{"/credential": &current, "/sessions/" + s.ID + "/record": &rec} {
		b, err := os.ReadFile(m.data + name)
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	secrets := []string{doc.Secret, current.Secret, tok.Reveal(), rec.Token}
	for _, x := range secrets {
		if len(x) < 20 {
			t.Fatalf("a secret of %d characters", len(x))
		}
	}
	lock, err := os.ReadFile(m.data + "/sessions/" + s.ID + "/lock")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{fmt.Sprint(m.cmd.Process.Pid), strings.TrimSpace(string(lock)), fmt.Sprint(s.PID)} {
		for _, f := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile("/proc/" + pid + "/" + f)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range secrets {
				if bytes.Contains(b, []byte(x)) {
					t.Errorf("a secret stands in the %s of process %s", f, pid)
				}
			}
			if pid != fmt.Sprint(s.PID) && (bytes.Contains(b, []byte("of-mine"))) {
				t.Errorf("the command's argv or environment stands in the %s of process %s", f, pid)
			}
		}
	}
	log, err := os.ReadFile(m.data + "/log/agentd.log")
	if err != nil || !bytes.Contains(log, []byte(s.ID)) {
		t.Fatal("the log does not name the session", err)
	}
	for _, x := range append(secrets, "of-mine", "sleep", strings.Repeat("ab", 16)) {
		if bytes.Contains(log, []byte(x)) || strings.Contains(m.log.String(), x) {
			t.Error("the log tells what it must not")
		}
	}
	// Nothing but the credential's and sessions' own files holds a secret, and
	// every file is closed to others.
	filepath.WalkDir(m.data, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == m.data+"/v" {
			return filepath.SkipDir
		}
		st, err := os.Lstat(path)
		if err == nil && st.Mode().Type() != os.ModeSymlink && st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, st.Mode())
		}
		return nil
	})
	for _, f := range []string{"tcp", "tcp6"} { // agentd owns no TCP listener
		b, _ := os.ReadFile("/proc/" + fmt.Sprint(m.cmd.Process.Pid) + "/net/" + f)
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", m.cmd.Process.Pid))
		for _, l := range links {
			to, _ := os.Readlink(l)
			inode := strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")
			for line := range strings.Lines(string(b)) {
				if fields := strings.Fields(line); len(fields) > 9 && fields[9] == inode && fields[3] == "0A" {
					t.Errorf("agentd listens on TCP: %s", line)
				}
			}
		}
	}
	c.Signal(ctx(t), s.ID, "KILL")
}

func TestStopLeavesALatchThatOnlyStartRemoves(t *testing.T) { // R11, R12, R29
	m, p, _ := installed(t)
	svc := wire.ServiceRecord{Schema: wire.SchemaService, Scope: "user", Manager: "plain", DataDir: m.data, RuntimeDir: m.run,
		Start: []string{"sh", "-c", fmt.Sprintf("nohup %s/current/agentd run --data %s --runtime %s >/dev/null 2>&1 & echo $! >%s/pid", m.data, m.data, m.run, m.root)}}
	b, _ := json.Marshal(svc)
	if err := os.WriteFile(m.data+"/service.json", b, 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	p.Await(t, "a check", isCheck)
	s, err := m.client().Create(ctx(t), wire.SessionRequest{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	out := m.must("", "stop", "--json")
	if exit := m.ended(); exit != 0 {
		t.Fatalf("exit %d", exit)
	}
	var st wire.AgentStatus
	if json.Unmarshal([]byte(out), &st) != nil || st.State != "stopped" || !st.Latched {
		t.Fatalf("%s", out)
	}
	all := p.Seen()
	last := all[len(all)-1]
	if r := last.Body.Lifecycle.Reason; last.Body.Lifecycle.State != wire.SaidStopping || r == nil || *r != wire.ReasonPerson {
		t.Fatalf("the last check says %+v", last.Body.Lifecycle)
	}
	// Whatever starts it meets the latch.
	for range 2 {
		m.launch()
		if exit := m.ended(); exit != 0 {
			t.Fatalf("with the latch agentd run exits %d", exit)
		}
	}
	if n := len(p.Seen()); n != len(all) {
		t.Fatal("a latched agent made a check")
	}
	m.must("", "start")
	var pid int
	pb, _ := os.ReadFile(m.root + "/pid")
	fmt.Sscan(string(pb), &pid)
	if proc, err := os.FindProcess(pid); err == nil && pid > 1 {
		defer proc.Kill()
	}
	p.Await(t, "a check after start", func(s seen) bool { return isCheck(s) && s.At.After(last.At) && s.Mark.Instance != last.Mark.Instance })
	if one, err := m.client().Session(ctx(t), s.ID); err != nil || one.State != wire.SessionRunning { // R34
		t.Fatalf("%+v %v", one, err)
	}
	m.must("", "stop")
}

func TestAgentThatStaysUpWhenStoppedIsSilent(t *testing.T) { // R29
	m, p, _ := installed(t)
	b, _ := json.Marshal(wire.ServiceRecord{Schema: wire.SchemaService, Manager: "respawn", StayWhenStopped: true})
	if err := os.WriteFile(m.data+"/service.json", b, 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	p.Await(t, "a check", isCheck)
	m.must("", "stop")
	p.Await(t, "the last check", func(s seen) bool { return s.Body.Lifecycle.State == wire.SaidStopping })
	m.kill()
	n := len(p.Seen())
	m.start()
	if s := m.status(); s.State != "stopped" || !m.running() {
		t.Fatalf("%+v", s)
	}
	if len(p.Seen()) != n {
		t.Fatal("a stopped agent made a check")
	}
	m.must("", "start")
	p.Await(t, "a check after start", func(s seen) bool { return len(p.Seen()) > n && isCheck(s) })
	if s := m.status(); s.State != "running" || s.Latched {
		t.Fatalf("%+v", s)
	}
}

func TestReasonOfAStopIsToldBeforehand(t *testing.T) { // R11
	for _, reason := range []string{wire.ReasonUpdate, wire.ReasonSignal} {
		m, p, _ := installed(t)
		m.start()
		p.Await(t, "a check", isCheck)
		if reason != wire.ReasonSignal {
			if _, err := m.client().Stop(ctx(t), reason); err != nil {
				t.Fatal(err)
			}
		}
		if exit := m.term(); exit != 0 {
			t.Fatalf("exit %d", exit)
		}
		all := p.Seen()
		if l := all[len(all)-1].Body.Lifecycle; l.Reason == nil || *l.Reason != reason {
			t.Fatalf("%+v, want %s", l, reason)
		}
	}
}

func TestRestartBecomesTheInstalledProgramInTheSameProcess(t *testing.T) { // R29, R34
	m, p, _ := installed(t)
	m.start()
	first := p.Await(t, "a check", isCheck)
	c := m.client()
	s, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Restart(ctx(t)); err != nil {
		t.Fatal(err)
	}
	p.Await(t, "the restart", func(s seen) bool {
		return s.Body.Lifecycle.Reason != nil && *s.Body.Lifecycle.Reason == wire.ReasonRestart
	})
	p.Await(t, "a check of another instance", func(s seen) bool { return isCheck(s) && s.Mark.Instance != first.Mark.Instance })
	if !m.running() {
		t.Fatal("the process ended")
	}
	var out bytes.Buffer
	exit, _, err := c.Attach(ctx(t), s.ID, 0, agentclient.Attachment{Stdin: strings.NewReader("still here"), Stdout: &out})
	if err != nil || exit.Code != 0 || out.String() != "still here" {
		t.Fatal(exit, err, out.String())
	}
}

func TestSecondAgentOnOneDataDirectoryIsRefused(t *testing.T) {
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "a check", isCheck)
	_, errOut, exit := m.agentd("", "run")
	if exit != 9 || !strings.Contains(errOut, "another agentd") {
		t.Fatalf("exit %d: %s", exit, errOut)
	}
	if s := m.status(); s.State != "running" || s.PID != m.cmd.Process.Pid {
		t.Fatalf("%+v", s)
	}
}

func TestDeletedMachineWaitsForAPersonAndAnInstallWakesIt(t *testing.T) { // R22, R23
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	p.Lock()
	p.Deleted = true
	p.Unlock()
	s := m.awaitStatus("revoked", func(s wire.AgentStatus) bool { return s.State == "revoked" })
	if s.Credential != wire.CredentialRevoked || !m.running() {
		t.Fatalf("%+v", s)
	}
	var refused []seen
	for _, s := range p.Seen() {
		if s.Status == http.StatusGone && s.Path == wire.PathCheck {
			refused = append(refused, s)
		}
	}
	if len(refused) != 2 || refused[1].At.Sub(refused[0].At) < 600*time.Millisecond {
		t.Fatalf("%d refusals; two are needed, six test floors apart", len(refused))
	}
	m.await("the mark on disk", func() bool { _, err := os.Stat(m.data + "/revoked"); return err == nil })
	for _, f := range []string{"/credential", "/credential.previous"} {
		if _, err := os.Stat(m.data + f); err != nil {
			t.Fatal("a credential was discarded", err)
		}
	}
	m.kill()
	n := len(p.Seen())
	m.start()
	if s := m.status(); s.State != "revoked" || len(p.Seen()) != n {
		t.Fatalf("%+v", s)
	}
	p2, doc2 := fakeplane.Start(t)
	m.install(doc2)
	p2.Await(t, "a check of the new machine", isCheck)
	m.awaitStatus("the new machine", func(s wire.AgentStatus) bool { return s.State == "running" && s.Machine == doc2.Machine })
}

func TestBadPlanesNeverMakeTheAgentDiscardAnything(t *testing.T) { // R22
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"captive portal": func(w http.ResponseWriter, _ *http.Request) bool {
			io.WriteString(w, "<html>please log in</html>")
			return true
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Location", "https://127.0.0.1:1/login")
			w.WriteHeader(http.StatusFound)
			return true
		},
		"revoked for another machine": func(w http.ResponseWriter, _ *http.Request) bool {
			fakeplane.Refuse(w, http.StatusGone, wire.CodeRevoked, wire.NewMachineID())
			return true
		},
		"revoked with another status": func(w http.ResponseWriter, _ *http.Request) bool {
			fakeplane.Refuse(w, http.StatusForbidden, wire.CodeRevoked, p.Machine)
			return true
		},
		"server error": func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true },
		"truncated answer": func(w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprintf(w, `{"machine":%q,"interval_s":0.`, p.Machine)
			return true
		},
		"answer that ends early": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Length", "500")
			fmt.Fprintf(w, `{"machine":%q,"interval_s":1}`, p.Machine)
			return true
		},
		"captive portal with a status of its own": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusNetworkAuthenticationRequired)
			io.WriteString(w, "<html>please log in</html>")
			return true
		},
		"oversized answer": func(w http.ResponseWriter, _ *http.Request) bool { w.Write(make([]byte, 1<<20)); return true },
		"another machine's answer": func(w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprintf(w, `{"machine":%q,"interval_s":0.1}`, wire.NewMachineID())
			return true
		},
		"unauthorized": func(w http.ResponseWriter, _ *http.Request) bool {
			fakeplane.Refuse(w, http.StatusUnauthorized, wire.CodeUnauthorized, "")
			return true
		},
	} {
		m.await("the promotion on disk", func() bool { _, err := os.Stat(m.data + "/credential.next"); return os.IsNotExist(err) })
		before, _ := os.ReadFile(m.data + "/credential")
		p.Lock()
		n := p.Count()
		p.Answer = answer
		p.Unlock()
		p.Await(t, name, func(seen) bool { return len(p.Seen()) >= n+3 })
		p.Lock()
		p.Answer = nil
		n = p.Count()
		p.Unlock()
		p.Await(t, "a check after "+name, func(s seen) bool { return len(p.Seen()) > n && isCheck(p.Seen()[len(p.Seen())-1]) })
		if after, _ := os.ReadFile(m.data + "/credential"); !bytes.Equal(before, after) || !m.running() {
			t.Fatalf("%s: the credential changed, or the agent ended", name)
		}
	}
}

func TestPlaneThatIsDownIsComeBackTo(t *testing.T) { // R19, R22
	m, p, doc := installed(t)
	m.start()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	p.Lock()
	p.LoseAnswers = true
	n := p.Count()
	p.Unlock()
	p.Await(t, "lost answers", func(seen) bool { return len(p.Seen()) > n+3 })
	m.awaitStatus("a failed check", func(s wire.AgentStatus) bool { return s.LastCheck != nil && !s.LastCheck.OK && s.LastCheck.Error != "" })
	if c := m.status().Credential; c != wire.CredentialOK {
		t.Fatalf("credential %s: a lost answer says nothing of it", c)
	}
	p.Lock()
	p.LoseAnswers = false
	p.Unlock()
	m.awaitStatus("a good check", func(s wire.AgentStatus) bool { return s.LastCheck.OK && s.Machine == doc.Machine })
}

func TestEveryPathWithoutATokenGetsTheSame401(t *testing.T) { // R31
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "a check", isCheck)
	get := func(path, tok string) (int, string) {
		tr := &http.Transport{DisableKeepAlives: true, DialContext: m.dialer}
		req, err := http.NewRequestWithContext(ctx(t), "GET", "http://agent"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tok != "" {
			req.Header.Set("Authorization", "Bearer "+tok)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	for _, path := range []string{"/", "/v1/status", "/v1/nothing", "/v1/sessions/s_aaaaaaaaaa", "/v1/tokens"} {
		for _, tok := range []string{"", "fa_wrong"} {
			if code, body := get(path, tok); code != 401 || body != `{"error":{"code":"unauthorized"}}`+"\n" {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
	}
	tok := strings.TrimSpace(m.must("", "token"))
	if code, _ := get("/v1/status", tok); code != 200 {
		t.Fatalf("status %d with a token", code)
	}
	if code, body := get("/v1/nothing", tok); code != 404 || !strings.Contains(body, "not_found") {
		t.Fatal(code, body)
	}
	m.must("", "token", "revoke", "--all")
	if code, _ := get("/v1/status", tok); code != 401 {
		t.Fatalf("status %d with a revoked token", code)
	}
	tok = strings.TrimSpace(m.must("", "token"))
	m.kill()
	m.start()
	if code, _ := get("/v1/status", tok); code != 401 {
		t.Fatalf("status %d: a token outlived agentd", code)
	}
	for _, s := range []string{"agent.sock", "mint.sock"} {
		if st, err := os.Stat(m.run + "/" + s); err != nil || st.Mode().Perm() != 0o600 {
			t.Fatal(st.Mode(), err)
		}
	}
	if st, err := os.Stat(m.run); err != nil || st.Mode().Perm() != 0o700 {
		t.Fatal(st.Mode(), err)
	}
}

func (m *machine) dialer(ctx context.Context, _, _ string) (net.Conn, error) { return m.Dial(ctx) }

func TestTornCredentialIsKeptAsideAndSaid(t *testing.T) { // R21
	m, p, doc := installed(t)
	if err := os.WriteFile(m.data+"/credential", []byte(`{"schema":"fleet.machine-se`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	s := m.awaitStatus("the torn file to be said", func(s wire.AgentStatus) bool {
		return s.Credential == wire.CredentialMissing && len(s.Blockers) > 0
	})
	if s.Blockers[0].Code != "credential_damaged" || !m.running() {
		t.Fatalf("%+v", s)
	}
	m.install(doc) // the running agent takes it at once
	p.Await(t, "a check", isCheck)
	if b, err := os.ReadFile(m.data + "/credential.damaged"); err != nil || !bytes.HasPrefix(b, []byte("{")) {
		t.Fatal("the torn file was discarded", err)
	}
}

func TestInstallNeverReplacesAWorkingCredential(t *testing.T) { // R6
	m, p, doc := installed(t)
	m.start()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	m.await("the row on disk", func() bool { _, err := os.Stat(m.data + "/row.json"); return err == nil })
	m.install(doc) // the same one again: nothing happens
	other := doc
	other.Secret = "fm_" + strings.Repeat("x", 43)
	b, _ := json.Marshal(other)
	before, _ := os.ReadFile(m.data + "/credential")
	if _, errOut, exit := m.agentd(string(b), "credential", "install"); exit != 9 || strings.Contains(errOut, other.Secret) {
		t.Fatalf("exit %d: %s", exit, errOut)
	}
	if after, _ := os.ReadFile(m.data + "/credential"); !bytes.Equal(before, after) {
		t.Fatal("it was replaced")
	}
	for _, bad := range []string{"", "{", `{"schema":"fleet.credential/v1"}`, strings.Repeat("x", 1<<20), string(b[:len(b)-5])} {
		if _, errOut, exit := m.agentd(bad, "credential", "install"); exit != 2 || strings.Contains(errOut, "fm_") {
			t.Errorf("%.20q: exit %d: %s", bad, exit, errOut)
		}
	}
}

func TestLogIsServedAndFollowed(t *testing.T) {
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "a check", isCheck)
	c := m.client()
	var tail bytes.Buffer
	m.await("log lines", func() bool {
		tail.Reset()
		return c.Logs(ctx(t), 2, false, &tail) == nil && bytes.Count(tail.Bytes(), []byte("\n")) == 2
	})
	got := &hasher{}
	fctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Logs(fctx, 0, true, got) }()
	m.await("what follows", func() bool {
		if _, err := c.Drain(ctx(t)); err != nil {
			t.Fatal(err)
		}
		c.Undrain(ctx(t))
		return got.len() > 0
	})
	cancel()
	<-done
}

func TestBridgeReachesTheSocket(t *testing.T) { // R32
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "a check", isCheck)
	out := m.must("POST /v1/tokens HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "bridge", "--mint")
	if !strings.HasPrefix(out, "HTTP/1.1 200") || !strings.Contains(out, `"token":"fa_`) {
		t.Fatal(out)
	}
}

// A restart in place goes on with the account's own umask and reaps what the
// program before it started.
func TestRestartLeavesNothingOfTheProgramBefore(t *testing.T) { // R34
	old := syscall.Umask(0o027)
	m, _, _ := installed(t)
	m.start()
	syscall.Umask(old)
	c := m.client()
	umask := func() string {
		var out bytes.Buffer
		if _, _, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "umask"}}, agentclient.Attachment{Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out.String())
	}
	if got := umask(); got != "0027" {
		t.Fatal("umask", got)
	}
	s, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		before := m.status().StartedAt
		if _, err := c.Restart(ctx(t)); err != nil {
			t.Fatal(err)
		}
		m.await("the restart", func() bool {
			out, _, exit := m.agentd("", "status", "--json")
			var now wire.AgentStatus
			return exit == 0 && json.Unmarshal([]byte(out), &now) == nil && now.StartedAt != nil && !now.StartedAt.Equal(before.Time)
		})
	}
	if got := umask(); got != "0027" {
		t.Errorf("umask %s after a restart", got)
	}
	if _, err := c.Signal(ctx(t), s.ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	m.await("the reaping of all that ended", func() bool {
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, f := range stats {
			b, _ := os.ReadFile(f)
			_, rest, _ := strings.Cut(string(b), ") ")
			if f := strings.Fields(rest); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(m.cmd.Process.Pid) {
				return false
			}
		}
		return true
	})
}
