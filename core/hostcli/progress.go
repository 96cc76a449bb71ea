package hostcli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// progress shows steps to a person on standard error: one line each, and on a
// terminal a line that changes while something is being waited for.
type progress struct {
	w        io.Writer
	quiet    bool
	terminal bool

	mu      sync.Mutex
	waiting bool
}

func newProgress(c *command.Call) *progress {
	return &progress{w: c.Stderr, quiet: c.WantsJSON(), terminal: command.IsTerminal(c.Stderr) && c.Getenv("TERM") != "dumb"}
}

func (p *progress) step(s wire.Step) {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	detail := s.Detail
	if detail != "" && s.Status != wire.StepFailed {
		detail = "  " + detail
	} else {
		detail = "" // the error itself follows
	}
	fmt.Fprintf(p.w, "%-12s %-8s %6d ms%s\n", s.Name, s.Status, s.MS, detail)
}

func (p *progress) notice(format string, args ...any) {
	if p.quiet || !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if len(text) > 76 {
		text = text[:76]
	}
	fmt.Fprintf(p.w, "\r\x1b[K  %s", text)
	p.waiting = true
}

func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *progress) clear() {
	if p.waiting {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.waiting = false
	}
}

// askHostKey shows a key, and what speaks for it, and asks.
func askHostKey(c *command.Call) func(context.Context, *sshconn.Conn) (bool, error) {
	return func(ctx context.Context, conn *sshconn.Conn) (bool, error) {
		fmt.Fprintf(c.Stderr, "The host key of %s is not known here:\n  %s\n", conn.Place, hostkey.Describe(conn.Key))
		for _, e := range conn.Evidence {
			fmt.Fprintf(c.Stderr, "  %s\n", e)
		}
		fmt.Fprint(c.Stderr, "Compare it with the host's own. Is it right (yes/no)? ")
		answer := make(chan string, 1)
		go func() { // ends with a line of input, or with the program
			line, _ := bufio.NewReader(c.Stdin).ReadString('\n')
			answer <- strings.ToLower(strings.TrimSpace(line))
		}()
		select {
		case a := <-answer:
			return a == "yes", nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
