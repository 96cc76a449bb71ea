// Package host is fleet-probe-host: what every machine is asked before it
// accepts work. It looks at lingering, at what the service is bound to, at
// disk, inodes and memory, at the clock, and at whether the credential could be
// stored.
//
// It looks through the SDK's Host alone and changes nothing. A question that
// cannot be answered fails the whole probe: what is not known is not "fine".
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// The codes.
const (
	LingerDisabled       = "linger_disabled"
	LoginBoundService    = "login_bound_service"
	NotAtBoot            = "not_at_boot"
	DiskFloor            = "disk_floor"
	MemoryFloor          = "memory_floor"
	InodeFloor           = "inode_floor"
	ClockSkew            = "clock_skew"
	CredentialUnwritable = "credential_unwritable"
)

// Floors, below which a machine accepts no work, and the marks below which
// somebody should know.
const (
	diskBlock   = 256 << 20
	diskWarn    = 1 << 30
	memoryBlock = 64 << 20
	memoryWarn  = 256 << 20
	inodeBlock  = 1000
	inodeWarn   = 10000

	skewBlock = 60 * time.Second
	skewWarn  = 10 * time.Second
)

// Describe says what the plugin is.
func Describe(version string) sdk.Description {
	return sdk.Description{
		Name: "host", Version: version, Targets: []string{"linux", "darwin"},
		Summary:  "disk, memory, clock, lingering and the credential's file",
		Commands: [][]string{{"sysctl", "-n", "kern.memorystatus_level"}, {"sysctl", "-n", "hw.memsize"}, {"crontab", "-l"}},
	}
}

// Probe is the plugin. Its zero value is ready.
type Probe struct{}

// Codes lists what it may find.
func (Probe) Codes() []string {
	return []string{LingerDisabled, LoginBoundService, NotAtBoot, DiskFloor, MemoryFloor, InodeFloor, ClockSkew, CredentialUnwritable}
}

// Probe looks at everything.
func (Probe) Probe(ctx context.Context, h sdk.Host) ([]sdk.Finding, error) {
	f, err := h.Facts(ctx)
	if err != nil {
		return nil, err
	}
	if f.DataDir == "" {
		return nil, errors.New("the data directory is not known")
	}
	found := []sdk.Finding{}
	for _, look := range []func(context.Context, sdk.Host, sdk.Facts) ([]sdk.Finding, error){
		login, disk, memory, clock, credential,
	} {
		fs, err := look(ctx, h, f)
		if err != nil {
			return nil, err
		}
		found = append(found, fs...)
	}
	return found, nil
}

// login asks whether the service ends when the account's last login does.
func login(ctx context.Context, h sdk.Host, f sdk.Facts) ([]sdk.Finding, error) {
	if f.Scope != sdk.ScopeUser {
		return nil, nil // a system service, or nothing is installed yet
	}
	switch f.ServiceManager {
	case "systemd":
		on, err := lingers(ctx, h, f.User)
		if err != nil || on {
			return nil, err
		}
		return []sdk.Finding{{
			Code: LingerDisabled, Severity: sdk.SeverityBlock,
			Detail: "the account's services and sessions end with its last login and do not start at boot",
			Remedy: "sudo loginctl enable-linger " + f.User,
		}}, nil
	case "launchd":
		return []sdk.Finding{{
			Code: LoginBoundService, Severity: sdk.SeverityBlock,
			Detail: "a launchd job of the account's own ends with its last login and does not start at boot",
			Remedy: "fleet install --scope system",
		}}, nil
	case "plain":
		killed, err := killedAtLogout(ctx, h, f)
		if err != nil {
			return nil, err
		}
		lost, err := lostAtReboot(ctx, h, f)
		return append(killed, lost...), err
	}
	return nil, nil
}

// lostAtReboot asks whether the plain manager's line stands in the crontab: an
// @reboot line that runs a script of this data directory.
func lostAtReboot(ctx context.Context, h sdk.Host, f sdk.Facts) ([]sdk.Finding, error) {
	r, err := h.Run(ctx, sdk.Command{Argv: []string{"crontab", "-l"}, Limit: sdk.MaxRead})
	why := "there is no crontab"
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		ours := strings.ReplaceAll(path.Join(f.DataDir, "service"), "'", `'\''`) + "/"
		for line := range strings.Lines(string(r.Stdout)) {
			if strings.HasPrefix(line, "@reboot ") && strings.Contains(line, ours) {
				return nil, nil
			}
		}
		if why = "no line of the crontab starts it"; r.Exit != 0 {
			why = "crontab -l says: " + oneLine(string(r.Stderr))
		}
	}
	return []sdk.Finding{{
		Code: NotAtBoot, Severity: sdk.SeverityWarn,
		Detail: "the agent does not come back after a reboot: " + why,
		Remedy: "give the account a working crontab and a cron daemon, then fleet install again",
	}}, nil
}

func lingers(ctx context.Context, h sdk.Host, user string) (bool, error) {
	if user == "" || strings.Contains(user, "/") {
		return false, fmt.Errorf("account name %q", user)
	}
	_, err := h.Stat(ctx, "/var/lib/systemd/linger/"+user)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// killedAtLogout asks whether logind ends what a login leaves behind. Lingering
// exempts an account.
func killedAtLogout(ctx context.Context, h sdk.Host, f sdk.Facts) ([]sdk.Finding, error) {
	if f.Init != "systemd" {
		return nil, nil
	}
	kills := false
	for _, file := range []string{"/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"} {
		b, _, err := h.ReadFile(ctx, file, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "KillUserProcesses="); ok {
				v = strings.ToLower(strings.TrimSpace(v))
				kills = v == "yes" || v == "true" || v == "1" || v == "on"
			}
		}
	}
	if !kills {
		return nil, nil
	}
	on, err := lingers(ctx, h, f.User)
	if err != nil || on {
		return nil, err
	}
	return []sdk.Finding{{
		Code: LoginBoundService, Severity: sdk.SeverityBlock,
		Detail: "logind ends the account's processes at its last logout (KillUserProcesses=yes)",
		Remedy: "sudo loginctl enable-linger " + f.User,
	}}, nil
}

func disk(ctx context.Context, h sdk.Host, f sdk.Facts) (found []sdk.Finding, err error) {
	st, err := h.Statfs(ctx, f.DataDir)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for free space: %w", err)
	}
	where := path.Clean(f.DataDir)
	if st.ReadOnly {
		return []sdk.Finding{{
			Code: DiskFloor, Severity: sdk.SeverityBlock, Detail: "the file system of " + where + " is mounted read-only",
			Remedy: "remount it writable, after looking for the disk errors that made it so",
		}}, nil
	}
	if s := below(st.BytesFree, diskBlock, diskWarn); s != "" {
		found = append(found, sdk.Finding{
			Code: DiskFloor, Severity: s,
			Detail: fmt.Sprintf("%s left for %s; work needs %s", size(st.BytesFree), where, size(diskBlock)),
			Remedy: "free space on the file system of " + where,
		})
	}
	if st.FilesTotal > 0 {
		if s := below(st.FilesFree, inodeBlock, inodeWarn); s != "" {
			found = append(found, sdk.Finding{
				Code: InodeFloor, Severity: s,
				Detail: fmt.Sprintf("%d inodes left for %s; work needs %d", st.FilesFree, where, inodeBlock),
				Remedy: "remove files on the file system of " + where,
			})
		}
	}
	return found, nil
}

func memory(ctx context.Context, h sdk.Host, f sdk.Facts) ([]sdk.Finding, error) {
	free, err := available(ctx, h, f)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for free memory: %w", err)
	}
	s := below(free, memoryBlock, memoryWarn)
	if s == "" {
		return nil, nil
	}
	return []sdk.Finding{{
		Code: MemoryFloor, Severity: s,
		Detail: fmt.Sprintf("%s of memory available; work needs %s", size(free), size(memoryBlock)),
		Remedy: "end what uses the memory, or give the machine more",
	}}, nil
}

// available is what a program can get without swapping, in bytes.
func available(ctx context.Context, h sdk.Host, f sdk.Facts) (uint64, error) {
	if f.OS == "darwin" {
		percent, err := number(ctx, h, "kern.memorystatus_level")
		if err != nil {
			return 0, err
		}
		total, err := number(ctx, h, "hw.memsize")
		return total / 100 * percent, err
	}
	b, _, err := h.ReadFile(ctx, "/proc/meminfo", 0)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "MemAvailable:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 53)
		return kib * 1024, err
	}
	return 0, errors.New("no MemAvailable in /proc/meminfo")
}

func number(ctx context.Context, h sdk.Host, name string) (uint64, error) {
	r, err := h.Run(ctx, sdk.Command{Argv: []string{"sysctl", "-n", name}})
	if err != nil {
		return 0, err
	}
	if r.Exit != 0 {
		return 0, fmt.Errorf("sysctl %s: exit %d", name, r.Exit)
	}
	return strconv.ParseUint(strings.TrimSpace(string(r.Stdout)), 10, 64)
}

func clock(_ context.Context, _ sdk.Host, f sdk.Facts) ([]sdk.Finding, error) {
	if f.ClockOffset == nil {
		return nil, nil // nobody compared yet, and nothing else depends on it
	}
	off := *f.ClockOffset
	s := sdk.Severity("")
	switch d := max(off, -off); {
	case d >= skewBlock || d < 0: // the most negative duration has no positive
		s = sdk.SeverityBlock
	case d >= skewWarn:
		s = sdk.SeverityWarn
	default:
		return nil, nil
	}
	way := "ahead of"
	if off < 0 {
		way = "behind"
	}
	return []sdk.Finding{{
		Code: ClockSkew, Severity: s,
		Detail: fmt.Sprintf("the clock is %s %s the plane's", strings.TrimPrefix(off.Round(time.Second).String(), "-"), way),
		Remedy: "turn on time synchronisation: sudo timedatectl set-ntp true",
	}}, nil
}

func credential(_ context.Context, _ sdk.Host, f sdk.Facts) ([]sdk.Finding, error) {
	if f.CredentialWriteError == "" {
		return nil, nil
	}
	return []sdk.Finding{{
		Code: CredentialUnwritable, Severity: sdk.SeverityBlock,
		Detail: "the last attempt to store a credential failed: " + oneLine(f.CredentialWriteError),
		Remedy: "make " + path.Clean(f.DataDir) + " writable for " + f.User + " and see that there is space left",
	}}, nil
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}

func below(have, block, warn uint64) sdk.Severity {
	switch {
	case have < block:
		return sdk.SeverityBlock
	case have < warn:
		return sdk.SeverityWarn
	}
	return ""
}

func size(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
