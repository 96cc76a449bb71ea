package e2e

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"

	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
)

// held reaches the agent over connections of which the one stops that brings
// what was read or written of all of them beyond some bytes, until the test lets
// it go on.
type held struct {
	target
	stops chan struct{} // closed when one has stopped
	goes  chan struct{}

	mu   sync.Mutex
	left int
}

func (h *held) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := h.target.Dial(ctx)
	return &heldConn{conn, h}, err
}

type heldConn struct {
	net.Conn
	held *held
}

// pass counts content, and not what is said about it: that gets through.
func (h *held) pass(n int) {
	if n < 1<<10 {
		return
	}
	h.mu.Lock()
	stop := h.left > 0 && h.left <= n
	h.left -= n
	h.mu.Unlock()
	if stop {
		close(h.stops)
		<-h.goes
	}
}

func (c *heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.held.pass(n)
	return n, err
}

func (c *heldConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.held.pass(n)
	return n, err
}

// A person at a terminal sees how far a copy is, of a file with how much there
// is of it, and nothing of that stays.
func TestACopyShowsItsProgressOnATerminal(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	dir := m.root + "/c"
	if err := os.MkdirAll(dir+"/src", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/src/large", bytes.Repeat([]byte("0123456789abcdef"), 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ args, shows string }{
		{"DIR/src/large box:DIR/up", `\[=*>? *\] +[0-9.]+ [KM]iB / 8.0 MiB +[0-9.]+ \w+/s +[0-9]+ ?%`},
		{"-r box:DIR/src DIR/down", `0 files +[0-9.]+ [KM]iB +[0-9.]+ \w+/s`},
	} {
		outer, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		if err := pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: 100}); err != nil {
			t.Fatal(err)
		}
		var shown text
		var drawn sync.WaitGroup
		drawn.Go(func() { io.Copy(&shown, outer) }) // ends with the terminal
		way := &held{target: target{m}, left: 4 << 20, stops: make(chan struct{}), goes: make(chan struct{})}
		app := &command.App{Name: "fleet", Summary: "x", Version: "1", Commands: cli.DataPath(cli.Reach{
			Find: func(_ context.Context, _ *command.Call, word string) (fanout.Machine, error) {
				return fanout.Machine{ID: "m_x", Name: word}, nil
			},
			Open: func(context.Context, *command.Call, fanout.Machine) (cli.Target, error) { return way, nil },
		})}
		ended := make(chan int, 1)
		go func() {
			ended <- app.Main(strings.Fields("fleet cp "+strings.ReplaceAll(x.args, "DIR", dir)),
				command.IO{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: tty, Getenv: func(k string) string { return map[string]string{"TERM": "xterm"}[k] }})
		}()
		<-way.stops
		line := regexp.MustCompile(x.shows)
		m.await("the progress line", func() bool { return line.MatchString(shown.String()) })
		close(way.goes)
		if exit := <-ended; exit != 0 {
			t.Errorf("%s: exit %d", x.args, exit)
		}
		tty.Close()
		drawn.Wait()
		outer.Close()
		if all := shown.String(); !line.MatchString(all) || strings.TrimSpace(all[strings.LastIndex(all, "\x1b[J")+3:]) != "" {
			t.Errorf("%s: the terminal got %q", x.args, all)
		}
	}
}
