package quick

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

var words = []string{"fleet", "exec", "box", "--", "echo", "--rejoin", "a b\x00"}

// served has a command done by a server that does as the function says, and
// returns what became of it and of its output.
func served(t *testing.T, serve func(t *testing.T, c net.Conn)) (exit int, done bool, goOn []string, out, errOut string) {
	t.Helper()
	return servedWithin(t, time.Minute, serve) // it is not the time that is tested
}

func servedWithin(t *testing.T, first time.Duration, serve func(t *testing.T, c net.Conn)) (exit int, done bool, goOn []string, out, errOut string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	var session string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		req, err := ReadRequest(c)
		if err != nil || !wire.IsSessionID(req.Session) || !cmp.Equal(req.Args, words) || req.Getenv("HOME") != os.Getenv("HOME") {
			t.Errorf("%+v, %v", req, err)
			return
		}
		session = req.Session
		serve(t, c)
	}()
	c, err := dial(l.Addr().String())
	if err == nil {
		err = limit(c.fd, syscall.SO_RCVTIMEO, first)
	}
	if err != nil {
		t.Fatal(err)
	}
	var files [2]*os.File
	for i := range files {
		if files[i], err = os.Create(filepath.Join(t.TempDir(), "out")); err != nil {
			t.Fatal(err)
		}
		defer files[i].Close()
	}
	a := attempt{conn: c, args: words, stdout: files[0], stderr: files[1]}
	exit, done, goOn = a.run()
	syscall.Close(c.fd)
	<-ended
	l.Close()
	for i := range goOn {
		goOn[i] = strings.Replace(goOn[i], session+"@", id+"@", 1)
	}
	text := func(f *os.File) string {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return exit, done, goOn, text(files[0]), text(files[1])
}

func send(t *testing.T, c net.Conn, kind byte, p string) {
	t.Helper()
	b, err := AppendFrame(nil, kind, []byte(p))
	if err == nil {
		_, err = c.Write(b)
	}
	if err != nil {
		t.Error(err)
	}
}

func expect(t *testing.T, c net.Conn, kind byte, p string) {
	t.Helper()
	if k, got, err := ReadFrame(c, nil); err != nil || k != kind || string(got) != p {
		t.Errorf("%q %q %v, want %q %q", k, got, err, kind, p)
	}
}

// id stands for the one that the front makes.
const id = "s_abcdefghij"

func TestACommandIsDoneOverThere(t *testing.T) {
	exit, done, _, out, errOut := served(t, func(t *testing.T, c net.Conn) {
		expect(t, c, Go, "")
		send(t, c, Begin, "")
		for _, f := range []struct {
			kind byte
			text string
		}{{Stdout, "one"}, {Stderr, "two"}, {Notice, "three"}, {Stdout, strings.Repeat("x", MaxFrame)}} {
			send(t, c, f.kind, f.text)
			expect(t, c, Done, "\x00\x00")
		}
		send(t, c, Exit, "\x29")
	})
	if exit != 41 || !done || out != "one"+strings.Repeat("x", MaxFrame) || errOut != "twothree" {
		t.Errorf("%d, %v, %d bytes, %q", exit, done, len(out), errOut)
	}
}

// Until the other side has said that it begins, the program does the command.
func TestWhatWasNotBegunIsLeftToTheProgram(t *testing.T) {
	for name, serve := range map[string]func(*testing.T, net.Conn){
		"declined": func(t *testing.T, c net.Conn) { send(t, c, Decline, ""); expect(t, c, Go, "") },
		"gone":     func(t *testing.T, c net.Conn) { expect(t, c, Go, "") },
	} {
		exit, done, goOn, out, errOut := served(t, serve)
		if exit != 0 || done || !cmp.Equal(goOn, words) || out+errOut != "" {
			t.Errorf("%s: %d, %v, %q, %q", name, exit, done, goOn, out+errOut)
		}
	}
}

// Where it cannot be told whether the session was begun, the program joins it,
// or begins it under its name.
func TestWhatMayHaveBeenBegunIsRejoined(t *testing.T) {
	want := append([]string{"fleet", "exec", "box", "--rejoin", id + "@0"}, words[3:]...)
	for name, serve := range map[string]func(*testing.T, net.Conn){
		"garbled": func(t *testing.T, c net.Conn) {
			c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			expect(t, c, Go, "")
		},
		"torn":  func(t *testing.T, c net.Conn) { c.Write([]byte{Begin, 0}); expect(t, c, Go, "") },
		"eager": func(t *testing.T, c net.Conn) { send(t, c, Stdout, "x"); expect(t, c, Go, "") },
	} {
		exit, done, goOn, out, errOut := served(t, serve)
		if exit != 0 || done || !cmp.Equal(goOn, want) || out+errOut != "" {
			t.Errorf("%s: %d, %v, %q, %q", name, exit, done, goOn, out+errOut)
		}
	}
	_, done, goOn, _, _ := servedWithin(t, time.Millisecond, func(_ *testing.T, c net.Conn) { io.Copy(io.Discard, c) })
	if done || !cmp.Equal(goOn, want) {
		t.Errorf("silent: %v, %q", done, goOn)
	}
}

// A signal that comes while the other side gets ready is met by this process,
// when nothing was begun.
func TestASignalBeforeTheBeginningEndsTheProgram(t *testing.T) {
	if os.Getenv("QUICK_TEST_SIGNALLED") != "" {
		served(t, func(t *testing.T, c net.Conn) {
			expect(t, c, Go, "")
			syscall.Kill(os.Getpid(), syscall.SIGTERM)
			expect(t, c, Signal, "\x00\x0f")
			send(t, c, Decline, "")
		})
		select {} // the signal is on its way
	}
	out, err := signalled(t).CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("%v: %s", err, out)
	}
}

// signalled is this test in a process of its own.
func signalled(t *testing.T) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), "QUICK_TEST_SIGNALLED=1")
	return cmd
}

// What was begun goes on from the last byte that was written.
func TestACommandWhoseServerEndsIsRejoined(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(*testing.T, net.Conn)
		at    string
	}{
		"at once": {func(*testing.T, net.Conn) {}, "0"},
		"later": {func(t *testing.T, c net.Conn) {
			send(t, c, Stdout, "12345")
			expect(t, c, Done, "\x00\x00")
			send(t, c, Notice, "not the session's")
			expect(t, c, Done, "\x00\x00")
			send(t, c, Stderr, "67")
			expect(t, c, Done, "\x00\x00")
		}, "7"},
		"behind a gap": {func(t *testing.T, c net.Conn) {
			send(t, c, Jump, "\x00\x00\x00\x01\x00\x00\x00\x00")
			send(t, c, Stdout, "1")
			expect(t, c, Done, "\x00\x00")
		}, "4294967297"},
		"in the middle of a frame": {func(t *testing.T, c net.Conn) { c.Write([]byte{Stdout, 0, 0, 0, 9, 'x'}) }, "0"},
		"garbled":                  {func(t *testing.T, c net.Conn) { send(t, c, Begin, "again") }, "0"},
		"oversized":                {func(t *testing.T, c net.Conn) { c.Write([]byte{Stdout, 0xff, 0xff, 0xff, 0xff}) }, "0"},
		"no exit code":             {func(t *testing.T, c net.Conn) { send(t, c, Exit, "") }, "0"},
	} {
		_, done, goOn, _, _ := served(t, func(t *testing.T, conn net.Conn) {
			expect(t, conn, Go, "")
			send(t, conn, Begin, "")
			c.serve(t, conn)
		})
		want := append([]string{"fleet", "exec", "box", "--rejoin", id + "@" + c.at}, words[3:]...)
		if done || !cmp.Equal(goOn, want) {
			t.Errorf("%s: %v, %q", name, done, goOn)
		}
	}
}

// A signal that the other side was told of last, and may have ended before it
// passed it on, goes on with the command.
func TestASignalIsNotLostWithTheServer(t *testing.T) {
	if os.Getenv("QUICK_TEST_SIGNALLED") == "" { // commands of other tests take signals, too, as they end with a process
		if out, err := signalled(t).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	for name, c := range map[string]struct {
		after func(*testing.T, net.Conn)
		at    string
	}{
		"at once":     {func(*testing.T, net.Conn) {}, "0:15"},
		"long before": {func(t *testing.T, c net.Conn) { send(t, c, Stdout, "1"); expect(t, c, Done, "\x00\x00") }, "1"},
	} {
		_, done, goOn, _, _ := served(t, func(t *testing.T, conn net.Conn) {
			expect(t, conn, Go, "")
			send(t, conn, Begin, "")
			send(t, conn, Notice, "")
			expect(t, conn, Done, "\x00\x00")
			syscall.Kill(os.Getpid(), syscall.SIGTERM)
			expect(t, conn, Signal, "\x00\x0f")
			c.after(t, conn)
		})
		want := append([]string{"fleet", "exec", "box", "--rejoin", id + "@" + c.at}, words[3:]...)
		if done || !cmp.Equal(goOn, want) {
			t.Errorf("%s: %v, %q", name, done, goOn)
		}
	}
}

func TestAWriteThatFailsIsToldByItsNumber(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	_, err = w.Write([]byte("x"))
	if got := errno(err); got != syscall.EPIPE {
		t.Errorf("%v: %v", err, got)
	}
	for err, want := range map[error]syscall.Errno{nil: 0, os.ErrClosed: syscall.EIO, &os.PathError{Err: syscall.ENOSPC}: syscall.ENOSPC} {
		if got := errno(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestOnlyPlainCommandsGoTheShortWay(t *testing.T) {
	for line, want := range map[string]bool{
		"fleet exec box -- true": true, "fleet exec box -- sh -c x": true,
		"fleet exec box --": false, "fleet exec box true": false, "fleet exec -l a=b -- true": false, "fleet exec box -t -- true": false,
		"fleet exec": false, "fleet": false, "": false, "fleet shell box": false, "fleet -v exec box -- true": false, "fleet exec --  -- -- true": false,
	} {
		if got := fits(strings.Fields(line)); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}

func TestTheSocketStandsWhereStateHasItsSockets(t *testing.T) {
	run := t.TempDir()
	if err := os.Chmod(run, 0o700); err != nil {
		t.Fatal(err)
	}
	uid := os.Getuid()
	for _, dir := range []string{run, "", "relative", run + "/missing"} {
		getenv := func(k string) string {
			if k == "XDG_RUNTIME_DIR" {
				return dir
			}
			return ""
		}
		want, err := state.Dirs{Getenv: getenv, UID: uid}.Runtime()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Dir(getenv, uid); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", dir, got, err, want)
		}
	}
	if err := os.Chmod(run+"/fleet", 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := Dir(func(string) string { return run }, uid); err == nil {
		t.Errorf("a directory that is open to others was taken: %s", got)
	}
}

func FuzzReadRequest(f *testing.F) {
	b, err := Request{Session: id, Args: words, Environ: []string{"A=b", "HOME=/x"}, Dir: "/", Program: "/bin/fleet"}.append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:20])
	f.Add([]byte(magic + "\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ReadRequest(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := r.append(nil)
		if err != nil || !bytes.HasPrefix(b, again) {
			t.Errorf("%+v, %v", r, err)
		}
		r.Getenv("HOME")
	})
}

func FuzzReadFrame(f *testing.F) {
	b, _ := AppendFrame(nil, Stdout, []byte("output"))
	f.Add(b)
	f.Add([]byte{Exit, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, p, err := ReadFrame(bytes.NewReader(b), nil)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errFrame) {
				t.Error(err)
			}
			return
		}
		if again, err := AppendFrame(nil, kind, p); err != nil || !bytes.HasPrefix(b, again) {
			t.Errorf("%q %q %v", kind, p, err)
		}
	})
}
