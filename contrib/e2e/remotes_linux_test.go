package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// remote is an account, or a way to it, that is difficult in one respect. What
// it cannot do is said by test and install in the same words.
type remote struct {
	account lab.Account
	port    int    // of the server, if not 22
	match   string // sshd_config(5) of the account's Match block
	prepare string // shell, run by root on the host
	systemd bool   // its agent is served by systemd, else by the plain manager

	step, detail string // what fleet test has to say, if anything
	verbose      string // what exec says under -v
	refused      string // the one sentence, where nothing can be installed
	remedy       string
	check        string // shell, run by the account once the agent is installed; prints nothing
}

const noise = "echo 'Welcome to example, {\"all\": 1}'; printf 'no newline at the end of this'; echo fleet- >&2; "

// difficult are the remotes of one host. An install takes seconds, so that one
// account is difficult in several ways where these have nothing to do with each
// other. Only servers on portPAM set XDG_RUNTIME_DIR.
func difficult() []remote {
	long := "/home/" + strings.Repeat("a-long-way-from-here/", 6) + "long"
	const bridge = "refuses channels to UNIX sockets"
	return []remote{
		// Shells.
		{account: lab.Account{Name: "fish", Shell: "/usr/bin/fish", Home: "/home/дом-é-家", Files: map[string]string{
			".config/fish/config.fish": "echo hello from fish\nfunction fish_greeting; echo hi; end\n"}}, step: "shell", detail: "fish"},
		{account: lab.Account{Name: "tcsh", Shell: "/usr/bin/tcsh", Home: long, Files: map[string]string{
			".cshrc": "echo hello from tcsh\nset noclobber\n"}}, step: "shell", detail: "tcsh",
			check: `[ -z "$XDG_RUNTIME_DIR" ] || echo there is one; [ ${#HOME} -gt 108 ] || echo short`},
		{account: lab.Account{Name: "zsh", Shell: "/usr/bin/zsh", Files: map[string]string{
			".zshenv": "echo hello from zsh\nsetopt NO_UNSET NO_CLOBBER\n"}}, port: portFewStarts, step: "shell", detail: "zsh"},
		{account: lab.Account{Name: "mksh", Shell: "/usr/bin/mksh"}, port: portNoSFTP, step: "sftp", detail: "no sftp"},
		{account: lab.Account{Name: "busybox", Shell: "/usr/local/busybox/ash"}, match: "SetEnv PATH=/usr/local/busybox", step: "shell", detail: "ash",
			check: `[ "$(/usr/local/busybox/getconf LONG_BIT)" = 32 ] || echo 64`},

		// What start-up files and forced programs do.
		{account: lab.Account{Name: "noisy", Files: map[string]string{".bashrc": noise + "read -t 0.05 swallowed\nalias sh=false\ncd /usr\n"}},
			check: `ls -d /usr/.local /usr/fleet* 2>/dev/null || true`},
		{account: lab.Account{Name: "wrapped"}, match: "ForceCommand /usr/local/bin/wrapper\nBanner /etc/passwd",
			check: `find . -path ./.ssh -prune -o -newer .ssh/authorized_keys ! -type l -perm /022 -print`},
		{account: lab.Account{Name: "spaces", Home: "/home/it's \"a\" home $HOME %h", Files: map[string]string{".bashrc": "umask 077\n"}}, port: portPAM, systemd: true},

		// Servers.
		{account: lab.Account{Name: "dropbear"}, port: portDropbear, step: "forward", detail: "forbids", verbose: bridge},
		{account: lab.Account{Name: "tiny"}, port: portTiny, step: "forward", detail: "forbids", verbose: bridge},
		{account: lab.Account{Name: "notcp"}, match: "AllowTcpForwarding no", step: "forward", detail: "forbids", verbose: bridge},
		{account: lab.Account{Name: "single"}, match: "MaxSessions 1", step: "sftp", detail: "one session at a time"},
		{account: lab.Account{Name: "narrow"}, match: "MaxSessions 1\nAllowStreamLocalForwarding no", step: "forward", detail: "forbids", verbose: bridge},

		// Where nothing can be installed.
		{account: lab.Account{Name: "sftponly"}, match: "ForceCommand internal-sftp",
			refused: "transfer files and run nothing", remedy: "internal-sftp"},
		{account: lab.Account{Name: "nologin", Shell: "/usr/sbin/nologin"},
			refused: "runs no commands for the account", remedy: "login shell"},
		{account: lab.Account{Name: "falsesh", Shell: "/bin/false"},
			refused: "runs no commands for the account", remedy: "login shell"},
		{account: lab.Account{Name: "nosession"}, match: "MaxSessions 0",
			refused: "opens no session", remedy: "MaxSessions"},
		{account: lab.Account{Name: "noexec", NoExec: true, Home: "/home/no exec"},
			refused: "does not let programs run (noexec)", remedy: "--scope system"},
		{account: lab.Account{Name: "fixed"}, prepare: "mount -o remount,bind,ro /home/fixed",
			refused: "cannot be written", remedy: "writable"},
		{account: lab.Account{Name: "tinyhome", HomeBytes: 8 << 20},
			refused: "has 7 MiB free, and an install needs", remedy: "free some space"},
		{account: lab.Account{Name: "full", HomeBytes: 8 << 20}, prepare: "cat /dev/zero >/home/full/fill 2>/dev/null || true",
			refused: "has 0 MiB free, and an install needs", remedy: "free some space"},
		{account: lab.Account{Name: "nowhere"}, match: "AuthorizedKeysFile /etc/ssh/nowhere",
			prepare: "cp /home/nowhere/.ssh/authorized_keys /etc/ssh/nowhere; chmod 644 /etc/ssh/nowhere; umount -l /home/nowhere; rmdir /home/nowhere",
			refused: "the home directory /home/nowhere is not there", remedy: "make it"},
	}
}

const (
	portNoSFTP = 2201 + iota
	portFewStarts
	portPAM
	portDropbear
	portTiny
)

const wrapper = "#!/bin/sh\n" + noise + `
cd /var
umask 0
sh -c "$SSH_ORIGINAL_COMMAND"
r=$?
echo goodbye
exit $r
`

// needs fails the test, or skips it where the lab is not required, unless the
// programs are here.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if _, err := os.Stat("/usr/sbin/" + p); err == nil {
			continue
		}
		if os.Getenv(lab.RequiredEnv) == "required" {
			t.Fatalf("there is no %s here, and the lab is required", p)
		}
		t.Skipf("there is no %s here", p)
	}
}

func zoo(w *world, all []remote) *lab.Host {
	// Without PAM no login starts a service manager, of which dozens would take
	// minutes; and there is no XDG_RUNTIME_DIR.
	spec := lab.HostSpec{Name: "zoo", SSHDConfig: "UsePAM no\n", Also: []lab.Server{
		{Port: portNoSFTP, NoSFTP: true, SSHDConfig: "UsePAM no\n"},
		{Port: portFewStarts, SSHDConfig: "UsePAM no\nMaxStartups 1\n"},
		{Port: portPAM},
		{Port: portDropbear, Kind: lab.Dropbear},
		{Port: portTiny, Kind: lab.TinySSH},
	}}
	for _, r := range all {
		r.account.NoLinger = !r.systemd
		spec.Accounts = append(spec.Accounts, r.account)
		if r.match != "" {
			spec.SSHDConfig += "Match User " + r.account.Name + "\n" + r.match + "\n"
		}
	}
	spec.Prepare = func(root string) error {
		busybox := filepath.Join(root, "usr/local/busybox")
		if out, err := exec.Command("sh", "-c", `mkdir -p "$1" && cp "$(command -v busybox)" "$1" && "$1/busybox" --install -s "$1" && cd "$1" && for a in *; do [ "$a" = busybox ] || ln -sf busybox "$a"; done`, "sh", busybox).CombinedOutput(); err != nil {
			return fmt.Errorf("busybox: %w: %s", err, out)
		}
		// Its programs have 32 bits, and the kernel 64.
		getconf := filepath.Join(busybox, "getconf")
		if err := os.Remove(getconf); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := os.WriteFile(getconf, []byte("#!/bin/sh\n[ \"$1\" = LONG_BIT ] && echo 32\n"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(root, "usr/local/bin/wrapper"), []byte(wrapper), 0o755)
	}
	return w.host(spec)
}

// on is the command line that reaches a remote.
func (r remote) on(w *world, h *lab.Host) []string {
	args := w.dest(h, r.account.Name)
	if r.port != 0 {
		args = append(args, "-p", fmt.Sprint(r.port))
	}
	return args
}

func TestDifficultRemotes(t *testing.T) { // R3, R32
	t.Parallel()
	needs(t, "fish", "tcsh", "zsh", "mksh", "busybox", "dropbear", "dropbearconvert", "tinysshd")
	w := newWorld(t)
	all := difficult()
	h := zoo(w, all)
	w.sh(h, "root", "mount -o remount,noexec /tmp")
	t.Run("all", func(t *testing.T) {
		for _, r := range all {
			t.Run(r.account.Name, func(t *testing.T) {
				t.Parallel()
				w := w.as(t)
				if r.prepare != "" {
					w.sh(h, "root", r.prepare)
				}
				if r.refused != "" {
					r.isRefused(w, h)
				} else {
					r.works(w, h)
				}
			})
		}
	})
	if n := len(w.machines()); n != 0 {
		t.Errorf("%d machines are left", n)
	}
}

// as is the world for a subtest.
func (w *world) as(t *testing.T) *world {
	c := *w
	c.t = t
	return &c
}

func (r remote) isRefused(w *world, h *lab.Host) {
	w.t.Helper()
	said := w.run("fleet", append([]string{"test"}, r.on(w, h)...)...)
	if said.exit == 0 || !strings.Contains(said.out, r.refused) || !strings.Contains(said.out, r.remedy) {
		w.t.Errorf("fleet test: want %q and %q: %s", r.refused, r.remedy, said)
	}
	before := w.sh(h, "root", "find "+sshconn.Quote(w.home(h, r))+" | sort")
	args := append([]string{"install"}, r.on(w, h)...)
	refused := w.fails(9, r.refused, append(args, "--fingerprint", w.fingerprint(h))...)
	if !strings.Contains(refused.err, r.remedy) {
		w.t.Errorf("install names no remedy: %s", refused)
	}
	if after := w.sh(h, "root", "find "+sshconn.Quote(w.home(h, r))+" | sort"); after != before {
		w.t.Errorf("an install that was refused left\n%s\nwhere there was\n%s", after, before)
	}
}

func (w *world) home(h *lab.Host, r remote) string {
	for _, a := range h.Accounts() {
		if a.Name == r.account.Name {
			return a.Home
		}
	}
	return ""
}

func (r remote) works(w *world, h *lab.Host) {
	w.t.Helper()
	name := r.account.Name
	var doc wire.Test
	out := w.must("fleet", append([]string{"test", "--json"}, r.on(w, h)...)...)
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		w.t.Fatal(err)
	}
	w.stepSays(doc, r.step, r.detail)
	install := append([]string{"install", "--name", name, "--fingerprint", w.fingerprint(h)}, r.on(w, h)...)
	manager := "plain"
	if r.systemd {
		manager = "systemd"
	}
	var installed wire.Install
	if err := json.Unmarshal([]byte(w.must("fleet", append(install, "--json")...)), &installed); err != nil {
		w.t.Fatal(err)
	}
	if m := installed.Machine.Agent.ServiceManager; m != manager {
		w.t.Errorf("served by %s, not %s", m, manager)
	}
	got := w.input("in", "fleet", "-v", "exec", "-i", name, "--", "sh", "-c", "id -un; cat; echo err >&2; exit 3")
	if got.out != name+"\nin" || !strings.Contains(got.err, "err\n") || got.exit != 3 || !strings.Contains(got.err, r.verbose) {
		w.t.Errorf("exec: %s", got)
	}
	if r.check != "" {
		if r := w.run("fleet", "exec", name, "--", "sh", "-c", "cd; "+r.check); r.out != "" {
			w.t.Errorf("%s", r)
		}
	}
	if out := w.must("fleet", "update", name, "--json"); !strings.Contains(out, "runs this version") {
		w.t.Errorf("an update of nothing: %s", out)
	}
	w.must("fleet", "uninstall", name)
	if left := w.sh(h, "root", "find "+sshconn.Quote(w.home(h, r))+" -path '*fleet-agent*'; pgrep -u "+name+" -a 'agentd|supervise' || true"); left != "" {
		w.t.Errorf("left: %s", left)
	}
}

func (w *world) stepSays(doc wire.Test, step, words string) {
	w.t.Helper()
	if step == "" {
		return
	}
	for _, s := range doc.Steps {
		if s.Name == step && strings.Contains(s.Detail, words) {
			return
		}
	}
	w.t.Errorf("no step %s says %q: %+v", step, words, doc.Steps)
}
