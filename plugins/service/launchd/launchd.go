// Package launchd is the service manager plugin for macOS: a LaunchAgent of the
// account, or a LaunchDaemon that runs as it.
//
// It is checked by rendering its property lists and by playing launchctl's part
// in tests. It has not run on Apple hardware yet; Detect's reason says so to
// whoever installs with it.
//
// launchd has no condition like systemd's, so it does not see the latch: an
// agent that somebody stopped is started again at the next login or boot, finds
// the latch, says nothing to the plane and stays silent. KeepAlive asks for a
// restart after a failure alone, so that exit 0 means "do not respawn".
// AbandonProcessGroup leaves sessions alone when the agent ends.
//
// The package must not know SSH or where the agent's directories come from.
package launchd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"howett.net/plist"

	"fleet.example/fleet/plugins/sdk"
)

// Describe says what the plugin is.
func Describe(version string) sdk.Description {
	return sdk.Description{
		Name: "launchd", Version: version, Targets: []string{"darwin"},
		Summary:  "runs the agent as a launchd job (untried on hardware)",
		Commands: [][]string{{"launchctl", "version"}, {"launchctl", "print", "*"}},
	}
}

// Manager is the plugin. Its zero value is ready.
type Manager struct{}

// job is a property list as launchd.plist(5) describes it.
type job struct {
	Label                  string
	ProgramArguments       []string
	UserName               string `plist:"UserName,omitempty"`
	RunAtLoad              bool
	KeepAlive              keepAlive
	ThrottleInterval       int
	AbandonProcessGroup    bool
	ProcessType            string
	ExitTimeOut            int
	StandardOutPath        string   `plist:"StandardOutPath,omitempty"`
	StandardErrorPath      string   `plist:"StandardErrorPath,omitempty"`
	LimitLoadToSessionType []string `plist:"LimitLoadToSessionType,omitempty"`
}

type keepAlive struct {
	SuccessfulExit bool
}

// Label is the name that launchd knows a spec by.
func Label(s sdk.Spec) string {
	if s.Scope == sdk.ScopeSystem {
		return "example.fleet." + s.Name + "." + s.User
	}
	return "example.fleet." + s.Name
}

func plistPath(home string, s sdk.Spec) string {
	if s.Scope == sdk.ScopeSystem {
		return "/Library/LaunchDaemons/" + Label(s) + ".plist"
	}
	return path.Join(home, "Library/LaunchAgents", Label(s)+".plist")
}

// Detect looks for launchd as process 1.
func (Manager) Detect(ctx context.Context, h sdk.Host) (sdk.Detection, error) {
	f, err := h.Facts(ctx)
	if err != nil {
		return sdk.Detection{}, err
	}
	if f.OS != "darwin" {
		return sdk.Detection{Reason: "the system is " + f.OS}, nil
	}
	r, err := h.Run(ctx, sdk.Command{Argv: []string{"launchctl", "version"}})
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.Exit != 0 {
		return sdk.Detection{Reason: "launchctl does not answer"}, nil
	}
	if err != nil {
		return sdk.Detection{}, err
	}
	v, _, _ := strings.Cut(strings.TrimSpace(string(r.Stdout)), "\n")
	d := sdk.Detection{
		Score: 100, Reason: "launchd; this plugin was not tried on hardware yet", SparesSessions: true,
		Logs: true, Version: v, Scopes: []sdk.Scope{sdk.ScopeUser},
	}
	if f.Privilege == sdk.PrivilegeRoot || f.Privilege == sdk.PrivilegeSudo {
		d.Scopes = append(d.Scopes, sdk.ScopeSystem)
	}
	return d, nil
}

// Render writes the property list.
func (Manager) Render(_ context.Context, f sdk.Facts, s sdk.Spec) (sdk.Rendered, error) {
	if err := check(s); err != nil {
		return sdk.Rendered{}, err
	}
	j := job{
		Label: Label(s), ProgramArguments: s.Argv, RunAtLoad: true, KeepAlive: keepAlive{SuccessfulExit: false},
		ThrottleInterval: 10, AbandonProcessGroup: true, ProcessType: "Background",
		ExitTimeOut: max(1, int(s.StopTimeout/time.Second)), StandardOutPath: s.LogFile, StandardErrorPath: s.LogFile,
	}
	out := sdk.Rendered{Unit: j.Label, Caveats: []string{
		"launchd does not see the latch: a stopped agent comes up after a login or boot and stays silent.",
		"This service manager was checked by rendering only, not on hardware.",
	}}
	file := sdk.File{Mode: 0o644, Owner: s.User}
	if s.Scope == sdk.ScopeSystem {
		j.UserName, file.Owner = s.User, "root"
	} else {
		if !path.IsAbs(f.Home) {
			return sdk.Rendered{}, fmt.Errorf("%w: the account has no home directory", sdk.ErrInvalid)
		}
		target := domains(f, s)[1] + "/" + j.Label
		out.StartArgv, out.RestartArgv = []string{"launchctl", "kickstart", target}, []string{"launchctl", "kickstart", "-k", target}
		j.LimitLoadToSessionType = []string{"Aqua", "Background"}
		out.Caveats = append(out.Caveats, "A job of the account's own ends with its last login.")
	}
	b, err := plist.MarshalIndent(j, plist.XMLFormat, "\t")
	if err != nil {
		return sdk.Rendered{}, err
	}
	file.Path, file.Content = plistPath(f.Home, s), append(b, '\n')
	out.Files = []sdk.File{file}
	return out, nil
}

func check(s sdk.Spec) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w spec: "+format, append([]any{sdk.ErrInvalid}, args...)...)
	}
	if s.Scope != sdk.ScopeUser && s.Scope != sdk.ScopeSystem {
		return bad("scope %q", s.Scope)
	}
	for _, n := range []string{s.Name, s.User} {
		if n == "" || len(n) > 63 || strings.HasPrefix(n, ".") || strings.HasPrefix(n, "-") || strings.ContainsFunc(n, func(c rune) bool {
			return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c))
		}) {
			return bad("name %q", n)
		}
	}
	if len(s.Argv) == 0 || !path.IsAbs(s.Argv[0]) {
		return bad("the program is not an absolute path")
	}
	for _, v := range append([]string{s.LogFile}, s.Argv...) {
		// XML 1.0 has no way to write control characters and the two non-characters.
		if !utf8.ValidString(v) || strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 || r == 0x7f || r == 0xfffe || r == 0xffff || r == utf8.RuneError }) {
			return bad("%q cannot stand in a property list", v)
		}
	}
	return nil
}

// domains are where a job may live, the preferred one first. gui is there while
// somebody is logged in at the screen, user as soon as the account has any session.
func domains(f sdk.Facts, s sdk.Spec) []string {
	if s.Scope == sdk.ScopeSystem {
		return []string{"system"}
	}
	uid := strconv.FormatUint(uint64(f.UID), 10)
	return []string{"gui/" + uid, "user/" + uid}
}

func launchctl(ctx context.Context, h sdk.Host, s sdk.Spec, args ...string) (sdk.Result, error) {
	return h.Run(ctx, sdk.Command{Argv: append([]string{"launchctl"}, args...), AsRoot: s.Scope == sdk.ScopeSystem})
}

// loaded finds the domain that knows the job.
func loaded(ctx context.Context, h sdk.Host, f sdk.Facts, s sdk.Spec) (domain, out string, err error) {
	for _, d := range domains(f, s) {
		r, err := h.Run(ctx, sdk.Command{Argv: []string{"launchctl", "print", d + "/" + Label(s)}})
		if err != nil {
			return "", "", err
		}
		if r.Exit == 0 {
			return d, string(r.Stdout), nil
		}
	}
	return "", "", nil
}

// Reload takes the job out and in again if it is there: launchd reads a list
// only when it loads it.
func (m Manager) Reload(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	f, err := h.Facts(ctx)
	if err != nil {
		return err
	}
	d, _, err := loaded(ctx, h, f, s)
	if err != nil || d == "" {
		return err
	}
	if err := m.bootout(ctx, h, s, d); err != nil {
		return err
	}
	if _, err := h.Stat(ctx, plistPath(f.Home, s)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return m.bootstrap(ctx, h, f, s)
}

func (Manager) bootout(ctx context.Context, h sdk.Host, s sdk.Spec, domain string) error {
	r, err := launchctl(ctx, h, s, "bootout", domain+"/"+Label(s))
	if err != nil {
		return err
	}
	// 3: no such process; 36: being torn down.
	if r.Exit != 0 && r.Exit != 3 && r.Exit != 36 {
		return complaint("bootout", r)
	}
	return nil
}

func (Manager) bootstrap(ctx context.Context, h sdk.Host, f sdk.Facts, s sdk.Spec) error {
	var last error
	for _, d := range domains(f, s) {
		r, err := launchctl(ctx, h, s, "enable", d+"/"+Label(s))
		if err == nil {
			r, err = launchctl(ctx, h, s, "bootstrap", d, plistPath(f.Home, s))
		}
		if err != nil {
			return err
		}
		if r.Exit == 0 || r.Exit == 37 { // 37: already bootstrapped
			return nil
		}
		last = complaint("bootstrap "+d, r)
	}
	return last
}

func complaint(what string, r sdk.Result) error {
	return fmt.Errorf("launchctl %s: exit %d: %s", what, r.Exit, strings.TrimSpace(string(r.Stderr)))
}

// Enable loads the job, which starts it, and has it loaded at boot or login.
func (m Manager) Enable(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	f, err := h.Facts(ctx)
	if err != nil {
		return err
	}
	d, _, err := loaded(ctx, h, f, s)
	if err != nil || d != "" {
		return err
	}
	return m.bootstrap(ctx, h, f, s)
}

// Start loads the job if need be and starts it.
func (m Manager) Start(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	if err := m.Enable(ctx, h, s); err != nil {
		return err
	}
	return m.kick(ctx, h, s)
}

func (Manager) kick(ctx context.Context, h sdk.Host, s sdk.Spec, flags ...string) error {
	f, err := h.Facts(ctx)
	if err != nil {
		return err
	}
	d, _, err := loaded(ctx, h, f, s)
	if err != nil {
		return err
	}
	if d == "" {
		return fmt.Errorf("launchd does not know %s", Label(s))
	}
	r, err := launchctl(ctx, h, s, append(append([]string{"kickstart"}, flags...), d+"/"+Label(s))...)
	if err != nil {
		return err
	}
	if r.Exit != 0 {
		return complaint("kickstart", r)
	}
	return nil
}

// Stop unloads the job, since KeepAlive would bring a killed agent back. The
// list stays, so the next boot or login loads it again.
func (m Manager) Stop(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	f, err := h.Facts(ctx)
	if err != nil {
		return err
	}
	d, _, err := loaded(ctx, h, f, s)
	if err != nil || d == "" {
		return err
	}
	return m.bootout(ctx, h, s, d)
}

// Restart kills and starts the agent in place.
func (m Manager) Restart(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	if err := m.Enable(ctx, h, s); err != nil {
		return err
	}
	return m.kick(ctx, h, s, "-k")
}

// Disable unloads the job and keeps it from being loaded again.
func (m Manager) Disable(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	if err := m.Stop(ctx, h, s); err != nil {
		return err
	}
	f, err := h.Facts(ctx)
	if err != nil {
		return err
	}
	for _, d := range domains(f, s) {
		if _, err := launchctl(ctx, h, s, "disable", d+"/"+Label(s)); err != nil {
			return err
		}
	}
	return nil
}

// Status reads launchctl print, whose form Apple does not promise: what is not
// understood is unknown.
func (Manager) Status(ctx context.Context, h sdk.Host, s sdk.Spec) (sdk.Status, error) {
	st := sdk.Status{State: sdk.StateUnknown}
	f, err := h.Facts(ctx)
	if err != nil {
		return st, err
	}
	_, statErr := h.Stat(ctx, plistPath(f.Home, s))
	if statErr != nil && !errors.Is(statErr, fs.ErrNotExist) {
		return st, statErr
	}
	d, out, err := loaded(ctx, h, f, s)
	if err != nil {
		return st, err
	}
	if d == "" {
		st.State = sdk.StateStopped
		if statErr != nil {
			st.State = sdk.StateAbsent
		}
		st.AtBoot = statErr == nil
		return st, nil
	}
	st = parsePrint(out)
	st.AtBoot = statErr == nil
	return st, nil
}

func parsePrint(out string) sdk.Status {
	st := sdk.Status{State: sdk.StateUnknown}
	for line := range strings.Lines(out) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok {
			continue
		}
		switch k {
		case "state":
			if st.Detail != "" {
				continue // the job's own state comes first; its endpoints have theirs
			}
			st.Detail = v
			switch v {
			case "running":
				st.State = sdk.StateRunning
			case "spawn scheduled", "spawning":
				st.State = sdk.StateStarting
			case "not running", "waiting", "exited":
				st.State = sdk.StateStopped
			}
		case "pid":
			if pid, err := strconv.ParseInt(v, 10, 32); err == nil && pid > 0 {
				st.PID = int(pid)
			}
		case "last exit code":
			number, _, _ := strings.Cut(v, ":")
			if code, err := strconv.ParseInt(number, 10, 32); err == nil {
				n := int(code)
				st.LastExit = &n
			}
		}
	}
	if st.State == sdk.StateStopped && st.LastExit != nil && *st.LastExit != 0 {
		st.State = sdk.StateFailed
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

// Linger does not exist here: a job of the account's own is bound to its logins.
func (Manager) Linger(_ context.Context, _ sdk.Host, s sdk.Spec, enable bool) (sdk.Linger, error) {
	l := sdk.Linger{Enabled: s.Scope == sdk.ScopeSystem}
	if enable && !l.Enabled {
		l.Remedy = "install with --scope system"
	}
	return l, nil
}
