package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// nothingInstalled holds that an account has no program of fleet's that could run.
func (w *world) nothingInstalled(h *lab.Host, account string) {
	w.t.Helper()
	if out := w.sh(h, account, "ls -d ~/.local/share/fleet-agent/*/current 2>/dev/null; pgrep -a -u $(id -u) agentd || true"); strings.TrimSpace(out) != "" {
		w.t.Errorf("half an installation is left: %s", out)
	}
}

func TestInstallRefusesBadHosts(t *testing.T) { // R2, R3
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana"}, {Name: "tiny", HomeBytes: 16 << 20}, {Name: "noexec", NoExec: true}, {Name: "fixed"}}})
	key := w.lab.KeyPath()

	w.fails(7, "cannot reach", "install", "dana@no-such-host.invalid", "-i", key)
	w.fails(7, "refused", "install", "dana@"+h.Addr()+":2222", "-i", key)
	w.fails(7, "cannot log in", "install", "dana@"+h.Addr(), "-i", filepath.Join(w.dir, "none"), "-o", "IdentitiesOnly=yes")
	w.fails(6, "host key unknown", "install", "dana@"+h.Addr(), "-i", key)
	w.fails(6, "not the one that was given", "install", "dana@"+h.Addr(), "-i", key, "--fingerprint", "SHA256:"+strings.Repeat("A", 43))
	// Another key than was given is refused before anybody logs in, and whatever is pinned.
	wrong := []string{"dana@" + h.Addr(), "--fingerprint", "SHA256:" + strings.Repeat("A", 43), "-i"}
	w.fails(6, "not the one that was given", append([]string{"install", "-o", "IdentitiesOnly=yes"}, append(wrong, filepath.Join(w.dir, "none"))...)...)
	w.fails(6, "finds nothing", "install", "dana@"+h.Addr(), "-i", key, "--trust", "known_hosts")
	w.fails(2, "fingerprint", "install", "dana@"+h.Addr(), "-i", key, "--fingerprint", "nonsense")
	w.fails(2, "unknown flag", "install", "dana@"+h.Addr(), "--nope")
	w.fails(7, "jump host root@bastion", "install", "dana@"+h.Addr(), "-i", key, "-J", "root@bastion")
	w.nothingInstalled(h, "dana")

	// Evidence that the person names confirms the key.
	known := filepath.Join(w.dir, "known_hosts")
	if err := os.WriteFile(known, []byte("malformed line\n"+h.KnownHosts()), 0o600); err != nil {
		t.Fatal(err)
	}
	w.must("fleet", "trust", "dana@"+h.Addr(), "-i", key, "-o", "UserKnownHostsFile="+known, "--trust", "known_hosts")
	for _, verb := range []string{"test", "trust", "install"} {
		w.fails(6, "not the one that was given", append([]string{verb}, append(wrong, key)...)...)
	}
	w.must("fleet", "trust", "dana@"+h.Addr(), "-i", key, "--fingerprint", w.fingerprint(h))

	w.fails(9, "MiB free", "install", "tiny@"+h.Addr(), "-i", key)
	w.fails(9, "noexec", "install", "noexec@"+h.Addr(), "-i", key)
	if err := h.ReadOnlyHome(t.Context(), "fixed"); err != nil {
		t.Fatal(err)
	}
	w.fails(9, "cannot be written", "install", "fixed@"+h.Addr(), "-i", key)
	for _, a := range []string{"tiny", "noexec", "fixed"} {
		w.nothingInstalled(h, a)
	}
	if n := len(w.machines()); n != 0 {
		t.Errorf("%d machines were admitted on the way", n)
	}

	w.sh(h, "root", "rm /etc/ssh/ssh_host_*; ssh-keygen -A >/dev/null 2>&1; kill -HUP $(pgrep -o -x sshd)")
	w.poll("the new host key", func() error {
		r := w.run("fleet", "install", "dana@"+h.Addr(), "-i", key)
		if r.exit != 6 || !strings.Contains(r.err, "host key changed") || !strings.Contains(r.err, "expected ssh-ed25519 SHA256:") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
}

func TestInstallRefusesArtifactsThatAreNotTheSigned(t *testing.T) { // R3
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	for name, spoil := range map[string]func(base string) error{
		"not signed": func(b string) error { return os.Remove(b + ".json.sig") },
		"not the one that was signed": func(b string) error {
			f, err := os.OpenFile(b+".tar.gz", os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("x")
			return err
		},
	} {
		dir := filepath.Join(w.dir, strings.ReplaceAll(name, " ", "-"))
		if out, err := exec.Command("cp", "-r", filepath.Join(bin, "artifacts"), dir).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		bases, err := filepath.Glob(dir + "/fleet-agent-linux-*.json")
		if err != nil || len(bases) == 0 {
			t.Fatal(bases, err)
		}
		for _, b := range bases {
			if err := spoil(strings.TrimSuffix(b, ".json")); err != nil {
				t.Fatal(err)
			}
		}
		clean := w.env
		w.env = append(w.env[:len(w.env):len(w.env)], "FLEET_ARTIFACT_DIR="+dir)
		w.fails(9, name, w.installArgs(h, "dana", "box")...)
		w.env = clean
		w.nothingInstalled(h, "dana")
	}
	if n := len(w.machines()); n != 0 {
		t.Errorf("%d machines were admitted", n)
	}
}

func TestPlaneTroubleDuringInstallLosesNothing(t *testing.T) { // R6
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.fails(9, "pin", "login", w.url, "--ca-pin", "sha256:"+strings.Repeat("0", 64), "--key", w.lab.KeyPath())
	w.fails(4, "", "login", w.url, "--ca-pin", w.pin, "--invite-file", w.dir+"/plane/owner.invite", "--key", w.strangersKey())
	w.stopPlane()
	w.fails(7, "", w.installArgs(h, "dana", "box")...)
	w.startPlane()
	doc := w.install(h, "dana", "box")
	if n := len(w.machines()); n != 1 {
		t.Fatalf("%d machines", n)
	}
	// A machine that lost its credential is told apart, and a person decides.
	w.sh(h, "dana", "systemctl --user stop fleet-agent; rm ~/.local/share/fleet-agent/*/credential*")
	w.fails(9, "fleet delete "+doc.Machine.ID, append([]string{"install"}, w.dest(h, "dana")...)...)
	w.must("fleet", "delete", doc.Machine.ID)
	if again := w.install(h, "dana", "box"); again.Machine.ID == doc.Machine.ID {
		t.Error("the id was used again")
	}
}

// strangersKey makes a key that the plane does not know.
func (w *world) strangersKey() string {
	w.t.Helper()
	p := filepath.Join(w.dir, "stranger")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", p).CombinedOutput(); err != nil {
		w.t.Fatal(err, string(out))
	}
	return p
}

// TestInstallKilledAtEveryStep kills fleet once each step is reported, and
// runs it again.
func TestInstallKilledAtEveryStep(t *testing.T) { // R6
	w := newWorld(t)
	steps := []string{"connect", "host-key", "platform", "admit", "upload", "verify", "credential", "service", "first-check"}
	var accounts []lab.Account
	for i := range steps {
		accounts = append(accounts, lab.Account{Name: fmt.Sprintf("user%d", i)})
	}
	h := w.host(lab.HostSpec{Accounts: accounts})
	for i, step := range steps {
		account := accounts[i].Name
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c := w.cmd(ctx, "fleet", w.installArgs(h, account, account)...)
		stderr, err := c.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		killed := false
		for s := bufio.NewScanner(stderr); s.Scan(); {
			if strings.HasPrefix(s.Text(), step+" ") {
				c.Process.Signal(syscall.SIGKILL)
				killed = true
				break
			}
		}
		c.Wait()
		cancel()
		if !killed {
			t.Errorf("step %s was not reported", step)
		}
		var doc wire.Install
		w.poll("an install after a kill at "+step, func() error {
			r := w.run("fleet", w.installArgs(h, account, account, "--json")...)
			if r.exit == 9 && strings.Contains(r.err, "install_running") {
				return fmt.Errorf("the killed one's shell still holds the lock: %s", r)
			}
			if r.exit != 0 {
				t.Fatalf("after a kill at %s: %s", step, r)
			}
			return json.Unmarshal([]byte(r.out), &doc)
		})
		if !doc.Matched.PlaneRow {
			t.Errorf("after a kill at %s: %+v", step, doc.Matched)
		}
		if out := w.sh(h, account, "ls -A ~/.local/share/fleet-agent/*/versions | grep -c '^\\.' || true"); strings.TrimSpace(out) != "0" {
			t.Errorf("after a kill at %s: %s half-made versions", step, out)
		}
	}
	if n := len(w.machines()); n != len(steps) {
		t.Errorf("%d machines, want %d", n, len(steps))
	}
}

func TestTwoInstallsAtOnceMakeOneMachine(t *testing.T) { // R6
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	results := make(chan result, 2)
	for range 2 {
		go func() { results <- w.run("fleet", w.installArgs(h, "dana", "box")...) }()
	}
	ok := 0
	for range 2 {
		switch r := <-results; {
		case r.exit == 0:
			ok++
		case r.exit != 9 || !strings.Contains(r.err, "another install"):
			t.Error(r)
		}
	}
	if n := len(w.machines()); ok == 0 || n != 1 {
		t.Errorf("%d succeeded, %d machines", ok, n)
	}
	// The machine takes the statements of the key that logged in. // R37
	got := w.sh(h, "dana", `cd ~/.local/share/fleet-agent/*/ && stat -c %a signers && cat signers`)
	if !strings.HasPrefix(got, "600\nssh-") || strings.Count(got, "ssh-") != 1 {
		t.Errorf("the machine's signers: %s", got)
	}
}

func TestInstallOnManyHosts(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana"}, {Name: "eve"}}})
	fp := w.fingerprint(h)
	list := fmt.Sprintf("# ours\ndana@%[1]s fingerprint=%[2]s name=one label.env=a\neve@%[1]s fingerprint=%[2]s name=two\nnobody@%[1]s fingerprint=%[2]s\n", h.Addr(), fp)
	hosts := []string{"install", "--hosts", "-", "-i", w.lab.KeyPath()}
	r := w.input(list, "fleet", append(hosts, "--dry-run", "--json")...)
	if r.exit != 0 || strings.Count(r.out, `"dry_run"`) != 3 || len(w.machines()) != 0 {
		t.Error(r)
	}
	// The lines of a program, and what goes to no terminal.
	r = w.input(list, "fleet", hosts...)
	m := parseMany(t, r.out)
	if r.exit != 3 || m.sum.OK != 2 || m.sum.Failed != 1 || !m.results["one"].OK || !m.results["two"].OK ||
		m.results["nobody@"+h.Addr()].Error.Code != "auth_failed" || strings.Count(r.out, "\n") != 4 {
		t.Error(r)
	}
	for _, one := range w.machines() {
		if m.results[one.Name].Machine != one.ID {
			t.Errorf("%+v %+v", one, m.results[one.Name])
		}
	}
	// One document.
	var doc wire.Results
	r = w.input(list, "fleet", append(hosts, "--json")...)
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.exit != 3 || doc.Schema != wire.SchemaResults || doc.OK != 2 || doc.Failed != 1 || len(doc.Results) != 3 || doc.Results[0].Document == nil {
		t.Errorf("%v: %s", err, r)
	}
	// Lines for a person.
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	var screen lockedBuffer
	go io.Copy(&screen, master) // ends with the master
	c := w.cmd(t.Context(), "fleet", hosts...)
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(list), tty, tty
	c.Run()
	tty.Close()
	w.screen(&screen, "2 ok, 1 failed")
	if out := screen.String(); strings.Contains(out, "{") || !strings.Contains(out, "dana@"+h.Addr()+"  present\r\n") {
		t.Error(out)
	}
	if n := len(w.machines()); n != 2 {
		t.Errorf("%d machines", n)
	}
	w.fails(2, "--dry-run is for many hosts", "install", "--dry-run", "dana@"+h.Addr())

	// A login takes the plane that is known, and says which; an update that has
	// nothing to do says so; an agent that is stopped has a version.
	if r := w.run("fleet", "login", "--key", w.lab.KeyPath()); r.exit != 0 || !strings.Contains(r.err, "logging in to "+w.url) {
		t.Error(r)
	}
	w.fails(2, "URL is "+w.url, "login", w.url, "--plane", "https://other.example")
	if r := w.run("fleet", "update", "one"); r.exit != 0 || !strings.HasSuffix(r.out, "runs this version\n") {
		t.Error(r)
	}
	var stopped wire.AgentStatus
	if err := json.Unmarshal([]byte(w.sh(h, "dana", `"$(echo .local/share/fleet-agent/*/current)/agentd" stop --json`)), &stopped); err != nil || stopped.State != "stopped" || stopped.Version == "" {
		t.Errorf("%+v %v", stopped, err)
	}
	r = w.input("a b=c\n", "fleet", "install", "--hosts", "-")
	if r.exit != 2 {
		t.Error(r)
	}
}

func TestSystemScope(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana", NoLinger: true}}})
	w.sh(h, "root", "echo 'dana ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/dana 2>/dev/null || true")
	w.fails(2, "--scope", append([]string{"install", "--scope", "galaxy"}, w.dest(h, "dana")...)...)
	if strings.TrimSpace(w.sh(h, "dana", "sudo -n true 2>/dev/null && echo yes || true")) != "yes" {
		t.Fatal("sudo does not work on the host")
	}
	doc := w.install(h, "dana", "box", "--scope", "system")
	if doc.Machine.Agent.Scope != "system" {
		t.Errorf("%+v", doc.Machine.Agent)
	}
	if out := w.sh(h, "root", "systemctl is-active fleet-agent@dana; ps -o user= -C agentd"); out != "active\ndana\n" {
		t.Error(out)
	}
	if r := w.run("fleet", "exec", "box", "--", "id", "-un"); r.out != "dana\n" {
		t.Error(r)
	}
	w.must("fleet", "uninstall", "box")
	if out := w.sh(h, "root", "ls -d /var/lib/fleet-agent/dana /etc/systemd/system/fleet-agent* 2>/dev/null || true; pgrep agentd || true"); strings.TrimSpace(out) != "" {
		t.Errorf("left: %s", out)
	}
}

func TestPlainServiceManagerAndBridge(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{SSHDConfig: "AllowStreamLocalForwarding no\n"})
	doc := w.install(h, "dana", "box", "--service-manager", "plain")
	if doc.Machine.Agent.ServiceManager != "plain" {
		t.Errorf("%+v", doc.Machine.Agent)
	}
	r := w.run("fleet", "-v", "exec", "box", "--", "echo", "over a bridge")
	if r.exit != 0 || r.out != "over a bridge\n" || !strings.Contains(r.err, "bridge") {
		t.Error(r)
	}
	w.sh(h, "root", "kill -9 $(pgrep -x agentd)")
	w.poll("the agent again", func() error {
		if r := w.run("fleet", "exec", "box", "--", "true"); r.exit != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	w.must("fleet", "stop", "box")
	w.must("fleet", "wait", "box", "--for", "stopped", "--timeout", "30s")
	w.must("fleet", "start", "box")
	w.must("fleet", "wait", "box", "--for", "present", "--timeout", "30s")
	w.must("fleet", "uninstall", "box")
}
