package loopback_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab/loopback"
)

func start(t *testing.T, opts loopback.Options) *loopback.Server {
	t.Helper()
	for _, tool := range []string{"/usr/sbin/sshd", "ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("FLEET_LAB") == "required" {
				t.Fatalf("a loopback ssh server is required and cannot run: %v", err)
			}
			t.Skipf("a loopback ssh server cannot run: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := loopback.Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func ssh(t *testing.T, s *loopback.Server, argv ...string) *exec.Cmd {
	t.Helper()
	known := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(known, []byte(s.KnownHosts()), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	args := []string{"-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "UserKnownHostsFile=" + known,
		"-i", s.KeyPath(), "-p", strconv.Itoa(s.Port()), s.User() + "@127.0.0.1"}
	return exec.CommandContext(ctx, "ssh", append(args, argv...)...)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("timed out: %s", what)
		}
	}
}

func TestLogInAsOneself(t *testing.T) {
	began := time.Now()
	s := start(t, loopback.Options{})
	t.Logf("up after %v", time.Since(began).Round(time.Millisecond))
	out, err := ssh(t, s, "id -un").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != s.User() {
		t.Errorf("got %q, %v\n%s", out, err, s.Log())
	}
}

func TestListensOnLoopbackOnly(t *testing.T) {
	s := start(t, loopback.Options{})
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ipnet, ok := a.(*net.IPNet)
		if !ok || ipnet.IP.IsLoopback() || ipnet.IP.IsLinkLocalUnicast() {
			continue
		}
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(ipnet.IP.String(), strconv.Itoa(s.Port())), time.Second)
		if err == nil {
			conn.Close()
			t.Errorf("it listens on %s", ipnet.IP)
		}
	}
}

func TestBadConfigurationIsSaid(t *testing.T) {
	start(t, loopback.Options{}) // skips where there is no sshd
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := loopback.Start(ctx, loopback.Options{SSHDConfig: "NoSuchOption yes"})
	if err == nil || !strings.Contains(err.Error(), "NoSuchOption") {
		t.Errorf("got %v", err)
	}
}

func TestCloseEndsSessionsAndRemovesFiles(t *testing.T) {
	s := start(t, loopback.Options{})
	cmd := ssh(t, s, "echo $$; exec cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 32)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	session, err := strconv.Atoi(string(bytes.TrimSpace(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	server, dir := s.PID(), filepath.Dir(s.KeyPath())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err == nil {
		t.Error("the session ended well")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	for _, pid := range []int{server, session} {
		eventually(t, "process "+strconv.Itoa(pid)+" ends", func() bool { return ended(pid) })
	}
}

// ended says whether the process is gone or waits to be reaped.
func ended(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil {
		return true
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

func TestOwnersDeathEndsTheServer(t *testing.T) {
	if dir := os.Getenv("LOOPBACK_TEST_OWNER"); dir != "" {
		s, err := loopback.Start(t.Context(), loopback.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/tmp", []byte(strconv.Itoa(s.PID())+" "+filepath.Dir(s.KeyPath())), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(dir+"/tmp", dir+"/up"); err != nil {
			t.Fatal(err)
		}
		<-t.Context().Done() // never: the test kills this process
	}
	start(t, loopback.Options{}) // skips where there is no sshd
	dir := t.TempDir()
	owner := exec.Command(os.Args[0], "-test.run=^TestOwnersDeathEndsTheServer$", "-test.timeout=60s")
	owner.Env = append(os.Environ(), "LOOPBACK_TEST_OWNER="+dir)
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var up []byte
	eventually(t, "the owner's server is up", func() (ok bool) {
		var err error
		up, err = os.ReadFile(dir + "/up")
		return err == nil
	})
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	pidText, files, _ := strings.Cut(string(up), " ")
	pid, err := strconv.Atoi(pidText)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server of a dead owner ends", func() bool { return ended(pid) })
	eventually(t, "the files of a dead owner go", func() bool { _, err := os.Stat(files); return os.IsNotExist(err) })
}
