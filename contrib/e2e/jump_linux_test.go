package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// newKey makes a key pair for one account and returns the file and the public line.
func (w *world) newKey(name string) (file, public string) {
	w.t.Helper()
	file = filepath.Join(w.dir, name)
	w.sys("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file)
	b, err := os.ReadFile(file + ".pub")
	if err != nil {
		w.t.Fatal(err)
	}
	return file, strings.TrimSpace(string(b))
}

// sshConfig writes an ssh configuration and gives the flags that read it.
func (w *world) sshConfig(text string) []string {
	w.t.Helper()
	file := filepath.Join(w.dir, "ssh_config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return []string{"-F", file}
}

// noPlugins waits until no process of a transport plugin of this world is left.
func (w *world) noPlugins() {
	w.t.Helper()
	w.poll("no transport plugin", func() error {
		if left := w.plugins(); left != "" {
			return fmt.Errorf("still there: %s", left)
		}
		return nil
	})
}

// plugins are the processes of transport plugins that have this world's home.
func (w *world) plugins() string {
	var out strings.Builder
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		argv, err := os.ReadFile(name)
		if err != nil || !bytes.HasPrefix(argv, []byte("fleet-transport-")) {
			continue
		}
		env, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "environ"))
		if bytes.Contains(env, []byte("HOME="+w.dir+"/home\x00")) {
			fmt.Fprintf(&out, "%s %s\n", filepath.Dir(name), bytes.ReplaceAll(argv, []byte{0}, []byte(" ")))
		}
	}
	return out.String()
}

func TestMachineBehindABastion(t *testing.T) { // R2, R32, R40, R41
	w := newWorld(t)
	key, public := w.newKey("bastion-key")
	bastion := w.host(lab.HostSpec{Name: "bastion", Accounts: []lab.Account{{Name: "jay"}}, NoLabKey: true, AuthorizedKeys: []string{public}})
	box := w.host(lab.HostSpec{Name: "box", Hidden: true, From: []string{"bastion"}})
	config := w.sshConfig(fmt.Sprintf(`
Host bastion
  HostName %s
  User jay
  IdentityFile %s
  IdentitiesOnly yes
Host box
  HostName %s
  User dana
  IdentityFile %s
  ProxyJump bastion
  ServerAliveInterval 1
  ServerAliveCountMax 2
`, bastion.Addr(), key, box.Addr(), w.lab.KeyPath()))

	// Nobody confirmed the bastion: it is named, and nobody logged in there.
	r := w.fails(6, "jump host "+bastion.Addr(), append([]string{"test", "box"}, config...)...)
	if !strings.Contains(r.err, "--fingerprint bastion=SHA256:") {
		t.Error(r)
	}
	w.fails(6, "jump host "+bastion.Addr(), append([]string{"install", "box", "--name", "box", "--fingerprint", w.fingerprint(box)}, config...)...)
	w.fails(6, "is not the one that was given", append([]string{"install", "box", "--name", "box", "--fingerprint", "bastion=" + w.fingerprint(box)}, config...)...)
	if said := w.sh(bastion, "root", "journalctl --no-pager -q | grep -ciE 'accepted|userauth|invalid user' || true"); strings.TrimSpace(said) != "0" {
		t.Errorf("somebody logged in to an unconfirmed jump host: %s", w.sh(bastion, "root", "journalctl --no-pager -q | grep -iE 'accepted|userauth|invalid user'"))
	}
	w.fails(2, "no such host on the way", append([]string{"install", "box", "--fingerprint", "nowhere=" + w.fingerprint(box)}, config...)...)

	// A test with both fingerprints goes through and pins nothing.
	confirm := append([]string{"--fingerprint", "bastion=" + w.fingerprint(bastion), "--fingerprint", w.fingerprint(box)}, config...)
	var test wire.Test
	if err := json.Unmarshal([]byte(w.must("fleet", append([]string{"test", "box", "--json"}, confirm...)...)), &test); err != nil {
		t.Fatal(err)
	}
	if len(test.Jumps) != 1 || test.Jumps[0].Confirmed != "fingerprint" || test.Jumps[0].HostKey.Fingerprint != w.fingerprint(bastion) {
		t.Errorf("%+v", test.Jumps)
	}
	if out := w.must("fleet", "trust", "ls"); out != "" {
		t.Errorf("a test pinned %s", out)
	}

	var doc wire.Install
	out := w.must("fleet", append([]string{"install", "box", "--name", "box", "--json"}, confirm...)...)
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Jumps) != 1 || doc.Jumps[0].Host != "jay@"+bastion.Addr()+":22" || doc.Jumps[0].Confirmed != "fingerprint" {
		t.Errorf("%+v", doc.Jumps)
	}
	if out := w.must("fleet", "trust", "ls"); !strings.Contains(out, box.Addr()+" via "+bastion.Addr()) {
		t.Error(out)
	}
	for _, mux := range []bool{false, true} {
		args := []string{"exec", "-i", "box", "--", "sh", "-c", "cat; echo err >&2; exit 3"}
		if !mux {
			args = append([]string{"--no-mux"}, args...)
		}
		if r := w.input("in", "fleet", args...); r.out != "in" || r.err != "err\n" || r.exit != 3 {
			t.Error(mux, r)
		}
	}
	// -J on the command line is recorded by link.
	w.must("fleet", "host", "unlink", "box")
	w.must("fleet", "host", "link", "box", "dana@"+box.Addr(), "-i", w.lab.KeyPath(), "-J", "bastion", config[0], config[1])
	if r := w.run("fleet", "--no-mux", "exec", "box", "--", "echo", "here"); r.out != "here\n" {
		t.Error(r)
	}
	w.noPlugins()

	// The bastion dies under a command: the error names it, and nothing is left.
	c := w.cmd(t.Context(), "fleet", "--no-mux", "exec", "box", "--", "sh", "-c", "echo begun; sleep 300")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said lockedBuffer
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if b := make([]byte, 6); !readAll(stdout, b) || string(b) != "begun\n" {
		t.Fatalf("%q: %s", b, said.String())
	}
	if w.plugins() == "" {
		t.Error("no plugin carries the connection")
	}
	if err := bastion.PowerCut(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.lab.Refuse(t.Context(), bastion); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	w.poll("words about the lost bastion", func() error {
		if !strings.Contains(said.String(), "jump host jay@"+bastion.Addr()+":22") {
			return fmt.Errorf("it says %q", said.String())
		}
		return nil
	})
	t.Logf("said after %v: %s", time.Since(begin).Round(time.Millisecond), said.String())
	c.Process.Kill()
	c.Wait()
	w.noPlugins()
}

func readAll(r interface{ Read([]byte) (int, error) }, b []byte) bool {
	for n := 0; n < len(b); {
		m, err := r.Read(b[n:])
		if n += m; err != nil && n < len(b) {
			return false
		}
	}
	return true
}

// TestTwoJumpsEachWithItsOwnLogin goes through two hosts that take different
// users and keys, one of them held by an agent of its own.
func TestTwoJumpsEachWithItsOwnLogin(t *testing.T) { // R2, R32
	w := newWorld(t)
	key1, public1 := w.newKey("k1")
	key2, public2 := w.newKey("k2")
	first := w.host(lab.HostSpec{Name: "first", Accounts: []lab.Account{{Name: "jay"}}, NoLabKey: true, AuthorizedKeys: []string{public1}, SSHDConfig: "MaxAuthTries 2"})
	second := w.host(lab.HostSpec{Name: "second", Accounts: []lab.Account{{Name: "kay"}}, NoLabKey: true, AuthorizedKeys: []string{public2}, SSHDConfig: "Port 2022",
		Hidden: true, From: []string{"first"}})
	box := w.host(lab.HostSpec{Name: "box", Hidden: true, From: []string{"second"}})
	agent := w.agent("second", key2)
	if err := os.Remove(key2); err != nil { // only the agent has it
		t.Fatal(err)
	}
	config := w.sshConfig(fmt.Sprintf(`
Host first
  HostName %s
  User jay
  IdentityFile %s
Host second
  HostName %s
  Port 2022
  User kay
  IdentityFile %s.pub
  IdentityAgent %s
  ProxyJump first
Host box
  HostName %s
  User dana
  IdentityFile %s
  IdentityAgent none
  ProxyJump second
`, first.Addr(), key1, second.Addr(), key2, agent, box.Addr(), w.lab.KeyPath()))
	args := append([]string{"--fingerprint", "first=" + w.fingerprint(first), "--fingerprint", "second=" + w.fingerprint(second),
		"--fingerprint", w.fingerprint(box)}, config...)
	w.must("fleet", append([]string{"install", "box", "--name", "box"}, args...)...)
	if r := w.run("fleet", "--no-mux", "exec", "box", "--", "echo", "here"); r.out != "here\n" {
		t.Error(r)
	}

	// A changed key of the second jump host stops everything, and is named.
	w.sh(second, "root", "rm /etc/ssh/ssh_host_*; ssh-keygen -A >/dev/null; systemctl restart ssh")
	w.fails(255, "jump host", "--no-mux", "exec", "box", "--", "true")
	r := w.fails(6, "host key changed: ["+second.Addr()+"]:2022 via "+first.Addr(), append([]string{"test", "box"}, config...)...)
	if !strings.Contains(r.err, "jump host kay@"+second.Addr()+":2022") || !strings.Contains(r.err, "fleet trust second") {
		t.Error(r)
	}
	// Re-pinned as its own destination, it counts for those behind it.
	fp := strings.Fields(w.sh(second, "root", "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"))[1]
	w.must("fleet", append([]string{"trust", "second", "--fingerprint", fp}, config...)...)
	if r := w.run("fleet", "--no-mux", "exec", "box", "--", "echo", "here"); r.out != "here\n" {
		t.Error(r)
	}

	// A jump host that lets nothing through is named, with sshd's own words.
	w.sh(second, "root", "echo 'AllowTcpForwarding no' | cat - /etc/ssh/sshd_config >/tmp/c && cp /tmp/c /etc/ssh/sshd_config && systemctl restart ssh")
	w.fails(7, "administratively prohibited", append([]string{"test", "box"}, config...)...)
	w.noPlugins()
}

// agent starts an ssh-agent that holds the keys.
func (w *world) agent(name string, keys ...string) string {
	w.t.Helper()
	socket := filepath.Join(w.dir, name+".agent")
	c := exec.Command("ssh-agent", "-D", "-a", socket)
	if err := c.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	w.poll("an ssh-agent", func() error {
		_, err := os.Stat(socket)
		return err
	})
	for _, k := range keys {
		add := exec.Command("ssh-add", "-q", k)
		add.Env = append(os.Environ(), "SSH_AUTH_SOCK="+socket)
		if out, err := add.CombinedOutput(); err != nil {
			w.t.Fatalf("%v: %s", err, out)
		}
	}
	return socket
}

// TestMachineBehindAProxyCommand reaches a hidden host by programs of the
// person's.
func TestMachineBehindAProxyCommand(t *testing.T) { // R2, R41
	w := newWorld(t)
	bastion := w.host(lab.HostSpec{Name: "bastion", Accounts: []lab.Account{{Name: "jay"}}})
	box := w.host(lab.HostSpec{Name: "box", Hidden: true, From: []string{"bastion"}})
	known := filepath.Join(w.dir, "known_hosts")
	if err := os.WriteFile(known, []byte(bastion.KnownHosts()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ssh := fmt.Sprintf("ssh -F none -i %s -o UserKnownHostsFile=%s -o BatchMode=yes -W %%h:%%p jay@%s", w.lab.KeyPath(), known, bastion.Addr())
	flags := append(w.dest(box, "dana"), "-o", "ProxyCommand="+ssh)
	w.must("fleet", append([]string{"install", "--name", "box", "--fingerprint", w.fingerprint(box)}, flags...)...)
	if r := w.run("fleet", "--no-mux", "exec", "box", "--", "echo", "here"); r.out != "here\n" {
		t.Error(r)
	}
	if out := w.must("fleet", "trust", "ls"); !strings.Contains(out, box.Addr()+" via ProxyCommand") {
		t.Error(out)
	}
	for what, command := range map[string]string{
		"a shell": fmt.Sprintf(`bash -c 'exec 3<>/dev/tcp/%s/22; cat <&3 & cat >&3'`, bastion.Addr()),
	} {
		r := w.run("fleet", "test", "jay@"+bastion.Addr(), "-i", w.lab.KeyPath(), "-o", "ProxyCommand="+command)
		if !strings.Contains(r.out, "connect          ok") {
			t.Errorf("%s: %s", what, r)
		}
	}
	for what, c := range map[string]struct{ command, words string }{
		"not found":           {"no-such-program-at-all %h", "ended: exit status 127; it last said"},
		"exits at once":       {"sh -c 'echo because >&2; exit 9'", `ended: exit status 9; it last said "because"`},
		"is killed":           {"sh -c 'echo SSH-2.0-x; kill -9 $$'", "ended: signal: killed"},
		"ends when talked to": {"sh -c 'read line; echo because >&2; exit 4'", `ended: exit status 4; it last said "because"`},
		"prints garbage":      {"sh -c 'yes garbage'", "sh -c 'yes garbage'"},
		"says nothing":        {"sleep 600", "sleep 600"},
		"ends after a line":   {"sh -c 'echo SSH-2.0-x; echo because >&2; exit 4'", `ended: exit status 4; it last said "because"`},
	} {
		begin := time.Now()
		r := w.fails(7, c.words, "test", "dana@"+box.Addr(), "-i", w.lab.KeyPath(), "-o", "ConnectTimeout=2", "-o", "ProxyCommand="+c.command)
		if took := time.Since(begin); took > 15*time.Second {
			t.Errorf("%s: given up after %v: %s", what, took, r)
		}
	}
	w.noPlugins()

	// What the program says is heard by whoever waits for the connection, also
	// where another process keeps that.
	w.must("fleet", "uninstall", "box")
	talks := filepath.Join(w.dir, "talks")
	script := "#!/bin/sh\necho a word of the program >&2\ntest ! -e " + w.dir + "/down || exit 3\nexec " + strings.NewReplacer("%h", "$1", "%p", "$2").Replace(ssh) + "\n"
	if err := os.WriteFile(talks, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	w.must("fleet", append([]string{"install", "--name", "box"}, append(w.dest(box, "dana"), "-o", "ProxyCommand="+talks+" %h %p")...)...)
	w.shared()
	if r := w.run("fleet", "exec", "box", "--", "true"); r.exit != 0 || r.err != "a word of the program\n" {
		t.Error(r)
	}
	if r := w.run("fleet", "exec", "box", "--", "true"); r.exit != 0 || r.err != "" {
		t.Error(r)
	}
	w.must("fleet", "mux", "stop")
	if err := os.WriteFile(w.dir+"/down", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.must("fleet", "mux", "start")
	if r := w.fails(255, "exit status 3", "exec", "box", "--", "true"); !strings.HasPrefix(r.err, "a word of the program\n") {
		t.Error(r)
	}

	// Whoever is killed, nothing of the program is left.
	for _, victim := range []string{"fleet-host", "fleet-transport-proxycommand"} {
		mark := fmt.Sprintf("%d.%s", os.Getpid(), victim)
		c := w.cmd(t.Context(), "fleet", "test", "dana@"+box.Addr(), "-i", w.lab.KeyPath(), "-o", "ConnectTimeout=60",
			"-o", fmt.Sprintf(`ProxyCommand=sh -c 'echo SSH-2.0-x; exec sleep 600' %s`, mark))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		w.poll("the plugin of a dial", func() error {
			pid = 0
			names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, name := range names {
				argv, err := os.ReadFile(name)
				if err == nil && strings.HasPrefix(string(argv), victim+"\x00") && w.ours(name) {
					fmt.Sscanf(name, "/proc/%d/", &pid)
				}
			}
			if pid == 0 || w.plugins() == "" {
				return fmt.Errorf("no %s yet", victim)
			}
			return nil
		})
		syscall.Kill(pid, syscall.SIGKILL)
		c.Wait()
		w.noPlugins()
		w.poll("no program left", func() error {
			names, _ := filepath.Glob("/proc/[0-9]*/environ")
			for _, name := range names {
				argv, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
				if bytes.HasPrefix(argv, []byte("sleep\x00600\x00")) && w.ours(name) {
					return fmt.Errorf("%s still runs", name)
				}
			}
			return nil
		})
	}
}

// ours reports whether a process, by a file of its directory in /proc, has this
// world's home.
func (w *world) ours(name string) bool {
	env, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "environ"))
	return bytes.Contains(env, []byte("HOME="+w.dir+"/home\x00"))
}
