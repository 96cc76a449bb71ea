// Package e2e tests the real agentd and agentd-shim over their real sockets,
// against a small plane over TLS.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/agentd/fakeplane"
	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/programs"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

var bin string

func TestMain(m *testing.M) {
	if size := os.Getenv(streamEnv); size != "" {
		if err := writeStream(size); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(programs.Main(m, &bin, func(dir string) error {
		return programs.Build(dir, []string{"-trimpath", "-ldflags", "-s -w -X main.version=1.2.3"}, "agentd", "agentd-shim")
	}))
}

// machine is one installation.
type machine struct {
	t         testing.TB
	root      string
	data, run string
	env       []string
	log       *programs.Output
	cmd       *exec.Cmd
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	root, err := os.MkdirTemp("", "fm") // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, root: root, data: root + "/d", run: root + "/r", log: &programs.Output{}}
	home := root + "/h"
	for _, d := range []string{m.data, home, m.data + "/v"} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"agentd", "agentd-shim"} {
		if err := os.Link(filepath.Join(bin, p), m.data+"/v/"+p); err != nil {
			b, err := os.ReadFile(filepath.Join(bin, p))
			if err == nil {
				err = os.WriteFile(m.data+"/v/"+p, b, 0o700)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink("v", m.data+"/current"); err != nil {
		t.Fatal(err)
	}
	m.env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	if err := os.WriteFile(m.data+"/installation", []byte(strings.Repeat("ab", 16)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.kill()
		m.killShims()
		if t.Failed() {
			t.Logf("agent's log:\n%s", m.log)
		}
		os.RemoveAll(root)
	})
	return m
}

// killShims ends the sessions that a test left.
func (m *machine) killShims() {
	locks, _ := filepath.Glob(m.data + "/sessions/*/lock")
	for _, l := range locks {
		var pid int
		b, _ := os.ReadFile(l)
		fmt.Sscan(string(b), &pid)
		f, err := os.Open(l)
		if err != nil {
			continue
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil && pid > 1 {
			kids, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
			for _, k := range strings.Fields(string(kids)) {
				var kid int
				fmt.Sscan(k, &kid)
				syscall.Kill(-kid, syscall.SIGKILL)
			}
			syscall.Kill(pid, syscall.SIGKILL)
		}
		f.Close()
	}
}

// agentd runs a short command of agentd.
func (m *machine) agentd(stdin string, args ...string) (out, errOut string, exit int) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.data+"/current/agentd", append(args, "--data", m.data, "--runtime", m.run)...)
	cmd.Env = m.env
	cmd.Stdin = strings.NewReader(stdin)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var x *exec.ExitError
	if err != nil && !errors.As(err, &x) {
		m.t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func (m *machine) must(stdin string, args ...string) string {
	m.t.Helper()
	out, errOut, exit := m.agentd(stdin, args...)
	if exit != 0 {
		m.t.Fatalf("agentd %v: exit %d: %s", args, exit, errOut)
	}
	return out
}

func (m *machine) install(doc wire.Credential) {
	m.t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		m.t.Fatal(err)
	}
	m.must(string(b), "credential", "install")
}

// start runs the daemon and waits until it answers.
func (m *machine) start() {
	m.t.Helper()
	m.launch()
	m.await("the agent's socket", func() bool {
		c, err := net.Dial("unix", m.run+"/mint.sock")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (m *machine) launch() {
	m.t.Helper()
	cmd := exec.Command(m.data+"/current/agentd", "run", "--data", m.data, "--runtime", m.run)
	cmd.Env = m.env
	cmd.Stderr = m.log
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.cmd = cmd
}

// kill is kill -9.
func (m *machine) kill() {
	if m.cmd != nil {
		m.cmd.Process.Kill()
		m.cmd.Wait()
		m.cmd = nil
	}
}

// term ends the daemon with SIGTERM and returns its exit code.
func (m *machine) term() int {
	m.t.Helper()
	m.cmd.Process.Signal(syscall.SIGTERM)
	return m.ended()
}

func (m *machine) ended() int {
	m.t.Helper()
	done := make(chan struct{})
	cmd := m.cmd
	go func() { cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		m.t.Fatal("agentd does not end")
	}
	m.cmd = nil
	return cmd.ProcessState.ExitCode()
}

func (m *machine) running() bool {
	return m.cmd != nil && syscall.Kill(m.cmd.Process.Pid, 0) == nil
}

func (m *machine) await(what string, ok func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (m *machine) status() wire.AgentStatus {
	m.t.Helper()
	var s wire.AgentStatus
	if err := json.Unmarshal([]byte(m.must("", "status", "--json")), &s); err != nil {
		m.t.Fatal(err)
	}
	return s
}

func (m *machine) awaitStatus(what string, ok func(wire.AgentStatus) bool) wire.AgentStatus {
	m.t.Helper()
	var s wire.AgentStatus
	m.await(what, func() bool { s = m.status(); return ok(s) })
	return s
}

// Dial and Token make the machine an agentclient.Dialer.
func (m *machine) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", m.run+"/agent.sock")
}

func (m *machine) Token(ctx context.Context, _ bool) (secret.Text, error) {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", m.run+"/mint.sock")
	}}
	req, err := http.NewRequestWithContext(ctx, "POST", "http://agent"+wire.PathTokens, http.NoBody)
	if err != nil {
		return secret.Text{}, err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return secret.Text{}, err
	}
	defer resp.Body.Close()
	var minted wire.TokenMinted
	err = json.NewDecoder(resp.Body).Decode(&minted)
	return secret.Of(minted.Token), err
}

func (m *machine) client() *agentclient.Client {
	c := agentclient.New(m)
	m.t.Cleanup(c.Close)
	return c
}

// installed is a machine with a plane, not started.
func installed(t testing.TB) (*machine, *fakeplane.Plane, wire.Credential) {
	t.Helper()
	p, doc := fakeplane.Start(t)
	m := newMachine(t)
	m.install(doc)
	return m, p, doc
}

func isCheck(s fakeplane.Seen) bool { return s.Path == wire.PathCheck && s.Status == 200 }
