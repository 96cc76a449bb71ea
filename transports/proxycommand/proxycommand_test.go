package proxycommand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
)

// TestMain is also the program that the tests use as a proxy command.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "connect" {
		os.Exit(connect(os.Args[2], os.Args[3] == "pass"))
	}
	os.Exit(m.Run())
}

// connect is a small nc, or with pass one that passes its connection on.
func connect(addr string, pass bool) int {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if pass {
		f, err := conn.(*net.TCPConn).File()
		if err == nil {
			err = syscall.Sendmsg(1, []byte{0}, syscall.UnixRights(int(f.Fd())), nil, 0)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	done := make(chan struct{})
	go func() {
		io.Copy(os.Stdout, conn)
		close(done)
	}()
	io.Copy(conn, os.Stdin)
	conn.(*net.TCPConn).CloseWrite()
	<-done
	return 0
}

func nc(t testing.TB, addr, how string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self + " connect " + addr + " " + how
}

// person is a transport's host that keeps what it is told.
type person struct {
	sdk.NoTransportHost
	mu   sync.Mutex
	said bytes.Buffer
	lost chan string
}

func newPerson() *person { return &person{lost: make(chan string, 4)} }

func (p *person) Output(_ context.Context, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
}

func (p *person) Lost(_ context.Context, hop, reason string) { p.lost <- hop + ": " + reason }

func (p *person) heard() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

type local struct {
	t *Transport
	p *person
}

func (l local) Dial(ctx context.Context, t sdk.Target) (net.Conn, error) {
	return l.t.Dial(ctx, l.p, t)
}

func TestConforms(t *testing.T) {
	for _, how := range []string{"copy", "pass"} {
		tr := &Transport{}
		env := conformance.TransportEnv{Target: func(host string, port int) sdk.Target {
			return sdk.Target{Destination: host, Hop: sdk.Hop{ID: "target"},
				Proxy: sdk.Proxy{Command: nc(t, net.JoinHostPort(host, strconv.Itoa(port)), how), PassesDescriptor: how == "pass"}}
		}}
		for _, c := range conformance.Transport(t.Context(), local{tr, newPerson()}, env) {
			t.Run(how+"/"+c.Name, func(t *testing.T) { c.Report(t) })
		}
		tr.Close()
		if len(tr.running) != 0 {
			t.Errorf("%d programs are left", len(tr.running))
		}
	}
}

func start(t *testing.T, command string, timeout time.Duration) (*Transport, *person, net.Conn, error) {
	t.Helper()
	tr, p := &Transport{}, newPerson()
	t.Cleanup(func() { tr.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := tr.Start(ctx, p, "target", sdk.Proxy{Command: command, Environ: append(os.Environ(), "SHELL=/bin/sh")}, timeout)
	if err == nil {
		t.Cleanup(func() { conn.Close() })
	}
	return tr, p, conn, err
}

func TestAProgramThatFailsIsOneError(t *testing.T) {
	for what, c := range map[string]struct{ command, words, said string }{
		"not found":        {"no-such-program-anywhere", "exit status 127", "not found"},
		"exits":            {"sh -c 'echo because >&2; exit 9'", `exit status 9; it last said "because"`, "because\n"},
		"is killed":        {"sh -c 'kill -9 $$'", "signal: killed", ""},
		"closes and waits": {"sh -c 'exec >&- <&-; exec sleep 60'", "closed its standard output", ""},
	} {
		_, p, _, err := start(t, c.command, 0)
		if err == nil || !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), strconv.Quote(c.command)) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", what, err)
		}
		if !strings.Contains(p.heard(), c.said) {
			t.Errorf("%s: the person saw %q", what, p.heard())
		}
	}
}

func TestASilentProgramIsHandedOver(t *testing.T) { // its server may want the first word
	begin := time.Now()
	_, _, conn, err := start(t, "cat", 50*time.Millisecond)
	if err != nil || time.Since(begin) > silence {
		t.Fatal(err, time.Since(begin))
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
		t.Fatal(string(b), err)
	}
}

func TestHowAProgramEndsIsToldAfterwards(t *testing.T) {
	_, p, conn, err := start(t, "sh -c 'echo SSH-2.0-x; read x; exit 4'", 0)
	if err != nil {
		t.Fatal(err)
	}
	conn.Write([]byte("\n"))
	if got := <-p.lost; got != "target: the proxy command ended: exit status 4" {
		t.Error(got)
	}
}

func TestClosingEndsTheProgram(t *testing.T) { // R41
	for what, command := range map[string]string{
		"at once":           "sh -c 'echo $$; exec sleep 600'",
		"deaf to a hang-up": "sh -c 'trap \"\" HUP; echo $$; while :; do sleep 1; done'",
	} {
		tr, p, conn, err := start(t, command, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 16)
		n, err := conn.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		tr.Close()
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s: %d still runs: %v", what, pid, err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s: %v", what, took)
		}
		select {
		case l := <-p.lost:
			t.Errorf("%s: %s", what, l)
		default:
		}
		if _, err := tr.Start(t.Context(), p, "target", sdk.Proxy{Command: "cat"}, 0); err == nil {
			t.Error("a closed transport starts programs")
		}
	}
}

func TestTheProgramHasThePersonsShellDirectoryAndEnvironment(t *testing.T) {
	dir := t.TempDir()
	shell := filepath.Join(t.TempDir(), "shell")
	if err := os.WriteFile(shell, []byte("#!/bin/sh\nA_SHELL=mine exec /bin/sh \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	tr := &Transport{}
	defer tr.Close()
	conn, err := tr.Start(t.Context(), newPerson(), "target", sdk.Proxy{Dir: dir, Environ: []string{"SHELL=" + shell, "WORD=a b"},
		Command: `sh -c 'printf "%s|%s|%s\n" "$A_SHELL" "$WORD" "$(pwd)"; cat'`}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	want := "mine|a b|" + dir + "\n"
	b := make([]byte, len(want))
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != want {
		t.Errorf("%q, %v", b, err)
	}
}

func TestWhatIsPassedMustBeAConnection(t *testing.T) {
	tr := &Transport{}
	defer tr.Close()
	for what, command := range map[string]string{"nothing": "true", "text": "echo hello", "never": "sleep 60"} {
		_, err := tr.Start(t.Context(), newPerson(), "target", sdk.Proxy{Command: command, PassesDescriptor: true}, 200*time.Millisecond)
		if err == nil || !strings.Contains(err.Error(), strconv.Quote(command)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestTheProgramDiesWithThePlugin(t *testing.T) { // R41
	// This test's own process is the plugin: a child of it that is killed takes
	// its program along.
	if os.Getenv("PROXY_CHILD") != "" {
		conn, err := (&Transport{}).Start(t.Context(), newPerson(), "target", sdk.Proxy{Command: os.Getenv("PROXY_CHILD"), Environ: os.Environ()}, 0)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(os.Stdout, conn)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestTheProgramDiesWithThePlugin$")
	cmd.Env = append(os.Environ(), "PROXY_CHILD=sh -c 'trap \"\" HUP TERM; echo pid $$; exec sleep 600'")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "pid %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for syscall.Kill(pid, 0) == nil {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(b), ") Z ") {
			return // dead, and its reaper is not ours
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d still runs", pid)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
