package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/wire"
)

// text is output that is waited for.
type text struct {
	mu sync.Mutex
	b  []byte
}

func (s *text) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = append(s.b, p...)
	return len(p), nil
}

func (s *text) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.b)
}

// Everyone who is attached to a session sees all of it, whenever they came, and
// what one of them types is the session's input.
func TestSeveralClientsFollowOneSession(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	s, err := m.client().Create(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "echo begun; while read l; do echo got $l; done; exit 7"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		who int
		err error
	}
	ends := make(chan end, 4)
	var outs [4]text
	follow := func(who int, from int64, stdin io.Reader) {
		go func() {
			a := agentclient.Attachment{Stdout: &outs[who]}
			if stdin != nil {
				a.Stdin = stdin
			}
			exit, _, err := m.client().Attach(ctx(t), s.ID, from, a)
			if err == nil && exit.Code != 7 {
				err = fmt.Errorf("%+v", exit)
			}
			ends <- end{who, err}
		}()
	}
	in, typed := io.Pipe()
	follow(0, 0, in)
	follow(1, 0, nil)
	fmt.Fprintln(typed, "one")
	for _, who := range []int{0, 1} {
		m.await("the first line", func() bool { return outs[who].String() == "begun\ngot one\n" })
	}
	follow(2, 0, nil)
	follow(3, int64(len("begun\n")), nil)
	m.await("the late ones", func() bool { return outs[2].String() == "begun\ngot one\n" && outs[3].String() == "got one\n" })
	fmt.Fprintln(typed, "two")
	typed.Close()
	for range outs {
		if e := <-ends; e.err != nil {
			t.Errorf("client %d: %v", e.who, e.err)
		}
	}
	for who, want := range []string{"begun\ngot one\ngot two\n", "begun\ngot one\ngot two\n", "begun\ngot one\ngot two\n", "got one\ngot two\n"} {
		if got := outs[who].String(); got != want {
			t.Errorf("client %d: %q", who, got)
		}
	}
}

// A terminal follows its client's size, passes on what is typed as it is, and
// has its own echo alone.
func TestATerminalIsOne(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	var out text
	in, typed := io.Pipe()
	sizes := make(chan agentclient.Size)
	done := make(chan error, 1)
	go func() {
		_, exit, err := m.client().Run(ctx(t), wire.SessionRequest{PTY: &wire.PTY{Term: "xterm-256color", Rows: 24, Cols: 80},
			Argv: []string{"sh", "-c", `trap 'stty size' WINCH; trap 'echo interrupted; exit 9' INT; echo "$TERM"; read word; echo "word is $word"; while :; do sleep 0.05; done`}},
			agentclient.Attachment{Stdout: &out, Stdin: in, Sizes: sizes, Size: agentclient.Size{Rows: 24, Cols: 80}})
		if err == nil && exit.Code != 9 {
			err = fmt.Errorf("%+v", exit)
		}
		done <- err
	}()
	m.await("the terminal's type", func() bool { return out.String() == "xterm-256color\r\n" })
	io.WriteString(typed, "hello\r")
	m.await("one echo and the answer", func() bool { return strings.HasSuffix(out.String(), "\nhello\r\nword is hello\r\n") })
	sizes <- agentclient.Size{Rows: 40, Cols: 132}
	m.await("the new size", func() bool { return strings.HasSuffix(out.String(), "40 132\r\n") })
	io.WriteString(typed, "\x03")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !strings.HasSuffix(out.String(), "interrupted\r\n") {
		t.Errorf("%q", out.String())
	}
	typed.Close()
}

// However a command with a terminal ends, the person's own terminal is as it was.
func TestAPersonsTerminalIsAsItWas(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	outer, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	defer tty.Close()
	var shown text
	go io.Copy(&shown, outer) // ends with the terminal
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	app := func() *command.App {
		return &command.App{Name: "fleet", Summary: "x", Version: "1", Commands: cli.DataPath(cli.Reach{
			Find: func(_ context.Context, _ *command.Call, word string) (fanout.Machine, error) {
				return fanout.Machine{ID: "m_x", Name: word}, nil
			},
			Open: func(context.Context, *command.Call, fanout.Machine) (cli.Target, error) { return target{m}, nil },
		})}
	}
	for _, x := range []struct {
		name, script string
		exit         int
	}{
		{"exit", "stty -echo raw; exit 3", 3},
		{"killed", "kill -KILL $$", 137},
		{"no such command", "exec /nonexistent", 127},
	} {
		t.Run(x.name, func(t *testing.T) {
			exit := app().Main([]string{"fleet", "exec", "-t", "box", "--", "sh", "-c", x.script},
				command.IO{Stdin: tty, Stdout: tty, Stderr: os.Stderr, Getenv: func(k string) string { return map[string]string{"TERM": "xterm"}[k] }})
			if exit != x.exit {
				t.Errorf("exit %d: %q", exit, shown.String())
			}
			after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
			if err != nil || *after != *before {
				t.Errorf("%v: %+v, not %+v", err, after, before)
			}
		})
	}
}
