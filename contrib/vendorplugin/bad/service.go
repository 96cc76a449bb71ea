package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"unicode"

	"fleet.example/fleet/plugins/sdk"
)

// service is a small manager that would do, were it not spoiled.
type service struct{ way string }

// Detect of "rude" runs what its description does not list.
func (s service) Detect(ctx context.Context, h sdk.Host) (sdk.Detection, error) {
	if s.way == "rude" {
		if _, err := h.Run(ctx, sdk.Command{Argv: []string{"touch", "/tmp/was-here"}}); err != nil {
			return sdk.Detection{}, fmt.Errorf("cannot look around: %w", err)
		}
	}
	return sdk.Detection{Score: 50, Reason: "a vendor's own", Scopes: []sdk.Scope{sdk.ScopeUser}, LatchAware: true}, nil
}

func file(s sdk.Spec) string { return path.Join(s.DataDir, "service", s.Name) }

// Render of "rude" takes any name and any path.
func (s service) Render(_ context.Context, _ sdk.Facts, spec sdk.Spec) (sdk.Rendered, error) {
	odd := func(r rune) bool { return unicode.IsControl(r) || r == unicode.ReplacementChar }
	if s.way != "rude" && (spec.Name == "" || strings.ContainsAny(spec.Name, "/ \n") || strings.ContainsFunc(spec.DataDir, odd)) {
		return sdk.Rendered{}, sdk.ErrInvalid
	}
	return sdk.Rendered{Unit: spec.Name, Files: []sdk.File{
		{Path: file(spec), Mode: 0o600, Owner: spec.User, Content: []byte(strings.Join(spec.Argv, "\n"))},
	}}, nil
}

func (service) Reload(context.Context, sdk.Host, sdk.Spec) error { return nil }

func (service) Enable(context.Context, sdk.Host, sdk.Spec) error {
	return fmt.Errorf("%w: nothing starts it at boot", sdk.ErrUnsupported)
}

// run runs a script with the service's file, its latch and its argv.
func (service) run(ctx context.Context, h sdk.Host, s sdk.Spec, script string) (string, error) {
	r, err := h.Run(ctx, sdk.Command{Argv: append([]string{"sh", "-c", script, "sh", file(s), s.Latch}, s.Argv...)})
	if err == nil && r.Exit != 0 {
		err = errors.New(string(r.Stderr))
	}
	return string(r.Stdout), err
}

func (s service) Start(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	_, err := s.run(ctx, h, spec, `f=$1.pid; [ ! -e "$2" ] || exit 0; shift 2
kill -0 "$(cat "$f" 2>/dev/null)" 2>/dev/null || { setsid "$@" </dev/null >/dev/null 2>&1 & echo $! >"$f"; }`)
	return err
}

func (s service) Stop(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	_, err := s.run(ctx, h, spec, `p=$(cat "$1.pid" 2>/dev/null) || exit 0
kill "$p" 2>/dev/null; while kill -0 "$p" 2>/dev/null; do sleep 0.1; done; rm -f "$1.pid"`)
	return err
}

func (s service) Restart(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	return errors.Join(s.Stop(ctx, h, spec), s.Start(ctx, h, spec))
}

func (s service) Status(ctx context.Context, h sdk.Host, spec sdk.Spec) (sdk.Status, error) {
	if _, err := h.Stat(ctx, file(spec)); errors.Is(err, fs.ErrNotExist) {
		return sdk.Status{State: sdk.StateAbsent}, nil
	} else if err != nil {
		return sdk.Status{State: sdk.StateUnknown}, err
	}
	out, err := s.run(ctx, h, spec, `p=$(cat "$1.pid" 2>/dev/null) && kill -0 "$p" 2>/dev/null && echo "$p"; true`)
	if err != nil {
		return sdk.Status{State: sdk.StateUnknown}, err
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(out)); err == nil {
		return sdk.Status{State: sdk.StateRunning, PID: pid}, nil
	}
	return sdk.Status{State: sdk.StateStopped}, nil
}

func (service) Logs(context.Context, sdk.Host, sdk.Spec, int) ([]byte, error) {
	return nil, sdk.ErrUnsupported
}

func (service) Linger(context.Context, sdk.Host, sdk.Spec, bool) (sdk.Linger, error) {
	return sdk.Linger{Enabled: true}, nil
}

// Disable of "litter" leaves the service running.
func (s service) Disable(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	if s.way == "litter" {
		return nil
	}
	return s.Stop(ctx, h, spec)
}
