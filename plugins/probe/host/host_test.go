package host

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/internal/world"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
	"fleet.example/fleet/plugins/service/plain"
)

func TestConforms(t *testing.T) { // R30
	f, err := localhost.Gather()
	if err != nil {
		t.Fatal(err)
	}
	f.DataDir = t.TempDir()
	env := conformance.ProbeEnv{Description: Describe("1"), Host: &localhost.Host{F: f}}
	for _, c := range conformance.Probe(context.Background(), conformance.Local(Probe{}), env) {
		t.Run(c.Name, func(t *testing.T) { c.Report(t) })
	}
}

// machine answers from fields.
type machine struct {
	facts sdk.Facts
	fs    sdk.FSStat
	files map[string]string
	err   error // of everything but facts
}

func healthy() *machine {
	return &machine{
		facts: sdk.Facts{OS: "linux", Init: "systemd", User: "dana", DataDir: "/d", Scope: sdk.ScopeUser, ServiceManager: "systemd"},
		fs:    sdk.FSStat{BytesTotal: 1 << 40, BytesFree: 1 << 39, FilesTotal: 1 << 20, FilesFree: 1 << 19},
		files: map[string]string{
			"/proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable:    4000000 kB\n", "/var/lib/systemd/linger/dana": "",
			"-l": "# mine\n@reboot /bin/sh '/d/service/fleet-agent.sh' start # fleet:1234\n", // the crontab
		},
	}
}

func (m *machine) Facts(context.Context) (sdk.Facts, error) { return m.facts, nil }

func (m *machine) Statfs(context.Context, string) (sdk.FSStat, error) { return m.fs, m.err }

func (m *machine) Run(_ context.Context, c sdk.Command) (sdk.Result, error) {
	out, ok := m.files[c.Argv[len(c.Argv)-1]]
	if !ok {
		return sdk.Result{Exit: 1}, m.err
	}
	return sdk.Result{Stdout: []byte(out)}, m.err
}

func (m *machine) ReadFile(_ context.Context, p string, _ int) ([]byte, bool, error) {
	s, ok := m.files[p]
	if !ok {
		return nil, false, errors.Join(m.err, fs.ErrNotExist)
	}
	return []byte(s), false, m.err
}

func (m *machine) Stat(_ context.Context, p string) (sdk.FileInfo, error) {
	if _, ok := m.files[p]; !ok {
		return sdk.FileInfo{}, fs.ErrNotExist
	}
	return sdk.FileInfo{}, m.err
}

func (*machine) Progress(context.Context, string) {}

func TestEachTroubleIsItsOwnFinding(t *testing.T) { // R30
	offset := func(d time.Duration) func(*machine) {
		return func(m *machine) { m.facts.ClockOffset = &d }
	}
	for name, v := range map[string]struct {
		change   func(*machine)
		code     string
		severity sdk.Severity
	}{
		"healthy":           {func(*machine) {}, "", ""},
		"no linger":         {func(m *machine) { delete(m.files, "/var/lib/systemd/linger/dana") }, LingerDisabled, "block"},
		"system scope":      {func(m *machine) { m.facts.Scope = sdk.ScopeSystem; delete(m.files, "/var/lib/systemd/linger/dana") }, "", ""},
		"nothing installed": {func(m *machine) { m.facts.Scope = ""; delete(m.files, "/var/lib/systemd/linger/dana") }, "", ""},
		"launchd user job":  {func(m *machine) { m.facts.ServiceManager = "launchd" }, LoginBoundService, "block"},
		"plain":             {func(m *machine) { m.facts.ServiceManager = "plain"; delete(m.files, "/var/lib/systemd/linger/dana") }, "", ""},
		"plain, killed": {func(m *machine) {
			m.facts.ServiceManager = "plain"
			delete(m.files, "/var/lib/systemd/linger/dana")
			m.files["/etc/systemd/logind.conf"] = "[Login]\nKillUserProcesses=yes\n"
		}, LoginBoundService, "block"},
		"plain, no crontab": {func(m *machine) { m.facts.ServiceManager = "plain"; delete(m.files, "-l") }, NotAtBoot, "warn"},
		"plain, another's line": {func(m *machine) {
			m.facts.ServiceManager, m.facts.DataDir = "plain", "/other"
		}, NotAtBoot, "warn"},
		"plain, comment": {func(m *machine) {
			m.facts.ServiceManager = "plain"
			delete(m.files, "/var/lib/systemd/linger/dana")
			m.files["/etc/systemd/logind.conf"] = "#KillUserProcesses=yes\n"
		}, "", ""},
		"plain, lingering": {func(m *machine) {
			m.facts.ServiceManager = "plain"
			m.files["/etc/systemd/logind.conf"] = "KillUserProcesses=yes\n"
		}, "", ""},
		"disk full":          {func(m *machine) { m.fs.BytesFree = 0 }, DiskFloor, "block"},
		"disk low":           {func(m *machine) { m.fs.BytesFree = 500 << 20 }, DiskFloor, "warn"},
		"disk at the floor":  {func(m *machine) { m.fs.BytesFree = diskBlock }, DiskFloor, "warn"},
		"read-only":          {func(m *machine) { m.fs.ReadOnly = true }, DiskFloor, "block"},
		"no inodes":          {func(m *machine) { m.fs.FilesFree = 3 }, InodeFloor, "block"},
		"few inodes":         {func(m *machine) { m.fs.FilesFree = 5000 }, InodeFloor, "warn"},
		"no inode limit":     {func(m *machine) { m.fs.FilesTotal, m.fs.FilesFree = 0, 0 }, "", ""},
		"no memory":          {func(m *machine) { m.files["/proc/meminfo"] = "MemAvailable: 1000 kB\n" }, MemoryFloor, "block"},
		"clock ahead":        {offset(2 * time.Minute), ClockSkew, "block"},
		"clock behind":       {offset(-24 * time.Hour), ClockSkew, "block"},
		"clock a little off": {offset(20 * time.Second), ClockSkew, "warn"},
		"clock fine":         {offset(-2 * time.Second), "", ""},
		"clock absurd":       {offset(math.MinInt64), ClockSkew, "block"},
		"credential":         {func(m *machine) { m.facts.CredentialWriteError = "no space\nleft" }, CredentialUnwritable, "block"},
	} {
		m := healthy()
		v.change(m)
		found, err := Probe{}.Probe(context.Background(), m)
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case v.code == "" && len(found) != 0:
			t.Errorf("%s: %+v", name, found)
		case v.code != "" && (len(found) != 1 || found[0].Code != v.code || found[0].Severity != v.severity || found[0].Remedy == "" || found[0].Detail == ""):
			t.Errorf("%s: %+v, want %s %s", name, found, v.code, v.severity)
		}
	}
}

// TestItFindsTheLineThatThePlainManagerWrites holds two plugins together that
// know nothing of each other.
func TestItFindsTheLineThatThePlainManagerWrites(t *testing.T) { // R30
	w := world.New(t, "it's here")
	w.Bin("crontab", "t=$(dirname \"$0\")/../state/tab\ncase $1 in -l) cat \"$t\" || { echo no crontab for dana >&2; exit 1; } ;; *) cat >\"$t\" ;; esac\n")
	w.Host.F.Scope, w.Host.F.ServiceManager = sdk.ScopeUser, "plain"
	codes := func() string {
		found, err := Probe{}.Probe(t.Context(), w.Host)
		if err != nil {
			t.Fatal(err)
		}
		var out string
		for _, f := range found {
			out += f.Code + " "
		}
		return out
	}
	if got := codes(); !strings.Contains(got, NotAtBoot) {
		t.Errorf("before: %q", got)
	}
	if err := (plain.Manager{}).Enable(t.Context(), w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	if got := codes(); strings.Contains(got, NotAtBoot) {
		t.Errorf("after: %q", got)
	}
}

func TestDarwinMemory(t *testing.T) {
	m := healthy()
	m.facts.OS, m.facts.Scope = "darwin", ""
	m.files = map[string]string{"kern.memorystatus_level": "1\n", "hw.memsize": "1073741824\n"}
	found, err := Probe{}.Probe(context.Background(), m)
	if err != nil || len(found) != 1 || found[0].Code != MemoryFloor {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestWhatCannotBeAskedIsNotFine(t *testing.T) { // R15
	for name, spoil := range map[string]func(*machine){
		"unreachable":     func(m *machine) { m.err = sdk.ErrUnreachable },
		"no meminfo":      func(m *machine) { delete(m.files, "/proc/meminfo") },
		"garbled meminfo": func(m *machine) { m.files["/proc/meminfo"] = "MemAvailable: lots\n" },
		"no data dir":     func(m *machine) { m.facts.DataDir = "" },
		"account unknown": func(m *machine) { m.facts.User = "" },
	} {
		m := healthy()
		spoil(m)
		if found, err := (Probe{}).Probe(context.Background(), m); err == nil {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
