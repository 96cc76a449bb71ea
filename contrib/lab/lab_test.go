//go:build linux

package lab_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
)

// bound is a context for one step of a test.
func bound(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	lab.Need(t)
	l, err := lab.New(bound(t, time.Minute), t, lab.Options{Label: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func newHost(t *testing.T, l *lab.Lab, spec lab.HostSpec) *lab.Host {
	t.Helper()
	h, err := l.Host(bound(t, time.Minute), spec)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// ssh runs a command over plain ssh as the host's first account, with the host keys pinned.
func ssh(t *testing.T, l *lab.Lab, h *lab.Host, command string, options ...string) (string, error) {
	t.Helper()
	known := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(known, []byte(h.KnownHosts()), 0o600); err != nil {
		t.Fatal(err)
	}
	// ssh takes the first value of an option.
	args := append([]string{"-F", "none"}, options...)
	args = append(args, "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=10",
		"-o", "UserKnownHostsFile="+known, "-i", l.KeyPath(), h.Accounts()[0].Name+"@"+h.Addr(), command)
	cmd := exec.CommandContext(bound(t, 30*time.Second), "ssh", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = errors.Join(err, errors.New(stderr.String()))
	}
	return strings.TrimSpace(string(out)), err
}

func mustSSH(t *testing.T, l *lab.Lab, h *lab.Host, command string) string {
	t.Helper()
	out, err := ssh(t, l, h, command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

func mustExec(t *testing.T, h *lab.Host, account string, argv ...string) string {
	t.Helper()
	out, err := h.Exec(bound(t, 30*time.Second), account, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func eventually(t *testing.T, try func() error) {
	t.Helper()
	if err := lab.Poll(bound(t, 30*time.Second), try); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestHostIsARealMachine(t *testing.T) {
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "one"})
	if got := mustSSH(t, l, h, "hostname; id -un; pwd"); got != "one\nuser\n/home/user" {
		t.Errorf("got %q", got)
	}
	// Lingering is on, so the account's service manager is there with and without a session.
	if got := mustSSH(t, l, h, "systemd-run --user --wait --pipe -q echo from a unit"); got != "from a unit" {
		t.Errorf("over ssh: %q", got)
	}
	if got := mustExec(t, h, "user", "systemctl", "--user", "is-system-running"); got != "running" {
		t.Errorf("the account's service manager is %s", got)
	}
	if got := mustExec(t, h, "root", "systemctl", "--failed", "--no-legend"); got != "" {
		t.Errorf("failed units: %s", got)
	}
	if mine, err := os.ReadFile("/etc/machine-id"); err == nil {
		if mustExec(t, h, "root", "cat", "/etc/machine-id") == strings.TrimSpace(string(mine)) {
			t.Error("the host has this machine's machine-id")
		}
	}
	if got := mustExec(t, h, "root", "ls", "-A", "/home"); got != "user" {
		t.Errorf("the host sees homes of this machine: %q", got)
	}
}

func TestDiskOutlivesRebootPowerOffAndPowerCut(t *testing.T) {
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "one"})
	id := mustExec(t, h, "root", "cat", "/etc/machine-id")
	mustSSH(t, l, h, "mkdir -p ~/.config/systemd/user && echo kept >~/file && loginctl show-user user -p Linger")
	boot := func() string { return mustExec(t, h, "root", "cat", "/proc/1/stat") }
	check := func(what string, before string) {
		t.Helper()
		if got := mustSSH(t, l, h, "cat ~/file"); got != "kept" {
			t.Errorf("%s: the file says %q", what, got)
		}
		if got := mustExec(t, h, "root", "cat", "/etc/machine-id"); got != id {
			t.Errorf("%s: another machine-id", what)
		}
		if boot() == before {
			t.Errorf("%s: the host was not started anew", what)
		}
	}

	before := boot()
	began := time.Now()
	must(t, h.Reboot(bound(t, time.Minute)))
	t.Logf("reboot took %v", time.Since(began).Round(time.Millisecond))
	check("reboot", before)

	before = boot()
	began = time.Now()
	must(t, h.PowerOff(bound(t, time.Minute)))
	t.Logf("power off took %v", time.Since(began).Round(time.Millisecond))
	if h.PID() != 0 {
		t.Error("the host is off and has a PID 1")
	}
	if _, err := h.Exec(bound(t, time.Second), "root", "true"); err == nil {
		t.Error("a host that is off ran a command")
	}
	began = time.Now()
	must(t, h.Start(bound(t, time.Minute)))
	t.Logf("start took %v", time.Since(began).Round(time.Millisecond))
	check("power off", before)

	before = boot()
	mustSSH(t, l, h, "systemd-run --user -q --unit=keeps-running sleep 3600")
	must(t, h.PowerCut(bound(t, 10*time.Second)))
	if err := h.Start(bound(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	check("power cut", before)

	// A reboot that was asked for inside.
	before = boot()
	boots := h.Boots()
	_, _ = h.Exec(bound(t, 10*time.Second), "root", "systemctl", "reboot")
	must(t, h.ReadyAfter(bound(t, time.Minute), boots))
	check("reboot from inside", before)
}

func TestSuspendStopsTheHostAndResumeContinuesIt(t *testing.T) {
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "one"})
	must(t, h.Suspend())
	if out, err := ssh(t, l, h, "true", "-o", "ConnectTimeout=1"); err == nil {
		t.Errorf("a suspended host answered: %q", out)
	}
	must(t, h.Resume())
	mustSSH(t, l, h, "true")
}

func TestHomeCanBeFullReadOnlyNoexecOddlyNamed(t *testing.T) {
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "one", Accounts: []lab.Account{
		{Name: "odd", Home: "/srv/a home with spaces", HomeBytes: 1 << 20, NoExec: true, Shell: "/bin/sh"},
		{Name: "other", NoLinger: true},
	}})
	if got := mustSSH(t, l, h, `pwd; echo "$SHELL"`); got != "/srv/a home with spaces\n/bin/sh" {
		t.Errorf("got %q", got)
	}
	if out, err := ssh(t, l, h, "cp /bin/true . && ./true"); err == nil {
		t.Errorf("a noexec home executed: %q", out)
	}
	must(t, h.FillHome("odd"))
	if _, err := ssh(t, l, h, "head -c 8192 /dev/zero >full"); err == nil || !strings.Contains(err.Error(), "No space left") {
		t.Errorf("a full home: %v", err)
	}
	must(t, h.FreeHome("odd"))
	mustSSH(t, l, h, "head -c 8192 /dev/zero >full")

	must(t, h.ReadOnlyHome(bound(t, 10*time.Second), "odd"))
	if _, err := ssh(t, l, h, "touch readonly"); err == nil || !strings.Contains(err.Error(), "Read-only") {
		t.Errorf("a read-only home: %v", err)
	}
	must(t, h.WritableHome(bound(t, 10*time.Second), "odd"))
	mustSSH(t, l, h, "touch writable")

	source := filepath.Join(t.TempDir(), "source")
	must(t, os.WriteFile(source, []byte("put"), 0o600))
	must(t, h.Put("other", source, "target", 0o640))
	if got := mustExec(t, h, "other", "sh", "-c", "stat -c '%U %a' target; cat target"); got != "other 640\nput" {
		t.Errorf("put: %q", got)
	}
	in, err := h.ExecInput(bound(t, 10*time.Second), "other", strings.NewReader("typed"), "cat")
	if err != nil || in != "typed" {
		t.Errorf("input: %q, %v", in, err)
	}
}

func TestServersOfOtherKinds(t *testing.T) {
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "strict", NoSFTP: true, SSHDConfig: "MaxSessions 1\nForceCommand echo forced\nPort 2222\n"})
	if got, err := ssh(t, l, h, "hostname", "-p", "2222", "-o", "StrictHostKeyChecking=no"); err != nil || got != "forced" {
		t.Errorf("ForceCommand: %q, %v", got, err)
	}
	if _, err := exec.LookPath("/usr/sbin/dropbear"); err != nil {
		t.Logf("no dropbear here: %v", err)
		return
	}
	d := newHost(t, l, lab.HostSpec{Name: "small", Dropbear: true})
	if got := mustSSH(t, l, d, "hostname"); got != "small" {
		t.Errorf("dropbear: %q", got)
	}
}

func TestSpecIsRefusedInPlainWords(t *testing.T) {
	l := newLab(t)
	for _, spec := range []lab.HostSpec{
		{}, {Name: "Upper"}, {Name: "a/b"}, {Name: "ok", Accounts: []lab.Account{{Name: "a:b"}}},
	} {
		if _, err := l.Host(bound(t, time.Second), spec); err == nil {
			t.Errorf("%+v was taken", spec)
		}
	}
}

// gone says whether a process is gone or waits to be reaped.
func gone(pid int) bool {
	data, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	after := string(data[bytes.LastIndexByte(data, ')')+1:])
	return strings.HasPrefix(strings.TrimSpace(after), "Z") || strings.HasPrefix(strings.TrimSpace(after), "X")
}

func readAll(t *testing.T, c net.Conn, d time.Duration) (string, error) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(d)))
	data, err := io.ReadAll(c)
	return string(data), err
}

func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}

func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}
