package cli

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"fleet.example/fleet/core/command"
)

// copyProgress shows a person how far a copy is, on the last line of a terminal.
// The line is gone before anything else is written. Its methods may be used from
// several goroutines.
type copyProgress struct {
	w     io.Writer // nil: nobody looks
	began time.Time

	// The bar's own goroutine reads these.
	size         atomic.Int64 // of the one file; negative: not known
	files, bytes atomic.Int64

	mu    sync.Mutex
	shown *mpb.Progress
	bar   *mpb.Bar
}

func newCopyProgress(c *command.Call) *copyProgress {
	p := &copyProgress{began: time.Now()}
	p.size.Store(-1)
	if command.IsTerminal(c.Stderr) && c.Getenv("TERM") != "dumb" && !c.Bool("verbose") && !c.WantsJSON() {
		p.w = c.Stderr
	}
	return p
}

// total says how large the one file is that is copied.
func (p *copyProgress) total(size int64) { p.size.Store(size) }

// at shows how far the copy is.
func (p *copyProgress) at(files, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files.Store(files)
	p.bytes.Store(bytes)
	if p.w == nil {
		return
	}
	size := p.size.Load()
	if p.shown == nil {
		p.shown = mpb.New(mpb.WithOutput(p.w), mpb.WithRefreshRate(100*time.Millisecond))
		if size > 0 {
			p.bar = p.shown.New(size, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
				mpb.BarWidth(36), mpb.BarRemoveOnComplete(), mpb.PrependDecorators(decor.Name("  ")),
				mpb.AppendDecorators(decor.Any(p.words), decor.Percentage(decor.WC{W: 6})))
		} else {
			p.bar = p.shown.New(0, mpb.SpinnerStyle("|", "/", "-", "\\").PositionLeft(), mpb.BarWidth(4), mpb.BarFillerTrim(),
				mpb.PrependDecorators(decor.Name("  ")), mpb.AppendDecorators(decor.Any(p.words)))
		}
	}
	if size > 0 {
		p.bar.SetCurrent(min(bytes, size-1)) // a full one would end by itself
	}
}

func (p *copyProgress) words(decor.Statistics) string {
	bytes, size := p.bytes.Load(), p.size.Load()
	rate := decor.SizeB1024(float64(bytes) / max(time.Since(p.began).Seconds(), 0.1))
	if size > 0 {
		return fmt.Sprintf(" % .1f / % .1f  % .1f/s", decor.SizeB1024(bytes), decor.SizeB1024(size), rate)
	}
	return fmt.Sprintf(" %d files  % .1f  % .1f/s", p.files.Load(), decor.SizeB1024(bytes), rate)
}

// done takes the line away and waits until it is gone.
func (p *copyProgress) done() {
	p.mu.Lock()
	shown, bar := p.shown, p.bar
	p.shown, p.bar = nil, nil
	p.mu.Unlock()
	if shown != nil {
		bar.Abort(true)
		shown.Wait()
	}
}
