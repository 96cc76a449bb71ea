// Package systemd is the service manager plugin for hosts that run systemd, in
// the user and in the system scope.
//
// What the unit does about sessions and the latch is decided by a few
// settings, each of which was seen to be necessary: KillMode=process and
// Delegate=yes let sessions outlive their agent, OOMPolicy=continue keeps the
// kernel's choice of one session from taking the agent with it, Restart=always
// with ConditionPathExists=! keeps the agent up whatever happens to it and down
// once somebody stopped it. A start is judged by Status alone: systemctl start
// of a unit whose condition fails exits 0, and one that is slow exits 1.
//
// The package must not know SSH or where the agent's directories come from.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// Describe says what the plugin is. Its read-only commands are those of
// Detect and Status.
func Describe(version string) sdk.Description {
	return sdk.Description{
		Name: "systemd", Version: version, Targets: []string{"linux"},
		Summary: "runs the agent as a systemd unit of the account or of the system",
		Commands: [][]string{
			{"systemctl", "--version"},
			{"systemctl", "is-system-running"},
			{"env", "XDG_RUNTIME_DIR=/run/user/*", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/*", "systemctl", "--user", "is-system-running"},
			{"systemctl", "show", "*", "*"},
			{"systemctl", "show", "*", "*", "*"},
			{"env", "XDG_RUNTIME_DIR=/run/user/*", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/*", "systemctl", "--user", "show", "*", "*"},
			{"env", "XDG_RUNTIME_DIR=/run/user/*", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/*", "systemctl", "--user", "show", "*", "*", "*"},
		},
	}
}

// Manager is the plugin. Its zero value is ready.
type Manager struct{}

// oldest is the oldest systemd whose units do what the package says: StartLimit
// settings in [Unit] came with 230, OOMPolicy with 243.
const oldest = 243

// Detect looks for systemd as process 1 and for a user manager that answers.
func (Manager) Detect(ctx context.Context, h sdk.Host) (sdk.Detection, error) {
	f, err := h.Facts(ctx)
	if err != nil {
		return sdk.Detection{}, err
	}
	if f.OS != "linux" || f.Init != "systemd" {
		return sdk.Detection{Reason: fmt.Sprintf("process 1 is %q, not systemd", f.Init)}, nil
	}
	d := sdk.Detection{SparesSessions: true, LatchAware: true, Logs: true, Linger: true}
	r, err := h.Run(ctx, sdk.Command{Argv: []string{"systemctl", "--version"}})
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.Exit == 127 {
		return sdk.Detection{Reason: "there is no systemctl"}, nil
	}
	if err != nil {
		return sdk.Detection{}, err
	}
	v := version(string(r.Stdout))
	d.Version = strconv.Itoa(v)
	if v < oldest {
		return sdk.Detection{Version: d.Version, Reason: fmt.Sprintf("systemd %d is older than %d", v, oldest)}, nil
	}
	if f.Privilege == sdk.PrivilegeRoot || f.Privilege == sdk.PrivilegeSudo {
		d.Scopes = append(d.Scopes, sdk.ScopeSystem)
	}
	user, err := systemctl(ctx, h, f, sdk.ScopeUser, "is-system-running")
	if err != nil {
		return sdk.Detection{}, err
	}
	// The word is the answer: "degraded" exits 1 and is fine.
	switch word := strings.TrimSpace(string(user.Stdout)); word {
	case "running", "degraded", "starting", "initializing", "maintenance":
		d.Scopes = append(d.Scopes, sdk.ScopeUser)
		d.Reason = "systemd " + d.Version + ", user manager " + word
	default:
		d.Reason = "systemd " + d.Version + ", no user manager answers" + tailOf(user)
	}
	if len(d.Scopes) > 0 {
		d.Score = 100
	}
	return d, nil
}

func version(out string) int {
	fields := strings.Fields(out)
	if len(fields) < 2 || fields[0] != "systemd" {
		return 0
	}
	digits := fields[1]
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = digits[:i] // 254~rc1, 252.39-1~deb12u2
	}
	n, _ := strconv.Atoi(digits) // 0 counts as too old
	return n
}

// userEnv are the variables without which systemctl --user finds no manager. A
// session that sshd made has them only where pam_systemd is configured.
func userEnv(uid uint32) []string {
	dir := "/run/user/" + strconv.FormatUint(uint64(uid), 10)
	return []string{"env", "XDG_RUNTIME_DIR=" + dir, "DBUS_SESSION_BUS_ADDRESS=unix:path=" + dir + "/bus"}
}

func systemctl(ctx context.Context, h sdk.Host, f sdk.Facts, scope sdk.Scope, args ...string) (sdk.Result, error) {
	if scope == sdk.ScopeUser {
		return h.Run(ctx, sdk.Command{Argv: append(append(userEnv(f.UID), "systemctl", "--user"), args...)})
	}
	return h.Run(ctx, sdk.Command{Argv: append([]string{"systemctl"}, args...)})
}

// change is systemctl with the rights to change something.
func change(ctx context.Context, h sdk.Host, s sdk.Spec, args ...string) error {
	f, err := h.Facts(ctx)
	if err != nil {
		return err
	}
	var r sdk.Result
	argv := append([]string{"systemctl"}, args...)
	if s.Scope == sdk.ScopeUser {
		r, err = systemctl(ctx, h, f, s.Scope, args...)
	} else {
		r, err = h.Run(ctx, sdk.Command{Argv: argv, AsRoot: true})
	}
	if err != nil {
		return err
	}
	if r.Exit != 0 {
		return fmt.Errorf("systemctl %s: exit %d%s", strings.Join(args, " "), r.Exit, tailOf(r))
	}
	return nil
}

// tailOf is the last line of what a program complained about.
func tailOf(r sdk.Result) string {
	out := strings.TrimSpace(string(r.Stderr))
	if out == "" {
		return ""
	}
	lines := strings.Split(out, "\n")
	return ": " + strings.TrimSpace(lines[len(lines)-1])
}

// Reload makes systemd read the unit files.
func (Manager) Reload(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	return change(ctx, h, s, "daemon-reload")
}

// Enable makes the unit start with the machine, or with the account's manager.
// Reload came before, so that nothing is read again.
func (Manager) Enable(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	return change(ctx, h, s, "enable", "--no-reload", UnitName(s))
}

// Start starts the unit, a failed one too, since the unit has no start limit.
func (Manager) Start(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	return change(ctx, h, s, "start", UnitName(s))
}

// Stop ends the main process only, by KillMode=process.
func (Manager) Stop(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	st, err := Manager{}.Status(ctx, h, s)
	if err == nil && st.State == sdk.StateAbsent {
		return nil
	}
	return change(ctx, h, s, "stop", UnitName(s))
}

// Restart restarts the unit.
func (Manager) Restart(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	return change(ctx, h, s, "restart", UnitName(s))
}

// Disable stops the unit and takes it out of the boot.
func (Manager) Disable(ctx context.Context, h sdk.Host, s sdk.Spec) error {
	st, err := Manager{}.Status(ctx, h, s)
	if err != nil {
		return err
	}
	if st.State == sdk.StateAbsent {
		return nil
	}
	return change(ctx, h, s, "disable", "--now", UnitName(s))
}

// Status asks systemd for the unit's properties.
func (Manager) Status(ctx context.Context, h sdk.Host, s sdk.Spec) (sdk.Status, error) {
	unknown := sdk.Status{State: sdk.StateUnknown}
	f, err := h.Facts(ctx)
	if err != nil {
		return unknown, err
	}
	const properties = "--property=LoadState,ActiveState,SubState,Result,MainPID,ExecMainStatus,ExecMainCode,StateChangeTimestamp,UnitFileState,ConditionResult"
	r, err := systemctl(ctx, h, f, s.Scope, "show", "--timestamp=unix", properties, UnitName(s))
	if err == nil && r.Exit != 0 {
		// An older systemctl knows no such form; then only the time is missing.
		r, err = systemctl(ctx, h, f, s.Scope, "show", properties, UnitName(s))
	}
	if err != nil {
		return unknown, err
	}
	if r.Exit != 0 {
		unknown.Detail = fmt.Sprintf("systemctl show: exit %d%s", r.Exit, tailOf(r))
		return unknown, nil
	}
	return parseStatus(string(r.Stdout)), nil
}

// maxTime is the first second of the year 10000, which no document can say.
const maxTime = 253402300800

// parseStatus reads what systemctl show prints. It runs on the machine, so what
// it prints is anything.
func parseStatus(out string) sdk.Status {
	p := map[string]string{}
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			p[k] = v
		}
	}
	st := sdk.Status{State: sdk.StateUnknown, Detail: strings.Trim(p["ActiveState"]+" ("+p["SubState"]+")", " ()")}
	if pid, err := strconv.ParseInt(p["MainPID"], 10, 32); err == nil && pid > 0 {
		st.PID = int(pid)
	}
	st.AtBoot = strings.HasPrefix(p["UnitFileState"], "enabled")
	if sec, err := strconv.ParseInt(strings.TrimPrefix(p["StateChangeTimestamp"], "@"), 10, 64); err == nil && sec > 0 && sec < maxTime {
		st.Since = time.Unix(sec, 0).UTC()
	}
	// ExecMainCode is the si_code of waitid: 1 exited, 2 killed, 3 dumped.
	if status, err := strconv.ParseUint(p["ExecMainStatus"], 10, 16); err == nil {
		n := int(status)
		switch p["ExecMainCode"] {
		case "1":
			st.LastExit = &n
		case "2", "3":
			n += 128
			st.LastExit = &n
		}
	}
	if p["ConditionResult"] == "no" && p["ActiveState"] == "inactive" {
		st.Detail += ", held by its condition"
	}
	switch p["LoadState"] {
	case "not-found", "masked":
		st.State, st.Detail = sdk.StateAbsent, p["LoadState"]
		return st
	}
	switch p["ActiveState"] {
	case "active", "reloading":
		st.State = sdk.StateRunning
	case "activating":
		st.State = sdk.StateStarting
	case "inactive", "deactivating":
		st.State = sdk.StateStopped
	case "failed":
		st.State = sdk.StateFailed
		st.Detail += ", " + p["Result"]
	}
	return st
}

// Logs reads the journal. An account that may not read it gets an error that
// says so; the agent's own log lies in its data directory all the same.
func (Manager) Logs(ctx context.Context, h sdk.Host, s sdk.Spec, lines int) ([]byte, error) {
	argv := []string{"journalctl", "--no-pager", "--quiet", "--output=short-iso", "--lines=" + strconv.Itoa(lines)}
	c := sdk.Command{Argv: append(argv, "--user-unit="+UnitName(s)), Limit: sdk.MaxRead}
	if s.Scope == sdk.ScopeSystem {
		f, err := h.Facts(ctx)
		if err != nil {
			return nil, err
		}
		c.Argv = append(argv, "--unit="+UnitName(s))
		c.AsRoot = f.Privilege == sdk.PrivilegeSudo
	}
	r, err := h.Run(ctx, c)
	if err != nil {
		return nil, err
	}
	if r.Exit != 0 {
		return nil, fmt.Errorf("journalctl: exit %d%s", r.Exit, tailOf(r))
	}
	return r.Stdout, nil
}

// Linger reads and sets lingering. Without a session of its own loginctl needs
// the user's name.
func (Manager) Linger(ctx context.Context, h sdk.Host, s sdk.Spec, enable bool) (sdk.Linger, error) {
	if s.Scope == sdk.ScopeSystem {
		return sdk.Linger{Enabled: true}, nil
	}
	on, err := lingers(ctx, h, s.User)
	if err != nil || on || !enable {
		return sdk.Linger{Enabled: on}, err
	}
	f, err := h.Facts(ctx)
	if err != nil {
		return sdk.Linger{}, err
	}
	argv := []string{"loginctl", "enable-linger", s.User}
	r, err := h.Run(ctx, sdk.Command{Argv: argv})
	if err == nil && r.Exit != 0 && f.Privilege == sdk.PrivilegeSudo {
		r, err = h.Run(ctx, sdk.Command{Argv: argv, AsRoot: true})
	}
	if err != nil {
		return sdk.Linger{}, err
	}
	if on, err = lingers(ctx, h, s.User); err != nil || on {
		return sdk.Linger{Enabled: on}, err
	}
	return sdk.Linger{Remedy: "sudo loginctl enable-linger " + s.User}, nil
}

// lingers looks for the file that logind keeps, which also answers where logind
// itself does not.
func lingers(ctx context.Context, h sdk.Host, user string) (bool, error) {
	if err := checkUser(user); err != nil {
		return false, err
	}
	_, err := h.Stat(ctx, "/var/lib/systemd/linger/"+user)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, err
}
