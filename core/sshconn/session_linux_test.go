package sshconn_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshconn"
)

// Whatever runs in place of a shell is named, with what it printed.
func TestNoShell(t *testing.T) {
	sftpServer := "/usr/lib/openssh/sftp-server"
	if _, err := os.Stat(sftpServer); err != nil {
		t.Skipf("no sftp server: %v", err)
	}
	for name, c := range map[string]struct{ forced, code, words string }{
		"sftp inside sshd":  {"internal-sftp", "sftp_only", "transfer files and run nothing"},
		"sftp beside sshd":  {sftpServer, "sftp_only", "transfer files and run nothing"},
		"nothing":           {"/bin/false", "no_shell", "printed nothing"},
		"a notice":          {"echo no entry here", "no_shell", `printed "no entry here"`},
		"a complaint":       {"echo out of order >&2", "no_shell", `printed "out of order"`},
		"a menu that waits": {"echo 1. restart; read choice", "shell_not_ready", `printed "1. restart"`},
		"endless text":      {"yes", "no_shell", "prints without end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := operator(t, server(t, "ForceCommand "+c.forced)).confirmed(t)
			_, err := conn.Run(t.Context(), sshconn.Script{Body: "true", Timeout: 5 * time.Second})
			if f := fault.Of(err); f == nil || f.Code != c.code || f.Exit != fault.Refused || !strings.Contains(f.Msg, c.words) || f.Hint == "" {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestOneSessionIsEnough(t *testing.T) {
	c := operator(t, server(t, "MaxSessions 1")).confirmed(t)
	content := make([]byte, 3<<20)
	rand.Read(content)
	path := filepath.Join(t.TempDir(), "x")
	if how, err := c.Upload(t.Context(), path, bytes.NewReader(content), int64(len(content)), nil); err != nil || how != "sftp" {
		t.Fatalf("%s, %v", how, err)
	}
	shellOf := func() string {
		t.Helper()
		b, err := c.RunOK(t.Context(), sshconn.Script{Body: "echo $$"})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := shellOf()

	// Scripts that come at once wait for each other.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			b, err := c.RunOK(t.Context(), sshconn.Script{Body: "sleep 0.02; echo $1", Args: []string{strconv.Itoa(i)}})
			if err != nil || string(b) != fmt.Sprintln(i) {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	wg.Wait()

	// An upload goes through the shell that is open, which stays.
	path += "2"
	if how, err := c.Upload(t.Context(), path, bytes.NewReader(content), int64(len(content)), nil); err != nil || how != "cat" {
		t.Fatalf("%s, %v", how, err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes arrived: %v", len(got), err)
	}
	// One that fails leaves nothing in the way of the next script.
	if _, err := c.Upload(t.Context(), "/nonexistent/x", bytes.NewReader(content), int64(len(content)), nil); err == nil {
		t.Error("an upload to nowhere succeeded")
	}
	if again := shellOf(); again != first {
		t.Errorf("shell %s, then %s", first, again)
	}

	// Streams have a connection each.
	var streams []net.Conn
	for range 3 {
		s, err := c.Stream(t.Context(), sshconn.Script{Body: "exec cat"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		streams = append(streams, s)
	}
	for i, s := range streams {
		word := fmt.Sprintf("word %d", i)
		io.WriteString(s, word)
		got := make([]byte, len(word))
		if _, err := io.ReadFull(s, got); err != nil || string(got) != word {
			t.Errorf("%q, %v", got, err)
		}
	}
	if again := shellOf(); again != first {
		t.Errorf("shell %s, then %s", first, again)
	}
	c.Close()
	if _, err := io.ReadAll(streams[0]); err != nil && !errors.Is(err, io.EOF) {
		t.Logf("a stream ended with its connection: %v", err)
	}
}

func TestNoSessionAtAll(t *testing.T) {
	c := operator(t, server(t, "MaxSessions 0")).confirmed(t)
	_, err := c.Run(t.Context(), sshconn.Script{Body: "true"})
	if f := fault.Of(err); f == nil || f.Code != "no_session" || !strings.Contains(f.Hint, "MaxSessions") {
		t.Error(err)
	}
}

func listen(t *testing.T, path string) string {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return path
}

// The four causes of a refused channel, which a server gives the same words.
func TestWhyAChannelIsRefused(t *testing.T) {
	short, err := os.MkdirTemp("/tmp", "why")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	deep := filepath.Join(short, strings.Repeat("long", 20), strings.Repeat("path", 20))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(short, "dead")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: dead}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	for name, tc := range map[string]struct {
		config string
		path   string
		listen bool
		want   sshconn.Refusal
	}{
		"no socket":                  {path: short + "/none", want: sshconn.RefusedMissing},
		"a socket nobody listens on": {path: dead, want: sshconn.RefusedMissing},
		"a long path":                {path: deep + "/s", want: sshconn.RefusedTooLong},
		"forbidden":                  {config: "AllowStreamLocalForwarding no", path: short + "/1", listen: true, want: sshconn.RefusedForbidden},
		"all forwarding forbidden":   {config: "DisableForwarding yes", path: short + "/2", listen: true, want: sshconn.RefusedForbidden},
		"forbidden, and one session": {config: "AllowStreamLocalForwarding no\nMaxSessions 1", path: short + "/3", listen: true, want: sshconn.RefusedForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.listen {
				listen(t, tc.path)
			}
			c := operator(t, server(t, tc.config)).confirmed(t)
			_, err := c.DialUnix(t.Context(), tc.path)
			if err == nil {
				t.Fatal("it was not refused")
			}
			if why, err := c.WhyRefused(t.Context(), tc.path, err); why != tc.want || err != nil {
				t.Errorf("%s, %v", why, err)
			}
		})
	}
	t.Run("exhausted", func(t *testing.T) {
		path := listen(t, short+"/4")
		s := server(t, "")
		c := operator(t, s).confirmed(t)
		// The server's process for this connection may open a few files more.
		b, err := c.RunOK(t.Context(), sshconn.Script{Body: `echo $PPID`})
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}, nil); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err = c.DialUnix(t.Context(), path); err != nil {
				break
			}
		}
		if refused := new(ssh.OpenChannelError); !errors.As(err, &refused) {
			t.Fatal(err)
		}
		if why, err := c.WhyRefused(t.Context(), path, err); why != sshconn.RefusedExhausted || err != nil {
			t.Errorf("%s, %v", why, err)
		}
	})
}

func read(c net.Conn, b []byte) bool {
	_, err := io.ReadFull(c, b)
	return err == nil
}

// A server that has enough logins under way is asked again.
func TestTooManyLoginsUnderWay(t *testing.T) {
	s := server(t, "MaxStartups 1")
	o := operator(t, s)
	o.confirmed(t).Close()
	hold := func() net.Conn {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())))
			if err != nil {
				t.Fatal(err)
			}
			c.SetReadDeadline(time.Now().Add(10 * time.Second))
			// The login before may be under way still.
			if got := make([]byte, 4); read(c, got) && string(got) == "SSH-" {
				return c
			}
			c.Close()
		}
		t.Fatal("the server takes no login")
		return nil
	}
	first := hold()
	time.AfterFunc(400*time.Millisecond, func() { first.Close() })
	o.dial(t).Close()

	second := hold()
	defer second.Close()
	begin := time.Now()
	_, err := sshconn.Dial(t.Context(), o.params)
	if f := fault.Of(err); f == nil || f.Code != "hung_up" || !strings.Contains(f.Hint, "MaxStartups") || time.Since(begin) > 15*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
}
