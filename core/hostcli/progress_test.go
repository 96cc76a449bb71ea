package hostcli

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"

	"fleet.example/fleet/core/wire"
)

// terminal is the far end of a pty: it keeps what was written and draws it.
type terminal struct {
	tty  *os.File
	mu   sync.Mutex
	got  bytes.Buffer
	done chan struct{}
}

func newTerminal(t *testing.T, columns uint16) *terminal {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pty here:", err)
	}
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: columns}); err != nil {
		t.Fatal(err)
	}
	x := &terminal{tty: tty, done: make(chan struct{})}
	go func() { // ends when the tty is closed
		defer close(x.done)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			x.mu.Lock()
			x.got.Write(b[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { tty.Close(); <-x.done; master.Close() })
	return x
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.got.String()
}

// until waits for words to be written.
func (x *terminal) until(t *testing.T, words string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !strings.Contains(x.text(), words); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q was never written: %q", words, x.text())
		}
	}
}

var escape = regexp.MustCompile(`^\x1b\[([0-9]*)([A-Za-z])`)

// draw plays what was written on a screen, and gives what stands there at the
// end and the longest line that ever stood there.
func draw(t *testing.T, s string) (screen string, widest int) {
	t.Helper()
	lines, row, col := []string{""}, 0, 0
	for len(s) > 0 {
		if m := escape.FindStringSubmatch(s); m != nil {
			n, _ := strconv.Atoi(m[1])
			switch m[2] {
			case "A":
				row = max(0, row-n)
			case "J", "K":
				lines = lines[:row+1]
				lines[row] = string([]rune(lines[row])[:col])
			default:
				t.Fatalf("unexpected escape sequence %q", m[0])
			}
			s = s[len(m[0]):]
			continue
		}
		r, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		switch r {
		case '\r':
			col = 0
		case '\n':
			if row++; row == len(lines) {
				lines = append(lines, "")
			}
		default:
			l := []rune(lines[row])
			for len(l) <= col {
				l = append(l, ' ')
			}
			l[col] = r
			lines[row] = string(l)
			col++
			widest = max(widest, col)
		}
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n "), widest
}

const stepLines = "connect      ok            3 ms  dana@box\n" +
	"upload       ok         1234 ms  5.4 MiB by sftp\n" +
	"service      ok           10 ms\n" +
	"match        failed        1 ms\n"

func playSteps(p *progress, between func(what string)) {
	p.notice("connect")
	p.step(wire.Step{Name: "connect", Status: wire.StepOK, MS: 3, Detail: "dana@box"})
	p.notice("upload")
	for i := int64(1); i <= 10; i++ {
		p.sent(i*540<<10, 5400<<10)
		if i == 5 {
			between("50 %")
		}
	}
	p.step(wire.Step{Name: "upload", Status: wire.StepOK, MS: 1234, Detail: "5.4 MiB by sftp"})
	p.notice("service")
	between("service")
	p.notice("waiting for \x1b[2Ja unit whose name is %s", strings.Repeat("very ", 40)+"long")
	between("waiting for")
	p.step(wire.Step{Name: "service", Status: wire.StepOK, MS: 10})
	p.step(wire.Step{Name: "match", Status: wire.StepFailed, MS: 1, Detail: "said later"})
	p.done()
}

func TestOnATerminalOneLineMovesAndNothingOfItStays(t *testing.T) {
	for _, columns := range []uint16{80, 40, 200} {
		x := newTerminal(t, columns)
		p := &progress{w: x.tty, terminal: true}
		playSteps(p, func(what string) { x.until(t, what) })
		x.until(t, "match        failed")
		screen, widest := draw(t, strings.ReplaceAll(x.text(), "\r\n", "\n\r"))
		if screen+"\n" != stepLines {
			t.Errorf("%d columns: the screen shows\n%s", columns, screen)
		}
		if widest > min(int(columns), 80) && columns >= 80 || columns < 80 && widest > len("upload       ok         1234 ms  5.4 MiB by sftp") {
			t.Errorf("%d columns: a line of %d", columns, widest)
		}
		want := []string{"uploading", "2.6 MiB / 5.3 MiB", "50 %"}
		if columns >= 80 {
			want = append(want, "[=======")
		}
		for _, want := range want {
			if !strings.Contains(x.text(), want) {
				t.Errorf("%d columns: %q was never shown: %q", columns, want, x.text())
			}
		}
		if strings.Contains(x.text(), "\x1b[2J") || strings.Contains(x.text(), "\x1b[3") {
			t.Error("a notice's control characters, or colour, came through")
		}
	}
}

func TestOnlyATerminalThatCanHasMovingLines(t *testing.T) {
	tty := newTerminal(t, 80).tty
	if !moves(tty, "xterm", false) {
		t.Error("a terminal has none")
	}
	if moves(tty, "dumb", false) || moves(tty, "xterm", true) || moves(new(bytes.Buffer), "xterm", false) {
		t.Error("a dumb terminal, -v or a pipe has them")
	}
}

func TestElsewhereThereAreStepLinesAlone(t *testing.T) {
	var b bytes.Buffer
	playSteps(&progress{w: &b}, func(string) {})
	if b.String() != stepLines {
		t.Errorf("%q", b.String())
	}
	playSteps(&progress{w: io.Discard, terminal: true, quiet: true}, func(string) {})
}

func TestProgressLeavesNoGoroutine(t *testing.T) {
	x := newTerminal(t, 80)
	p := &progress{w: x.tty, terminal: true}
	p.notice("something that is interrupted")
	p.done() // before the spinner
	p.notice("something that is interrupted")
	x.until(t, "interrupted")
	p.done()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending != nil || p.shown != nil {
		t.Error("it goes on")
	}
}
