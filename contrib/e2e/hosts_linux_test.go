package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// upTo runs fleet until it reported a step, does something to the world, and
// gives the outcome.
func (w *world) upTo(step string, do func(pid int), args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Minute)
	defer cancel()
	c := w.cmd(ctx, "fleet", args...)
	stderr, err := c.StderrPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		w.t.Fatal(err)
	}
	var said strings.Builder
	reached, at := false, time.Now()
	for s := bufio.NewScanner(stderr); s.Scan(); {
		said.WriteString(s.Text() + "\n")
		if !reached && strings.HasPrefix(s.Text(), step+" ") {
			reached, at = true, time.Now()
			do(c.Process.Pid)
		}
	}
	c.Wait()
	if !reached || ctx.Err() != nil {
		w.t.Fatalf("fleet %v: step %s, %v: %s", args, step, ctx.Err(), said.String())
	}
	w.t.Logf("fleet ended with %d, %v after %s", c.ProcessState.ExitCode(), time.Since(at).Round(time.Millisecond), step)
	return result{err: said.String(), exit: c.ProcessState.ExitCode()}
}

// again runs install until it succeeds; a killed one's shell may hold its lock for a moment.
func (w *world) again(h *lab.Host, account string) {
	w.t.Helper()
	w.poll("an install afterwards", func() error {
		r := w.run("fleet", w.installArgs(h, account, account)...)
		if r.exit == 9 && strings.Contains(r.err, "another install") {
			return fmt.Errorf("%s", r)
		}
		if r.exit != 0 {
			w.t.Fatal(r)
		}
		return nil
	})
}

func TestInstallInterrupted(t *testing.T) { // R6
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana"}, {Name: "eve"}, {Name: "finn"}, {Name: "gus"}}})

	// A host that says nothing is given up in the time that was asked for.
	if err := w.lab.Drop(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	w.fails(7, "", w.installArgs(h, "dana", "dana", "-o", "ConnectTimeout=2")...)
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("a silent host was given up after %v", took)
	}
	if err := w.lab.Restore(t.Context(), h); err != nil {
		t.Fatal(err)
	}

	// The plane goes away after it admitted the machine.
	r := w.upTo("admit", func(int) { w.endPlane(syscall.SIGKILL) }, w.installArgs(h, "dana", "dana")...)
	if r.exit == 0 {
		t.Errorf("an install without a plane: %s", r)
	}
	w.startPlane()
	w.again(h, "dana")

	// The link resets in the middle.
	r = w.upTo("admit", func(int) {
		if err := w.lab.Refuse(t.Context(), h); err != nil {
			t.Error(err)
		}
	}, w.installArgs(h, "eve", "eve")...)
	if r.exit != 7 && r.exit != 1 {
		t.Errorf("a reset link: %s", r)
	}
	if err := w.lab.Restore(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	w.again(h, "eve")

	// A person presses ^C.
	r = w.upTo("admit", func(pid int) { syscall.Kill(pid, syscall.SIGINT) }, w.installArgs(h, "finn", "finn")...)
	if r.exit != 130 {
		t.Errorf("interrupted: %s", r)
	}
	w.again(h, "finn")

	// The host loses power once the credential is there.
	r = w.upTo("credential", func(int) {
		if err := h.PowerCut(t.Context()); err != nil {
			t.Error(err)
		}
	}, w.installArgs(h, "gus", "gus", "-o", "ServerAliveInterval=1", "-o", "ConnectTimeout=5")...)
	if r.exit == 0 {
		t.Errorf("a host that lost power: %s", r)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.again(h, "gus")

	if n := len(w.machines()); n != 4 {
		t.Errorf("%d machines, want 4", n)
	}
	for _, name := range []string{"dana", "eve", "finn", "gus"} {
		w.must("fleet", "wait", name, "--for", "present", "--timeout", "30s")
	}
}

func TestInvitationWorksOnce(t *testing.T) {
	w := newWorld(t)
	w.must("fleet", "person", "add", "eve", "--out", w.dir+"/eve.invite")
	clean := w.env
	defer func() { w.env = clean }()
	w.env = append([]string{"HOME=" + w.dir + "/eve"}, clean[1:]...)
	if err := os.Mkdir(w.dir+"/eve", 0o700); err != nil {
		t.Fatal(err)
	}
	w.must("fleet", "login", w.url, "--ca-pin", w.pin, "--invite-file", w.dir+"/eve.invite", "--key", w.strangersKey())
	w.sys("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", w.dir+"/third")
	w.fails(4, "", "login", w.url, "--ca-pin", w.pin, "--invite-file", w.dir+"/eve.invite", "--key", w.dir+"/third")
}

// TestHostWithoutUserManager installs where systemd has no manager for accounts.
func TestHostWithoutUserManager(t *testing.T) { // R29
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana", NoLinger: true}}, Prepare: func(root string) error {
		units := filepath.Join(root, "etc/systemd/system")
		if err := os.MkdirAll(units, 0o755); err != nil {
			return err
		}
		return os.Symlink("/dev/null", filepath.Join(units, "user@.service"))
	}})
	doc := w.install(h, "dana", "box")
	if doc.Machine.Agent.ServiceManager != "plain" {
		t.Fatalf("%+v", doc.Machine.Agent)
	}
	if r := w.run("fleet", "exec", "box", "--", "echo", "here"); r.out != "here\n" {
		t.Error(r)
	}
	w.sh(h, "root", "kill -9 $(pgrep -x agentd)")
	w.poll("the agent again", func() error {
		if r := w.run("fleet", "exec", "box", "--", "true"); r.exit != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	if strings.Contains(w.sh(h, "root", "command -v crontab || true"), "crontab") {
		if err := h.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.poll("the agent after a reboot", func() error {
			if m := w.show("box"); m.Presence != wire.Present || m.Lifecycle.State != wire.LifecycleRunning {
				return fmt.Errorf("%+v", m)
			}
			if w.sh(h, "root", "pgrep -x agentd || true") == "" {
				return fmt.Errorf("no agentd runs")
			}
			return nil
		})
	}
	w.must("fleet", "uninstall", "box")
	if left := w.sh(h, "dana", "ls -d "+dataGlob+" 2>/dev/null; crontab -l 2>/dev/null | grep fleet; pgrep -a -u $(id -u) 'agentd|supervise'; true"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestHostWhoseCrontabCannotBeWritten: the agent runs, and what it cannot
// promise is said where a person looks.
func TestHostWhoseCrontabCannotBeWritten(t *testing.T) { // R30
	w := newWorld(t)
	h := w.host(lab.HostSpec{Prepare: func(root string) error {
		// The daemon would make the directory.
		if err := os.RemoveAll(filepath.Join(root, "etc/systemd/system/multi-user.target.wants/cron.service")); err != nil {
			return err
		}
		return os.RemoveAll(filepath.Join(root, lab.CronSpool))
	}})
	if w.sh(h, "dana", "command -v crontab || true") == "" {
		t.Skip("this machine has no crontab that could fail")
	}
	doc := w.install(h, "dana", "box", "--service-manager", "plain")
	said := ""
	for _, s := range doc.Steps {
		if s.Name == "service" {
			said = s.Detail
		}
	}
	if !strings.Contains(said, "does not come back after a reboot: ") || !strings.Contains(said, "crontab") {
		t.Errorf("step service says %q", said)
	}
	if r := w.run("fleet", "exec", "box", "--", "echo", "here"); r.out != "here\n" {
		t.Error(r)
	}
	w.poll("the blocker", func() error {
		m := w.show("box")
		for _, b := range m.Readiness.Blockers {
			if b.Code == "not_at_boot" && b.Severity == wire.SeverityWarn && strings.Contains(b.Detail, "crontab") {
				return nil
			}
		}
		return fmt.Errorf("%+v", m.Readiness)
	})
	w.must("fleet", "wait", "box", "--for", "ready", "--timeout", "30s")
	w.must("fleet", "uninstall", "box")
	if left := w.sh(h, "dana", "ls -d "+dataGlob+" 2>/dev/null; pgrep -a -u $(id -u) 'agentd|supervise'; true"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestRootAndDropbear installs for root, over an SSH server that is not OpenSSH.
func TestRootAndDropbear(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{Dropbear: true, Accounts: []lab.Account{{Name: "root"}, {Name: "dana"}}})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.sh(h, "root", "journalctl --no-pager -q -u ssh | tail -n 40"))
		}
	})
	for _, account := range []string{"root", "dana"} {
		doc := w.install(h, account, account)
		want := map[string]string{"root": "system", "dana": "user"}[account]
		if doc.Machine.Agent.Scope != want {
			t.Errorf("%s: %+v", account, doc.Machine.Agent)
		}
		r := w.input("in", "fleet", "exec", "-i", account, "--", "sh", "-c", "id -un; cat; echo err >&2; exit 3")
		if r.out != account+"\nin" || r.err != "err\n" || r.exit != 3 {
			t.Error(r)
		}
	}
	if out := w.sh(h, "root", "systemctl is-active fleet-agent@root"); out != "active\n" {
		t.Error(out)
	}
	for _, account := range []string{"root", "dana"} {
		w.must("fleet", "uninstall", account)
	}
	if left := w.sh(h, "root", "ls -d /var/lib/fleet-agent/root /etc/systemd/system/fleet-agent* "+dataGlob+" 2>/dev/null; pgrep -a agentd; true"); left != "" {
		t.Errorf("left: %s", left)
	}
}
