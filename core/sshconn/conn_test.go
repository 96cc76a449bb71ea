package sshconn_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/contrib/lab/loopback"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/state"
)

func server(t *testing.T, extra string) *loopback.Server {
	t.Helper()
	// The home directory is an empty one: whoever runs the tests may have slow
	// start-up files.
	s, err := loopback.Start(t.Context(), loopback.Options{SSHDConfig: extra + "\nSetEnv HOME=" + t.TempDir() + "\n"})
	if err != nil {
		t.Fatalf("cannot start an ssh server on loopback: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

type side struct {
	params sshconn.Params
	pins   *hostkey.Store
}

func operator(t *testing.T, s *loopback.Server) side { return operatorFor(t, s) }

func operatorFor(t testing.TB, s *loopback.Server) side {
	t.Helper()
	home := t.TempDir()
	pins, err := hostkey.OpenStore(state.Dirs{UID: os.Getuid(), Getenv: func(k string) string {
		if k == "HOME" {
			return home
		}
		return ""
	}})
	if err != nil {
		t.Fatal(err)
	}
	return side{pins: pins, params: sshconn.Params{
		Config: &sshconfig.Config{Alias: "box", HostName: "127.0.0.1", Port: s.Port(), User: s.User(), IdentityFiles: []string{s.KeyPath()}, IdentityFileSet: true},
		Dial: func(ctx context.Context, c *sshconfig.Config) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(c.HostName, strconv.Itoa(c.Port)))
		},
		Pins: pins, Notef: t.Logf}}
}

func (o side) dial(t *testing.T) *sshconn.Conn {
	t.Helper()
	c, err := sshconn.Dial(t.Context(), o.params)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (o side) confirmed(t *testing.T) *sshconn.Conn {
	t.Helper()
	c := o.dial(t)
	if err := c.Confirm(t.Context(), hostkey.ByPrompt); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNothingButProbesBeforeConfirmation(t *testing.T) { // R2
	o := operator(t, server(t, ""))
	c := o.dial(t)
	if c.Pinned {
		t.Fatal("a new key counts as pinned")
	}
	f, err := c.Facts(t.Context())
	if err != nil || f.GOOS != "linux" || f.UID != os.Getuid() || f.Supported() != nil {
		t.Fatalf("%+v, %v", f, err)
	}
	target := filepath.Join(t.TempDir(), "x")
	_, err1 := c.Run(t.Context(), sshconn.Script{Body: "true"})
	_, err2 := c.Upload(t.Context(), target, strings.NewReader("x"), 1, nil)
	_, err3 := c.DialUnix(t.Context(), "/nonexistent")
	_, err4 := c.Stream(t.Context(), sshconn.Script{Body: "cat"})
	for i, err := range []error{err1, err2, err3, err4} {
		if f := fault.Of(err); f == nil || f.Exit != fault.HostKey || !strings.Contains(f.Hint, "SHA256:") {
			t.Errorf("%d: err = %v", i+1, err)
		}
	}
	if err := c.Confirm(t.Context(), hostkey.ByPrompt); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(t.Context(), sshconn.Script{Body: "true"}); err != nil {
		t.Fatal(err)
	}
	if again := o.dial(t); !again.Pinned {
		t.Error("a confirmed key is not pinned")
	}
}

func TestChangedKeyStopsTheConnection(t *testing.T) { // R2
	s := server(t, "")
	o := operator(t, s)
	_, other := mustKey(t)
	if err := o.pins.Set(t.Context(), hostkey.Place{Name: o.params.Config.HostKeyName()}, other, hostkey.ByPrompt); err != nil {
		t.Fatal(err)
	}
	_, err := sshconn.Dial(t.Context(), o.params)
	if f := fault.Of(err); f == nil || f.Exit != fault.HostKey || !strings.Contains(f.Msg, "host key changed: ") {
		t.Fatal(err)
	}
}

func mustKey(t *testing.T) (ssh.Signer, ssh.PublicKey) {
	t.Helper()
	s := server(t, "")
	pub, _, _, _, err := ssh.ParseAuthorizedKey([]byte(s.HostKey()))
	if err != nil {
		t.Fatal(err)
	}
	return nil, pub
}

func TestScripts(t *testing.T) {
	c := operator(t, server(t, "")).confirmed(t)
	var pid string
	noise := make([]byte, 300<<10)
	rand.Read(noise)
	for _, tc := range []struct {
		name string
		s    sshconn.Script
		want string
		exit int
		err  string
	}{
		{name: "arguments are exact", s: sshconn.Script{Body: `printf '<%s>' "$@"`, Args: []string{"a b", "it's", "$HOME", "new\nline", "", "é\\"}}, want: "<a b><it's><$HOME><new\nline><><é\\>"},
		{name: "exit status and standard error", s: sshconn.Script{Body: "echo out; echo first >&2; echo why >&2; exit 7"}, want: "out\n", exit: 7, err: "why"},
		{name: "binary input comes back", s: sshconn.Script{Body: "cat", Stdin: bytes.NewReader(noise)}, want: string(noise)},
		{name: "small input comes back", s: sshconn.Script{Body: "cat", Input: noise[:5000]}, want: string(noise[:5000])},
		{name: "small input not read", s: sshconn.Script{Body: "echo x; exit 3", Input: noise[:5000]}, want: "x\n", exit: 3, err: "exit status 3"},
		{name: "the shell goes on after exit", s: sshconn.Script{Body: "echo $$"}, want: "PID"},
		{name: "and is the same one", s: sshconn.Script{Body: "echo $$"}, want: "PID"},
		{name: "no input is empty", s: sshconn.Script{Body: "cat"}},
		{name: "no newline at the end", s: sshconn.Script{Body: "printf x"}, want: "x"},
		{name: "newlines at the end stay", s: sshconn.Script{Body: `printf 'x\n\n'`}, want: "x\n\n"},
		{name: "input not read", s: sshconn.Script{Body: "true", Stdin: bytes.NewReader(noise)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := c.Run(t.Context(), tc.s)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == "PID" {
				if pid == "" {
					pid = string(r.Stdout)
				}
				tc.want = pid
			}
			if string(r.Stdout) != tc.want || r.Exit != tc.exit || tc.exit != 0 && r.Err().Error() != tc.err {
				t.Errorf("stdout %.80q, exit %d, stderr %q", r.Stdout, r.Exit, r.Stderr)
			}
		})
	}
	r, err := c.Run(t.Context(), sshconn.Script{Body: "head -c 100000 /dev/zero", MaxStdout: 1000})
	if err != nil || len(r.Stdout) != 1000 || !r.Truncated || r.Exit != 0 {
		t.Errorf("%d bytes, truncated %v, %v", len(r.Stdout), r.Truncated, err)
	}
	if _, err := c.Run(t.Context(), sshconn.Script{Body: "exec sleep 60", Timeout: 50 * time.Millisecond}); fault.Of(err) == nil || fault.Of(err).Code != "timeout" {
		t.Errorf("err = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := c.Run(ctx, sshconn.Script{Body: "exec sleep 60"}); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

// TestWrappersAndNoise holds scripts against what start-up files and forced
// commands do to a channel.
func TestWrappersAndNoise(t *testing.T) {
	for name, wrapper := range map[string]string{
		"text before ours":    `echo welcome; printf 'no newline'; exec sh -c "$SSH_ORIGINAL_COMMAND"`,
		"text after ours":     `sh -c "$SSH_ORIGINAL_COMMAND"; r=$?; echo bye; exit $r`,
		"status swallowed":    `sh -c "$SSH_ORIGINAL_COMMAND"; exit 0`,
		"elsewhere than home": `cd /; exec sh -c "$SSH_ORIGINAL_COMMAND"`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "wrapper")
			if err := os.WriteFile(file, []byte("#!/bin/sh\n"+wrapper+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			c := operator(t, server(t, "ForceCommand "+file)).confirmed(t)
			r, err := c.Run(t.Context(), sshconn.Script{Body: "cat; exit 5", Input: []byte("x\ny")})
			if err != nil || string(r.Stdout) != "x\ny" || r.Exit != 5 {
				t.Fatalf("%+v, %v", r, err)
			}
		})
	}
}

// TestAKeptShellThatEndedCostsNobodyAnError kills the shell between two scripts.
func TestAKeptShellThatEndedCostsNobodyAnError(t *testing.T) {
	c := operator(t, server(t, "")).confirmed(t)
	for range 20 {
		r, err := c.Run(t.Context(), sshconn.Script{Body: "echo $$"})
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(r.Stdout)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if r, err := c.Run(t.Context(), sshconn.Script{Body: "echo $$"}); err != nil || string(r.Stdout) == fmt.Sprintln(pid) {
			t.Fatalf("%+v, %v", r, err)
		}
	}
}

func TestUploadBySFTPOrCat(t *testing.T) {
	data := make([]byte, 3<<20+17)
	rand.Read(data)
	noSFTP := filepath.Join(t.TempDir(), "wrapper")
	if err := os.WriteFile(noSFTP, []byte("#!/bin/sh\ncase $SSH_ORIGINAL_COMMAND in *sftp*) exit 1;; esac\nexec sh -c \"$SSH_ORIGINAL_COMMAND\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, extra := range map[string]string{"sftp": "", "cat": "ForceCommand " + noSFTP} {
		t.Run(name, func(t *testing.T) {
			c := operator(t, server(t, extra)).confirmed(t)
			target := filepath.Join(t.TempDir(), "a file")
			var last int64
			how, err := c.Upload(t.Context(), target, bytes.NewReader(data), int64(len(data)), func(n int64) { last = n })
			if err != nil || how != name || last != int64(len(data)) {
				t.Fatal(how, last, err)
			}
			got, err := os.ReadFile(target)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
				t.Fatal("other bytes arrived", err)
			}
			if st, _ := os.Stat(target); st.Mode().Perm() != 0o600 {
				t.Error(st.Mode())
			}
			if _, err := c.Upload(t.Context(), "/nonexistent/x", bytes.NewReader(data), int64(len(data)), nil); err == nil {
				t.Error("an upload to nowhere succeeded")
			}
		})
	}
}

func TestStreamAndUnixChannel(t *testing.T) {
	c := operator(t, server(t, "")).confirmed(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	channel, err := c.DialUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := c.Stream(t.Context(), sshconn.Script{Body: "exec cat"})
	if err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]net.Conn{"channel": channel, "stream": stream} {
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(name, err)
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "hello" {
			t.Fatal(name, string(buf), err)
		}
		conn.Close()
	}
}

func TestFailuresHaveTheirOwnWordsAndExitCodes(t *testing.T) {
	o := operator(t, server(t, ""))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := l.Addr().(*net.TCPAddr).Port // accepted by the kernel, never answered
	defer l.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := closed.Addr().(*net.TCPAddr).Port
	closed.Close()
	wrongKey := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		change func(*sshconfig.Config)
		words  string
	}{
		"refused port": {func(c *sshconfig.Config) { c.Port = refused }, "connection refused"},
		"wrong key":    {func(c *sshconfig.Config) { c.IdentityFiles = []string{wrongKey} }, "cannot log in to"},
	} {
		p, conf := o.params, *o.params.Config
		c.change(&conf)
		p.Config = &conf
		_, err := sshconn.Dial(t.Context(), p)
		if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || !strings.Contains(f.Msg, c.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, conf := o.params, *o.params.Config
	conf.Port = silent
	p.Config = &conf
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := sshconn.Dial(ctx, p); fault.Of(err) == nil || fault.Of(err).Exit != fault.Unreachable {
		t.Errorf("silent port: %v", err)
	}
}
