// Package plain is the service manager plugin for hosts without a usable one:
// containers, shared hosting, an account that systemd has no manager for.
//
// It renders one shell script, which starts the agent detached, starts it again
// when it fails, and ends when the agent ends with 0. Where there is crontab, an
// @reboot line brings it back after a reboot. What it cannot promise it says in
// the caveats of Render.
//
// It is also the example for vendors: the whole of a service manager, with
// nothing but the SDK. Start reading at Detect.
//
// The package must not know SSH or where the agent's directories come from.
package plain

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"fleet.example/fleet/plugins/sdk"
)

//go:embed supervise.sh
var supervise string

// Describe says what the plugin is.
func Describe(version string) sdk.Description {
	return sdk.Description{
		Name: "plain", Version: version, Targets: []string{"linux", "darwin"},
		Summary:  "starts the agent detached where there is no service manager",
		Commands: [][]string{{"crontab", "-l"}, {"/bin/sh", "*", "status"}},
	}
}

// Manager is the plugin. Its zero value is ready.
type Manager struct{}

// Detect finds that any POSIX host will do, and that anything else is better.
func (Manager) Detect(ctx context.Context, h sdk.Host) (sdk.Detection, error) {
	f, err := h.Facts(ctx)
	if err != nil {
		return sdk.Detection{}, err
	}
	if f.OS != "linux" && f.OS != "darwin" {
		return sdk.Detection{Reason: "the system is " + f.OS}, nil
	}
	d := sdk.Detection{
		Score: 10, Scopes: []sdk.Scope{sdk.ScopeUser},
		SparesSessions: true, LatchAware: true, Logs: true, Version: "1",
	}
	switch _, err := readCrontab(ctx, h); {
	case err == nil:
		d.Reason = "a shell script, back after a reboot by crontab"
	case errors.Is(err, sdk.ErrUnsupported):
		d.Reason = "a shell script, not back after a reboot: " + err.Error()
		d.Score = 5
	default:
		return sdk.Detection{}, err
	}
	return d, nil
}

// scriptPath is where the script lies. Its state lies beside it.
func scriptPath(s sdk.Spec) string { return path.Join(s.DataDir, "service", s.Name+".sh") }

// Render writes the script.
func (Manager) Render(_ context.Context, _ sdk.Facts, s sdk.Spec) (sdk.Rendered, error) {
	if err := check(s); err != nil {
		return sdk.Rendered{}, err
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("#!/bin/sh")
	line("# Written by fleet. Changes are lost with the next install or update.")
	line("state=%s", quote(path.Join(s.DataDir, "service", s.Name)))
	line("log=%s", quote(s.LogFile))
	line("latch=%s", quote(s.Latch))
	line("stop_s=%d", max(1, int(s.StopTimeout/time.Second)))
	line("agent() {")
	words := make([]string, len(s.Argv))
	for i, a := range s.Argv {
		words[i] = quote(a)
	}
	line("\texec %s", strings.Join(words, " "))
	line("}")
	b.WriteString(supervise)
	local := func(verb string) []string { return []string{"/bin/sh", scriptPath(s), verb} }
	r := sdk.Rendered{
		Unit:      scriptPath(s),
		StartArgv: local("start"), StopArgv: local("stop"), RestartArgv: local("restart"),
		Files: []sdk.File{{Path: scriptPath(s), Mode: 0o700, Owner: s.User, Content: []byte(b.String())}},
		Caveats: []string{
			"If the supervising script itself is killed, nothing starts it again before the next reboot.",
			"A system that ends all processes of an account at logout ends the agent too.",
		},
	}
	if _, err := cronLine(s); err == nil { // else Enable says so

		r.Caveats = append(r.Caveats, "The agent comes back after a reboot only where a cron daemon runs @reboot lines.")
	}
	return r, nil
}

func check(s sdk.Spec) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w spec: "+format, append([]any{sdk.ErrInvalid}, args...)...)
	}
	if s.Scope != sdk.ScopeUser {
		return fmt.Errorf("%w: scope %q; there is only the account's own", sdk.ErrUnsupported, s.Scope)
	}
	for _, c := range s.Name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c)) {
			return bad("name %q", s.Name)
		}
	}
	if s.Name == "" || len(s.Name) > 63 {
		return bad("name %q", s.Name)
	}
	if len(s.Argv) == 0 || !path.IsAbs(s.Argv[0]) {
		return bad("the program is not an absolute path")
	}
	for _, p := range []string{s.DataDir, s.LogFile, s.Latch} {
		if !path.IsAbs(p) {
			return bad("%q is not an absolute path", p)
		}
	}
	for _, v := range append([]string{s.DataDir, s.LogFile, s.Latch}, s.Argv...) {
		if !utf8.ValidString(v) || strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			return bad("%q holds control characters or is not UTF-8", v)
		}
	}
	return nil
}

// quote makes one word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// script runs the script with one argument.
func script(ctx context.Context, h sdk.Host, s sdk.Spec, verb string) (sdk.Result, error) {
	if err := check(s); err != nil {
		return sdk.Result{}, err
	}
	r, err := h.Run(ctx, sdk.Command{Argv: []string{"/bin/sh", scriptPath(s), verb}})
	if err != nil {
		return r, err
	}
	if r.Exit != 0 {
		return r, fmt.Errorf("%s %s: exit %d: %s", scriptPath(s), verb, r.Exit, strings.TrimSpace(string(r.Stderr)))
	}
	return r, nil
}

func absent(ctx context.Context, h sdk.Host, s sdk.Spec) (bool, error) {
	_, err := h.Stat(ctx, scriptPath(s))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// Reload has nothing to do: the script is read on each use.
func (Manager) Reload(context.Context, sdk.Host, sdk.Spec) error { return nil }

// Enable adds the @reboot line. Where that cannot be, the agent serves all the
// same, only not after a reboot: ErrUnsupported says why.
func (Manager) Enable(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	if err := check(s); err != nil {
		return err
	}
	line, err := cronLine(s)
	if err != nil {
		return fmt.Errorf("%w: %w", sdk.ErrUnsupported, err)
	}
	return editCrontab(ctx, h, s, line)
}

// Start starts the script's supervisor and waits a moment for the agent.
func (Manager) Start(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	_, err := script(ctx, h, s, "start")
	return err
}

// Stop ends the supervisor and the agent.
func (Manager) Stop(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	if gone, err := absent(ctx, h, s); err != nil || gone {
		return err
	}
	_, err := script(ctx, h, s, "stop")
	return err
}

// Restart is Stop and Start.
func (Manager) Restart(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	_, err := script(ctx, h, s, "restart")
	return err
}

// Disable removes the @reboot line and stops the service.
func (m Manager) Disable(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	err := editCrontab(ctx, h, s, "")
	if errors.Is(err, sdk.ErrUnsupported) {
		if has, readErr := hasLine(ctx, h, s); readErr == nil && !has {
			err = nil // a crontab out of order, with nothing of ours
		}
	}
	return errors.Join(err, m.Stop(ctx, h, s))
}

// hasLine reports whether the @reboot line is there. Without a crontab it is not.
func hasLine(ctx context.Context, h sdk.Host, s sdk.Spec) (bool, error) {
	lines, err := readCrontab(ctx, h)
	if errors.Is(err, sdk.ErrUnsupported) {
		return false, nil
	}
	line, lineErr := cronLine(s)
	return lineErr == nil && slices.Contains(lines, line), err
}

// Status asks the script.
func (Manager) Status(ctx context.Context, h sdk.Host, s sdk.Spec) (sdk.Status, error) {
	st := sdk.Status{State: sdk.StateUnknown}
	gone, err := absent(ctx, h, s)
	if err != nil {
		return st, err
	}
	if gone {
		st.State = sdk.StateAbsent
		return st, nil
	}
	r, err := script(ctx, h, s, "status")
	if err != nil {
		return st, err
	}
	st = parseStatus(string(r.Stdout))
	if st.AtBoot, err = hasLine(ctx, h, s); err != nil {
		st.AtBoot = false
	}
	return st, nil
}

// parseStatus reads "STATE PID EXIT".
func parseStatus(out string) sdk.Status {
	st := sdk.Status{State: sdk.StateUnknown, Detail: strings.TrimSpace(out)}
	f := strings.Fields(out)
	if len(f) != 3 {
		return st
	}
	switch s := sdk.State(f[0]); s {
	case sdk.StateRunning, sdk.StateStarting, sdk.StateStopped, sdk.StateFailed:
		st.State = s
	}
	if pid, err := strconv.ParseInt(f[1], 10, 32); err == nil && pid > 0 {
		st.PID = int(pid)
	}
	if n, err := strconv.ParseUint(f[2], 10, 16); err == nil {
		code := int(n)
		st.LastExit = &code
	}
	return st
}

// Logs reads the end of the log file.
func (Manager) Logs(ctx context.Context, h sdk.Host, s sdk.Spec, lines int) ([]byte, error) {
	r, err := h.Run(ctx, sdk.Command{Argv: []string{"tail", "-n", strconv.Itoa(lines), s.LogFile}, Limit: sdk.MaxRead})
	if err != nil {
		return nil, err
	}
	if r.Exit != 0 {
		return nil, fmt.Errorf("cannot read the log: %s", strings.TrimSpace(string(r.Stderr)))
	}
	return r.Stdout, nil
}

// Linger is not something this manager has.
func (Manager) Linger(context.Context, sdk.Host, sdk.Spec, bool) (sdk.Linger, error) {
	return sdk.Linger{Enabled: true}, nil
}
