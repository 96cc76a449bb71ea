package hostcli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/wire"
)

// progress shows steps to a person on standard error: one line each, and on a
// terminal a last line that moves while something is being waited for: a bar
// for bytes, a spinner for the rest. That line is gone before anything else is
// written, so what stays on the screen is what a file would get. It has no
// colour.
type progress struct {
	w        io.Writer
	quiet    bool
	terminal bool

	mu      sync.Mutex
	pending *time.Timer // of a spinner that is not there yet
	shown   *mpb.Progress
	bar     *mpb.Bar
	text    *atomic.Value // the spinner's; nil while a bar for bytes is shown
}

// patience is how long a wait may be without a spinner: most steps are over.
const patience = 200 * time.Millisecond

// maxText keeps a line, with its spinner, within 80 columns.
const maxText = 72

func newProgress(c *command.Call) *progress {
	return &progress{w: c.Stderr, quiet: c.WantsJSON(), terminal: moves(c.Stderr, c.Getenv("TERM"), c.Bool("verbose"))}
}

// moves reports whether a line may move. Under -v, lines of other parts come in
// between.
func moves(w io.Writer, term string, verbose bool) bool {
	return command.IsTerminal(w) && term != "dumb" && !verbose
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

// notice shows what is being waited for.
func (p *progress) notice(format string, args ...any) {
	if p.quiet || !p.terminal {
		return
	}
	text := fitText(fmt.Sprintf(format, args...))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.text != nil {
		p.text.Store(text)
		return
	}
	p.clear()
	var t *time.Timer
	t = time.AfterFunc(patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.pending == t { // else it was overtaken
			p.spin(text)
		}
	})
	p.pending = t
}

func (p *progress) spin(text string) {
	p.pending = nil
	p.text = &atomic.Value{}
	p.text.Store(text)
	shown := p.text
	p.shown = p.container()
	p.bar = p.shown.New(0, mpb.SpinnerStyle("|", "/", "-", "\\").PositionLeft(), mpb.BarWidth(4), mpb.BarFillerTrim(),
		mpb.PrependDecorators(decor.Name("  ")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + shown.Load().(string) })))
}

// sent shows how far an upload is.
func (p *progress) sent(n, total int64) {
	if p.quiet || !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar == nil || p.text != nil {
		p.clear()
		p.shown = p.container()
		p.bar = p.shown.New(total, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
			mpb.BarWidth(36), mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name("  uploading ")),
			mpb.AppendDecorators(decor.Counters(decor.SizeB1024(0), " % .1f / % .1f"), decor.Percentage(decor.WC{W: 6})))
	}
	p.bar.SetCurrent(n)
}

func (p *progress) container() *mpb.Progress {
	return mpb.New(mpb.WithOutput(p.w), mpb.WithRefreshRate(100*time.Millisecond))
}

func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// clear takes the moving line away and waits until it is gone.
func (p *progress) clear() {
	if p.pending != nil {
		p.pending.Stop()
	}
	if p.shown != nil {
		p.bar.Abort(true)
		p.shown.Wait()
	}
	p.pending, p.shown, p.bar, p.text = nil, nil, nil, nil
}

// ask takes the moving line away before the person is asked.
func (p *progress) ask(c *command.Call) func(context.Context, hostkey.Met) (bool, error) {
	question := askHostKey(c)
	return func(ctx context.Context, m hostkey.Met) (bool, error) {
		p.done()
		return question(ctx, m)
	}
}

// fitText makes one short line of what may come from a plugin.
func fitText(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > maxText {
		s = string(r[:maxText-1]) + "…"
	}
	return s
}

// askHostKey shows a key, and what speaks for it, and asks.
func askHostKey(c *command.Call) func(context.Context, hostkey.Met) (bool, error) {
	return func(ctx context.Context, m hostkey.Met) (bool, error) {
		what := ""
		if m.Jump {
			what = "jump host "
		}
		fmt.Fprintf(c.Stderr, "The host key of %s%s is not known here:\n  %s\n", what, m.Place, hostkey.Describe(m.Key))
		for _, e := range m.Evidence {
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
