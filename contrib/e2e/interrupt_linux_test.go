package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/contrib/lab/wan"
)

// atOnce bounds what an interrupt takes, far below what is waited for
// otherwise.
const atOnce = 5 * time.Second

// interrupted waits for a command's end by an interrupt that was just sent.
func (w *world) interrupted(what string, c *exec.Cmd, says func() string, words string) {
	w.t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case <-done:
	case <-time.After(atOnce):
		w.t.Errorf("%s: it goes on: %s", what, says())
		c.Process.Kill()
		<-done
		return
	}
	if c.ProcessState.ExitCode() != 130 || !strings.Contains(says(), words) {
		w.t.Errorf("%s: %s: %s", what, c.ProcessState, says())
	}
}

// An interrupt while nothing is connected ends the waiting at once: the command
// that it would go to cannot hear it.
func TestInterruptsWhileNothingIsConnected(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	proxy, err := wan.Listen(t.Context(), w.lab.PlaneAddr()+":0", net.JoinHostPort(h.Addr(), "22"), wan.Profile{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	_, port, _ := net.SplitHostPort(proxy.Addr())
	w.must("fleet", "install", "dana@"+w.lab.PlaneAddr(), "-p", port, "-i", w.lab.KeyPath(), "--name", "box", "--fingerprint", w.fingerprint(h))
	w.shared()

	for _, how := range []string{"--no-mux", "--no-mux=false"} {
		var out, err lockedBuffer
		c := w.cmd(t.Context(), "fleet", "exec", how, "box", "--", "sh", "-c", "echo go; exec sleep 600")
		c.Stdout, c.Stderr = &out, &err
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		has := func(b *lockedBuffer, words string) func() error {
			return func() error {
				if !strings.Contains(b.String(), words) {
					return fmt.Errorf("%q", b.String())
				}
				return nil
			}
		}
		w.poll("output", has(&out, "go\n"))
		proxy.Refuse(true)
		proxy.Reset()
		w.poll("a word about the loss", has(&err, "not reconnected yet"))
		c.Process.Signal(syscall.SIGINT)
		w.interrupted(how, c, err.String, "interrupted; the session goes on")

		// A host that does not answer.
		proxy.Refuse(false)
		proxy.Stall()
		err = lockedBuffer{}
		open := proxy.Open()
		c = w.cmd(t.Context(), "fleet", "exec", how, "box", "--", "true")
		c.Stderr = &err
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		w.poll("a connection", func() error {
			if proxy.Open() <= open {
				return errors.New("none")
			}
			return nil
		})
		c.Process.Signal(syscall.SIGINT)
		w.interrupted(how, c, err.String, "interrupted; no command was started")
		proxy.Reset()
		proxy.Flow()
	}

	// With a terminal, Ctrl-C is a byte, and the terminal is as it was before.
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	var screen lockedBuffer
	go io.Copy(&screen, master) // ends with the master
	c := w.cmd(t.Context(), "fleet", "exec", "-t", "box", "--", "sh", "-c", "trap 'echo caught' INT; echo go; while :; do sleep 0.1; done")
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.screen(&screen, "go\r\n")
	io.WriteString(master, "\x03")
	w.screen(&screen, "caught\r\n") // connected, it is the command's
	proxy.Refuse(true)
	proxy.Reset()
	w.screen(&screen, "reconnecting\r\n")
	w.screen(&screen, "not reconnected yet")
	io.WriteString(master, "\x03")
	w.interrupted("a terminal", c, screen.String, "")
	w.screen(&screen, "interrupted; the session goes on")
	restored := func(when string) {
		t.Helper()
		after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if err != nil || *after != *before {
			t.Errorf("after %s: %v: the terminal is left as %+v, was %+v", when, err, after, before)
		}
	}
	restored("an interrupt")
	proxy.Refuse(false)

	// The terminal's window is closed, or what it is piped into ends.
	// While it is asked for here, the command does not inherit that it is ignored,
	// as it is below nohup.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	c = w.cmd(t.Context(), "fleet", "exec", "-t", "box", "--", "sh", "-c", "echo open; sleep 1000")
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.screen(&screen, "open\r\n")
	c.Process.Signal(syscall.SIGHUP)
	w.interrupted("a hangup", c, screen.String, "")
	restored("a hangup")
	r, unread, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c = w.cmd(t.Context(), "fleet", "shell", "box")
	c.Stdin, c.Stdout, c.Stderr = tty, unread, tty
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	unread.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil { // its prompt
		t.Fatal(err)
	}
	r.Close()
	io.WriteString(master, "echo more\r")
	if err := c.Wait(); c.ProcessState.ExitCode() != 141 {
		t.Errorf("a shell whose output nobody reads: %v: %s", err, screen.String())
	}
	w.screen(&screen, "nobody reads the output; the session goes on")
	restored("a broken pipe")
	for line := range strings.Lines(w.must("fleet", "sessions", "box", "--jsonl")) {
		if _, id, ok := strings.Cut(line, `"id":"`); ok && strings.Contains(line, `"running"`) {
			id, _, _ = strings.Cut(id, `"`)
			w.must("fleet", "kill", "box", id, "-s", "KILL")
		}
	}
}

func (w *world) screen(b *lockedBuffer, words string) {
	w.t.Helper()
	w.poll(words+" on the terminal", func() error {
		if !strings.Contains(b.String(), words) {
			return fmt.Errorf("%q", b.String())
		}
		return nil
	})
}
