// Package conformance holds one suite for each kind of plugin: what fleet
// relies on, checked from outside. Fleet's own plugins run it in their tests, a
// vendor's in the vendor's, and `fleet plugin test PATH` runs it over the real
// plugin process.
//
// A suite returns its checks instead of failing a test, so that a program can
// print them. In a test:
//
//	for _, c := range conformance.Probe(ctx, p, env) {
//		t.Run(c.Name, func(t *testing.T) { c.Report(t) })
//	}
package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// Check is one thing that fleet relies on.
type Check struct {
	Name    string // what was looked at, as "render is pure"
	OK      bool
	Skipped bool   // it could not be looked at here
	Detail  string // what was wrong, or why it was skipped
}

// Reporter is the part of *testing.T that Report needs.
type Reporter interface {
	Helper()
	Error(args ...any)
	Skip(args ...any)
}

// Report passes a check's outcome on to a test.
func (c Check) Report(t Reporter) {
	t.Helper()
	switch {
	case c.Skipped:
		t.Skip(c.Detail)
	case !c.OK:
		t.Error(c.Detail)
	}
}

// patience bounds one check, and stepPatience one that changes a machine.
const (
	patience     = 15 * time.Second
	stepPatience = 60 * time.Second
)

// suite collects checks.
type suite struct {
	ctx    context.Context
	checks []Check
}

type skip string

func (s skip) Error() string { return string(s) }

// check runs one check under a deadline.
func (s *suite) check(name string, f func(ctx context.Context) error) {
	s.checkFor(patience, name, f)
}

func (s *suite) checkFor(d time.Duration, name string, f func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(s.ctx, d)
	defer cancel()
	c := Check{Name: name}
	switch err := f(ctx).(type) {
	case nil:
		c.OK = true
	case skip:
		c.OK, c.Skipped, c.Detail = true, true, err.Error()
	default:
		c.Detail = err.Error()
	}
	s.checks = append(s.checks, c)
}

// watched counts what a plugin asks of its host and holds the phase's rules, as
// fleet itself does, so that a breach is seen here first.
type watched struct {
	sdk.Host
	desc  sdk.Description
	phase sdk.Phase

	mu       sync.Mutex
	calls    int
	breaches []string
}

func (w *watched) count() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
}

func (w *watched) Facts(ctx context.Context) (sdk.Facts, error) {
	f, err := w.Host.Facts(ctx)
	f.Phase = w.phase
	return f, err
}

func (w *watched) Run(ctx context.Context, c sdk.Command) (sdk.Result, error) {
	w.count()
	if w.phase == sdk.PhaseUnconfirmed && (c.AsRoot || len(c.Stdin) > 0 || !w.desc.Allows(c.Argv)) {
		w.mu.Lock()
		w.breaches = append(w.breaches, fmt.Sprintf("%q", c.Argv))
		w.mu.Unlock()
		return sdk.Result{}, sdk.ErrDenied
	}
	return w.Host.Run(ctx, c)
}

func (w *watched) Statfs(ctx context.Context, p string) (sdk.FSStat, error) {
	w.count()
	return w.Host.Statfs(ctx, p)
}

func (w *watched) ReadFile(ctx context.Context, p string, limit int) ([]byte, bool, error) {
	w.count()
	return w.Host.ReadFile(ctx, p, limit)
}

func (w *watched) Stat(ctx context.Context, p string) (sdk.FileInfo, error) {
	w.count()
	return w.Host.Stat(ctx, p)
}

// unreachable is a host that has just gone away: it still has its facts.
type unreachable struct{ facts sdk.Facts }

func (u unreachable) Facts(context.Context) (sdk.Facts, error) { return u.facts, nil }

func (unreachable) Statfs(context.Context, string) (sdk.FSStat, error) {
	return sdk.FSStat{}, sdk.ErrUnreachable
}

func (unreachable) Run(context.Context, sdk.Command) (sdk.Result, error) {
	return sdk.Result{}, sdk.ErrUnreachable
}

func (unreachable) ReadFile(context.Context, string, int) ([]byte, bool, error) {
	return nil, false, sdk.ErrUnreachable
}

func (unreachable) Stat(context.Context, string) (sdk.FileInfo, error) {
	return sdk.FileInfo{}, sdk.ErrUnreachable
}

func (unreachable) Progress(context.Context, string) {}
