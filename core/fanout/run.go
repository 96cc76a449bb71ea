package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// Done is a machine whose deed went well.
type Done struct {
	Machine
	Outcome
}

// Each does a deed to the machines. table, where set, shows a person all that
// went well, at the end, instead of a line for each.
func (s *Selection) Each(ctx context.Context, c *command.Call, machines []Machine, do Do, table func([]Done) error) error {
	if c.Bool("dry-run") {
		do, table = s.wouldDo, nil
	}
	if !s.Many() {
		return s.single(ctx, c, machines[0], do)
	}
	r := &run{sel: s, call: c, results: make([]result, len(machines)), table: table, dry: c.Bool("dry-run"), jsonl: c.Bool("jsonl")}
	return r.all(ctx, machines, do)
}

// Over does a deed to what is no machine yet, known by the names in machines, as
// Each does to many machines. Without --json, JSON Lines are also what is printed
// where output goes to no terminal.
func (s Spec) Over(ctx context.Context, c *command.Call, machines []Machine, do Do) error {
	if c.Int("parallel") < 1 || c.Int("max-failed") < 0 {
		return fault.Usagef("--parallel takes a number from 1, --max-failed one from 0")
	}
	sel := &Selection{spec: s}
	r := &run{sel: sel, call: c, results: make([]result, len(machines)), dry: c.Bool("dry-run"),
		jsonl: c.Bool("jsonl") || !c.Bool("json") && !command.IsTerminal(c.Stdout)}
	if r.dry {
		do = sel.wouldDo
	}
	return r.all(ctx, machines, do)
}

// wouldDo stands in for a deed. Nothing is connected to.
func (s *Selection) wouldDo(_ context.Context, o *One) (Outcome, error) {
	if s.spec.Linked && o.Link == nil {
		return Outcome{}, NoDestination(o.Machine, o.Label())
	}
	words := "would " + s.spec.Does
	return Outcome{Words: words, Show: func(c *command.Call) error {
		_, err := fmt.Fprintf(c.Stdout, "%s  %s  %s\n", o.ID, command.Clean(o.Name), words)
		return err
	}}, nil
}

// single is the deed on the one machine that a word names.
func (s *Selection) single(ctx context.Context, c *command.Call, m Machine, do Do) error {
	o := Alone(c, m)
	flush := func() error { return nil }
	streams := s.spec.Streams && c.Bool("jsonl")
	if streams {
		out, errOut := &lines{render: outputs(m, wire.StreamStdout), out: c.Stdout}, &lines{render: outputs(m, wire.StreamStderr), out: c.Stdout}
		o.Out, o.Err = out, errOut
		flush = func() error { return errors.Join(out.flush(), errOut.flush()) }
	}
	what, err := do(ctx, o)
	if ferr := flush(); ferr != nil {
		return ferr
	}
	res := s.result(m, what, err)
	if c.Bool("dry-run") {
		res.Status = wire.StatusDryRun
	}
	var printed error
	switch {
	case streams:
		printed = c.Print(res)
	case c.WantsJSON() && what.Document != nil:
		printed = c.Print(what.Document)
	case err != nil || what.Exit != 0 || what.Printed:
	case c.WantsJSON():
		printed = c.Print(res)
	case what.Show != nil:
		printed = what.Show(c)
	default:
		c.Notef("%s: %s", m.Label(), what.Words)
	}
	switch {
	case printed != nil:
		return printed
	case err != nil:
		return err
	case what.Exit != 0:
		return &command.Exit{Status: what.Exit}
	}
	return nil
}

func (s *Selection) result(m Machine, what Outcome, err error) wire.Result {
	r := wire.Result{Machine: m.ID, Name: m.Name, OK: err == nil && what.Exit == 0, Exit: what.Exit, Status: what.Status, Document: what.Document}
	if f := fault.Of(err); f != nil {
		r.Exit = f.Exit
		if s.spec.FailureExit != 0 && f.Exit != fault.Usage && f.Exit != fault.Interrupted {
			r.Exit = s.spec.FailureExit
		}
		r.Error = &wire.CLIErrorDetail{Code: f.Code, Message: f.Msg, Hint: f.Hint, Exit: r.Exit}
	}
	return r
}

// result is one machine's, and whether it is there yet.
type result struct {
	m    Machine
	what Outcome
	res  wire.Result
	is   bool
}

// run is one command on many machines.
type run struct {
	sel   *Selection
	call  *command.Call
	table func([]Done) error
	dry   bool
	jsonl bool
	end   context.CancelFunc

	mu       sync.Mutex // of all below, and of standard output and error
	results  []result
	shown    int // results before it were shown to a person
	sum      wire.Summary
	broken   error // standard output takes nothing any more
	labels   map[string]int
	progress bool
}

// errStopped is why a machine was not begun.
var errStopped = errors.New("stopped early")

func (r *run) all(ctx context.Context, machines []Machine, do Do) error {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	r.end = cancel
	r.sum.Schema = wire.SchemaSummary
	r.progress = command.IsTerminal(r.call.Stderr) && r.call.Getenv("TERM") != "dumb" && !r.call.WantsJSON() && !r.jsonl && !r.sel.spec.Streams
	r.labels = map[string]int{}
	for _, m := range machines {
		r.labels[m.Name]++
	}
	var group errgroup.Group
	switch {
	case r.dry:
		group.SetLimit(1) // nothing to wait for, so one order
	case !r.sel.spec.Cheap:
		group.SetLimit(r.call.Int("parallel"))
	}
	for i, m := range machines {
		group.Go(func() error {
			if r.stopped(ctx) {
				r.finish(i, m, Outcome{}, errStopped)
				return nil
			}
			o, flush := r.part(m)
			what, err := do(within, o)
			// What the machine wrote stands before its result.
			if ferr := flush(); ferr != nil && err == nil {
				err = ferr
			}
			if err != nil && ctx.Err() == nil && within.Err() != nil {
				err = errStopped
			}
			r.finish(i, m, what, err)
			return nil
		})
	}
	group.Wait()
	return r.conclude(ctx)
}

// stopped reports whether no machine is begun any more.
func (r *run) stopped(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return ctx.Err() != nil || r.broken != nil || r.tooMany()
}

func (r *run) tooMany() bool {
	n := r.call.Int("max-failed")
	return n > 0 && r.sum.Failed >= n
}

// label is what tells the machine from the others where a person reads.
func (r *run) label(m Machine) string {
	if r.labels[m.Name] > 1 {
		return m.ID
	}
	return m.Label()
}

// shared is a stream of the process, which all machines write to in turns.
type shared struct {
	r   *run
	put func(p []byte)
}

func (s shared) Write(p []byte) (int, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.put(p)
	if s.r.broken != nil {
		return 0, s.r.broken
	}
	return len(p), nil
}

// print writes whole lines to standard output. The caller holds the mutex.
func (r *run) print(p []byte) {
	if r.broken != nil {
		return
	}
	r.unmeter()
	if _, err := r.call.Stdout.Write(p); err != nil {
		r.broken = fmt.Errorf("cannot write output: %w", err)
		r.end()
	}
	r.meter()
}

// note writes whole lines to standard error. The caller holds the mutex.
func (r *run) note(p []byte) {
	r.unmeter()
	r.call.Stderr.Write(p)
	r.meter()
}

// meter says on a terminal how far it is, on a line that the next one replaces.
func (r *run) meter() {
	if n := r.sum.OK + r.sum.Failed + r.sum.NotBegun; r.progress && n < len(r.results) {
		fmt.Fprintf(r.call.Stderr, "%d of %d", n, len(r.results))
	}
}

func (r *run) unmeter() {
	if r.progress {
		io.WriteString(r.call.Stderr, "\r\x1b[K")
	}
}

// part makes a machine's own streams.
func (r *run) part(m Machine) (*One, func() error) {
	stdout, stderr := shared{r, r.print}, shared{r, r.note}
	label := prefixed(r.label(m))
	call := *r.call
	notes := &lines{render: label, out: stderr}
	out, errOut := &lines{render: label, out: stdout}, &lines{render: label, out: stderr}
	switch {
	case r.sel.spec.Streams && r.jsonl:
		out.render = outputs(m, wire.StreamStdout)
		errOut.render, errOut.out = outputs(m, wire.StreamStderr), stdout
	case r.call.WantsJSON() || r.jsonl:
		out.render = asItIs // documents name their machine
	}
	call.Stdin, call.Stdout, call.Stderr = strings.NewReader(""), out, notes
	return &One{Machine: m, Call: &call, Out: out, Err: errOut}, func() error {
		return errors.Join(out.flush(), errOut.flush(), notes.flush())
	}
}

// finish takes a machine's result and shows what can be shown now.
func (r *run) finish(i int, m Machine, what Outcome, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == errStopped {
		why := "interrupted"
		if r.tooMany() {
			why = fmt.Sprintf("%d machines failed", r.sum.Failed)
		}
		err = fault.New(fault.NotYet, wire.StatusNotBegun, "left out: %s", why)
	}
	if what.Machine != nil {
		m = *what.Machine
	}
	res := r.sel.result(m, what, err)
	switch {
	case res.Error != nil && res.Error.Code == wire.StatusNotBegun:
		res.Status = wire.StatusNotBegun
		r.sum.NotBegun++
	case res.OK:
		r.sum.OK++
		if r.dry {
			res.Status = wire.StatusDryRun
		}
	default:
		r.sum.Failed++
	}
	r.results[i] = result{m, what, res, true}
	if r.sel.spec.Cheap && r.tooMany() {
		r.end()
	}
	switch {
	case r.jsonl:
		r.print(appendJSON(nil, res))
	case r.call.Bool("json"):
	case r.sel.spec.Streams && !r.dry:
		r.show(r.results[i])
	default:
		for ; r.shown < len(r.results) && r.results[r.shown].is; r.shown++ {
			r.show(r.results[r.shown])
		}
		if r.progress {
			r.unmeter()
			r.meter()
		}
	}
}

// widest is how much of a name is shown beside an id and the longest words.
const widest = 24

// show tells a person a machine's result.
func (r *run) show(done result) {
	label, err := r.label(done.m), done.res.Error
	switch {
	case done.res.Status == wire.StatusNotBegun: // the last line counts them
	case err != nil:
		text := command.Wrap(label+": "+oneLine(err.Message), "  ") + "\n"
		if err.Hint != "" {
			text += command.Wrap("  hint: "+oneLine(err.Hint), "    ") + "\n"
		}
		r.note([]byte(text))
	case !done.res.OK:
		r.note(fmt.Appendf(nil, "%s: exit status %d\n", label, done.res.Exit))
	case r.table != nil || done.what.Words == "":
	default:
		width := 0
		for name := range r.labels {
			width = max(width, min(utf8.RuneCountInString(name), widest))
		}
		name := command.Fit(done.m.Name, widest)
		pad := strings.Repeat(" ", max(width-utf8.RuneCountInString(name), 0))
		id := done.m.ID
		if id != "" {
			id += "  "
		}
		r.print(fmt.Appendf(nil, "%s%s%s  %s\n", id, name, pad, command.Clean(done.what.Words)))
	}
}

func oneLine(s string) string { return command.Clean(strings.Join(strings.Fields(s), " ")) }

// conclude sums up, and says by an error how the command went.
func (r *run) conclude(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unmeter()
	r.progress = false
	if r.broken != nil {
		return unwritten(r.broken)
	}
	switch {
	case r.jsonl:
		r.print(appendJSON(nil, r.sum))
	case r.call.Bool("json"):
		doc := wire.Results{Schema: wire.SchemaResults, Results: []wire.Result{}, OK: r.sum.OK, Failed: r.sum.Failed, NotBegun: r.sum.NotBegun}
		for _, res := range r.results {
			doc.Results = append(doc.Results, res.res)
		}
		if err := r.call.Print(doc); err != nil {
			return err
		}
	default:
		if r.table != nil {
			var done []Done
			for _, res := range r.results {
				if res.res.OK {
					done = append(done, Done{res.m, res.what})
				}
			}
			if err := r.table(done); err != nil {
				return err
			}
		}
		r.call.Notef("%s", r.summary())
	}
	switch {
	case r.broken != nil:
		return unwritten(r.broken)
	case ctx.Err() != nil && r.sum.OK < len(r.results):
		return ctx.Err()
	case r.sum.Failed > 0:
		return &command.Exit{Status: fault.Partial}
	}
	return nil
}

// unwritten is the error of output that could not be written: none in words
// where nobody reads it, as in a pipe to head.
func unwritten(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return &command.Exit{Status: 128 + int(syscall.SIGPIPE)}
	}
	return err
}

func (r *run) summary() string {
	if len(r.results) == 0 {
		return "no machines"
	}
	text := fmt.Sprintf("%d ok, %d failed", r.sum.OK, r.sum.Failed)
	if r.sum.NotBegun > 0 {
		text += fmt.Sprintf(", %d not begun", r.sum.NotBegun)
	}
	if r.dry {
		text = "dry run, nothing was done: " + text
	}
	return text
}
