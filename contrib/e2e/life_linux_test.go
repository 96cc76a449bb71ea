package e2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
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

// TestLifeOfAMachine is the main job from install to uninstall.
func TestLifeOfAMachine(t *testing.T) { // R5, R6, R12, R29
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	doc := w.install(h, "dana", "box", "--label", "env=prod")
	if doc.Matched != (wire.Matched{Account: true, HostKey: true, PlaneRow: true}) || len(doc.Steps) != 10 || doc.Machine.Presence != wire.Present || !doc.Artifact.Sent {
		t.Fatalf("%+v", doc)
	}
	if m := w.show("box"); m.Labels["env"] != "prod" || m.Agent.ServiceManager != "systemd" || m.Agent.Scope != "user" {
		t.Errorf("%+v", m)
	}
	// R1: the secret that travelled is rotated away.
	w.poll("generation 2", func() error {
		if g := w.show("box").Credential.Generation; g != 2 {
			return fmt.Errorf("generation %d", g)
		}
		return nil
	})
	again := w.install(h, "dana", "box")
	if again.Artifact.Sent || again.Machine.ID != doc.Machine.ID || len(w.machines()) != 1 {
		t.Errorf("a second install: %+v", again)
	}

	t.Run("files", func(t *testing.T) {
		large := make([]byte, 3<<20+1)
		rand.Read(large)
		if r := w.input(string(large), "fleet", "file", "write", "box:dir name/none", "--mode", "640"); r.exit != 5 {
			t.Error(r)
		}
		w.sh(h, "dana", "mkdir 'dir name'")
		if r := w.input(string(large), "fleet", "file", "write", "box:dir name/large", "--mode", "640"); r.exit != 0 {
			t.Error(r)
		}
		if r := w.run("fleet", "file", "cat", "box:~/dir name/large"); r.out != string(large) || r.exit != 0 {
			t.Errorf("exit %d, %d bytes: %s", r.exit, len(r.out), r.err)
		}
		if out := w.sh(h, "dana", "stat -c '%a %U %s' 'dir name/large'; ls -A 'dir name' | wc -l"); out != fmt.Sprintf("640 dana %d\n1\n", len(large)) {
			t.Errorf("%q", out)
		}
		if r := w.run("fleet", "file", "ls", "box:dir name", "--json"); r.exit != 0 || !strings.Contains(r.out, `"name": "large"`) {
			t.Error(r)
		}
		if r := w.run("fleet", "file", "cat", "box:/etc/shadow"); r.exit != 9 || !strings.Contains(r.err, "permission denied") {
			t.Error(r)
		}
		w.must("fleet", "file", "rm", "-r", "box:dir name")
		if r := w.run("fleet", "file", "ls", "box:dir name"); r.exit != 5 {
			t.Error(r)
		}
	})

	t.Run("copies", func(t *testing.T) {
		dir := t.TempDir()
		here := func(script string) {
			t.Helper()
			cmd := exec.Command("sh", "-ec", script)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", script, err, out)
			}
		}
		here(`mkdir -p 'from/a b/empty'; head -c 9000001 /dev/urandom >from/large; printf x >"from/a b/$(printf '\377')"
			ln -s ../large 'from/a b/link'; chmod 640 from/large; touch -d '2001-02-03 04:05:06.789' from/large 'from/a b'`)
		w.must("fleet", "cp", "-r", dir+"/from", "box:copied")
		if out := w.sh(h, "dana", "stat -c '%a %U %s %y' copied/large; readlink 'copied/a b/link'"); !strings.HasPrefix(out, "640 dana 9000001 2001-02-03 ") || !strings.HasSuffix(out, "\n../large\n") {
			t.Errorf("%q", out)
		}
		w.must("fleet", "cp", "-r", "box:copied", dir+"/back")
		here("diff -r --no-dereference from back")
		w.must("fleet", "cp", "box:copied/large", "box:") // through here
		w.sh(h, "dana", "cmp copied/large large")
		w.fails(9, "is a directory", "cp", "box:copied", dir+"/x")
		w.fails(9, "permission denied", "cp", dir+"/from/large", "box:/etc/large")
		w.sh(h, "dana", "rm -r copied large")
	})

	t.Run("watch", func(t *testing.T) { // R35
		w.sh(h, "dana", "mkdir -p watched/a")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := w.cmd(ctx, "fleet", "file", "watch", "box:watched", "--json")
		var said lockedBuffer
		cmd.Stderr = &said
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		events := json.NewDecoder(out)
		// until passes over what else is told of the same deeds.
		until := func(event string, path wire.Bytes) (ev wire.WatchEvent) {
			t.Helper()
			for {
				ev = wire.WatchEvent{}
				if err := events.Decode(&ev); err != nil {
					t.Fatalf("no %s of %s: %v: %s", event, path, err, said.String())
				}
				if ev.Event == event && ev.Path == path {
					return ev
				}
				if ev.Event == wire.WatchOverflow {
					t.Fatalf("%+v before %s of %s", ev, event, path)
				}
			}
		}
		if ev := until(wire.WatchReady, ""); ev.Root != "/home/dana/watched" || ev.Machine != doc.Machine.ID {
			t.Errorf("%+v", ev)
		}
		w.sh(h, "dana", "echo x >watched/a/one && mv watched/a/one watched/two && mkdir -p watched/n/m && echo y >watched/n/m/f && rm -r watched/n")
		until(wire.WatchCreated, "a/one")
		until(wire.WatchWritten, "a/one")
		if ev := until(wire.WatchRenamed, "two"); ev.From != "a/one" {
			t.Errorf("%+v", ev)
		}
		until(wire.WatchCreated, "n")
		until(wire.WatchRemoved, "n")
		// The connection is cut, and nothing is missed.
		w.sh(h, "dana", "pkill -KILL -u dana -x sshd; echo z >watched/meanwhile")
		until(wire.WatchWritten, "meanwhile")
		// Another agent knows nothing of what happened before it came.
		w.sh(h, "dana", "systemctl --user restart fleet-agent")
		for ev := (wire.WatchEvent{}); ev.Event != wire.WatchOverflow; {
			ev = wire.WatchEvent{}
			if err := events.Decode(&ev); err != nil {
				t.Fatalf("%v: %s", err, said.String())
			}
			if ev.Event == wire.WatchOverflow && ev.Reason != wire.OverflowResume {
				t.Errorf("%+v", ev)
			}
		}
		until(wire.WatchReady, "")
		cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 || !strings.Contains(said.String(), "reconnected") {
			t.Errorf("%v: %s", err, said.String())
		}
		w.sh(h, "dana", "rm -r watched")
	})

	t.Run("forward", func(t *testing.T) { // R31
		var agent wire.AgentStatus
		if err := json.Unmarshal([]byte(w.sh(h, "dana", "~/.local/share/fleet-agent/*/current/agentd status --json")), &agent); err != nil {
			t.Fatal(err)
		}
		session := strings.TrimSpace(w.must("fleet", "exec", "--detach", "box", "--", "sleep", "1000"))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := w.cmd(ctx, "fleet", "forward", "box", "0:"+agent.Socket, "--session", session, "--json")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var f wire.Forward
		if err := json.NewDecoder(out).Decode(&f); err != nil || f.Machine != doc.Machine.ID || f.Port == 0 {
			t.Fatal(f, err)
		}
		// Whoever reaches the port reaches the agent, and without a token no further.
		get := func() error {
			resp, err := http.Get("http://" + f.Listen + "/v1/identity")
			if err != nil {
				return err
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				return fmt.Errorf("status %d", resp.StatusCode)
			}
			return nil
		}
		if err := get(); err != nil {
			t.Error(err)
		}
		w.sh(h, "dana", "systemctl --user restart fleet-agent")
		w.poll("the port to lead there again", get)
		// The forward ends with its session.
		w.must("fleet", "kill", "box", session)
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
			t.Error(err)
		}
		if err := get(); err == nil {
			t.Error("the port is still open")
		}
		w.fails(2, "loopback", "forward", "box", "0.0.0.0:0:80")
	})

	t.Run("workspace", func(t *testing.T) { // R31, R33
		w.sh(h, "dana", "git init -q --bare -b main repo.git && git clone -q repo.git seed 2>/dev/null && cd seed && echo one >file && git add file && "+
			"git -c user.name=d -c user.email=d@x commit -q -m one && git push -q origin HEAD:main && cd .. && rm -rf seed")
		script, env := filepath.Join(w.dir, "prepare"), filepath.Join(w.dir, "env")
		if err := os.WriteFile(script, []byte("echo \"$FLEET_WORKSPACE $FLEET_BRANCH $SECRET\" >>../prepared\n[ ! -e stop ] || { echo there is a stop >&2; exit 3; }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(env, []byte("SECRET=s3cret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		path := strings.TrimSpace(w.must("fleet", "workspace", "create", "box", "task", "--repo", "/home/dana/repo.git#mine", "--root", "~/tasks", "--prepare", script))
		if path != "/home/dana/tasks/task" {
			t.Error(path)
		}
		in := []string{"exec", "-w", "task", "--env-file", env, "box", "--"}
		if r := w.run("fleet", append(in, "sh", "-c", "pwd; cat file; git branch --show-current; echo $FLEET_WORKSPACE; echo more >>file")...); r.out != path+"\none\nmine\ntask\n" {
			t.Error(r)
		}
		w.must("fleet", append(in, "grep", "-q", "more", "file")...)
		if s := w.sh(h, "dana", "cat tasks/prepared; grep -r s3cret .local/share/fleet-agent || true"); s != strings.Repeat("task mine s3cret\n", 2) {
			t.Errorf("%q", s)
		}
		w.sh(h, "dana", "touch tasks/task/stop")
		w.fails(255, "there is a stop", append(in, "touch", "/home/dana/started")...)
		w.sh(h, "dana", "[ ! -e started ] && rm tasks/task/stop")
		w.fails(255, "no workspace", "exec", "-w", "none", "box", "--", "true")
		session := strings.TrimSpace(w.must("fleet", "exec", "-w", "task", "--detach", "box", "--", "sleep", "1000"))
		if r := w.run("fleet", "workspace", "show", "box", "task", "--json"); !strings.Contains(r.out, `"sessions": 1`) {
			t.Error(r)
		}
		w.fails(9, "1 sessions run", "workspace", "rm", "box", "task")
		w.must("fleet", "kill", "box", session)
		w.poll("the workspace to be free", func() error {
			if r := w.run("fleet", "workspace", "rm", "box", "task"); r.exit != 0 {
				return fmt.Errorf("%s", r)
			}
			return nil
		})
		if s := w.sh(h, "dana", "ls tasks; ls -d .local/share/fleet-agent/*/sessions/"+session+" 2>/dev/null || true"); s != "prepared\n" {
			t.Errorf("%q", s)
		}
		if r := w.run("fleet", "workspace", "ls", "box"); r.exit != 0 || r.out != "" {
			t.Error(r)
		}
	})

	t.Run("exec", func(t *testing.T) { // R34
		r := w.input("in", "fleet", "exec", "-i", "box", "--", "sh", "-c", "cat; echo err >&2; exit 7")
		if r.out != "in" || r.err != "err\n" || r.exit != 7 {
			t.Error(r)
		}
		if r := w.run("fleet", "exec", "box", "--", "printf", "%s|", "a b", "$HOME", "", "it's"); r.out != "a b|$HOME||it's|" {
			t.Error(r)
		}
		if r := w.run("fleet", "exec", "box", "--", "sh", "-c", "kill -TERM $$"); r.exit != 128+15 {
			t.Error(r)
		}
		if r := w.run("fleet", "exec", "box", "--", "/nonexistent"); r.exit != 127 && r.exit != 255 {
			t.Error(r)
		}
		if r := w.run("fleet", "exec", "nobox", "--", "true"); r.exit != 255 || !strings.Contains(r.err, "nobox") {
			t.Error(r)
		}
	})

	t.Run("a loopback port, once somebody wants one", func(t *testing.T) { // R24, R31
		agentd := dataGlob + "/current/agentd"
		ask := func(account, token string) string {
			return w.sh(h, account, "bash -c 'exec 3<>/dev/tcp/127.0.0.1/7750 && printf \"GET /v1/status HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\nAuthorization: Bearer %s\\r\\n\\r\\n\" "+token+" >&3 && cat <&3' 2>/dev/null || echo refused")
		}
		if got := ask("dana", "x"); !strings.Contains(got, "refused") {
			t.Errorf("a port that nobody wanted: %q", got)
		}
		for _, addr := range []string{"0.0.0.0:7750", "localhost:7750", "[::]:7750", "[::ffff:127.0.0.1]:7750"} {
			w.fails(2, "loopback", w.installArgs(h, "dana", "box", "--listen", addr)...)
		}
		w.install(h, "dana", "box", "--listen", "127.0.0.1:7750")
		none := ask("root", "fa_none")
		if !strings.HasPrefix(none, "HTTP/1.1 401 ") || ask("dana", "x") != none {
			t.Errorf("without a token: %q", none)
		}
		w.must("fleet", "restart", "box")
		if got := ask("dana", strings.TrimSpace(w.sh(h, "dana", agentd+" token"))); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
			t.Errorf("with a token, after a restart: %q", got)
		}
		if out := w.sh(h, "root", "ss -Hltn 'sport = :7750'"); strings.Count(out, "\n") != 1 || !strings.Contains(out, "127.0.0.1:7750") {
			t.Errorf("it listens at %s", out)
		}
		w.install(h, "dana", "box", "--listen", "off")
		if got := ask("dana", "x"); !strings.Contains(got, "refused") {
			t.Errorf("a port that is off: %q", got)
		}
	})

	t.Run("a stop outlives a reboot, and only start ends it", func(t *testing.T) {
		w.must("fleet", "stop", "box")
		w.must("fleet", "wait", "box", "--for", "stopped", "--timeout", "30s")
		if m := w.show("box"); m.Lifecycle.Reason == nil || *m.Lifecycle.Reason != wire.ReasonPerson {
			t.Errorf("%+v", m.Lifecycle)
		}
		if err := h.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.fails(9, "stopped", append([]string{"install"}, w.dest(h, "dana")...)...)
		if m := w.show("box"); m.Lifecycle.State != wire.LifecycleStopped {
			t.Errorf("lifecycle %+v", m.Lifecycle)
		}
		w.must("fleet", "start", "box")
		w.must("fleet", "wait", "box", "--for", "present", "--timeout", "30s")
	})

	t.Run("a power cut is unknown, and the machine comes back by itself", func(t *testing.T) {
		if err := h.PowerCut(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.must("fleet", "wait", "box", "--for", "absent", "--timeout", "60s")
		if m := w.show("box"); m.Lifecycle.State != wire.LifecycleUnknown {
			t.Errorf("lifecycle %+v", m.Lifecycle)
		}
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.must("fleet", "wait", "box", "--for", "present", "--timeout", "60s")
	})

	t.Run("uninstall leaves nothing", func(t *testing.T) {
		id := w.show("box").ID
		w.must("fleet", "uninstall", "box")
		if left := w.sh(h, "root", "find /home/dana /etc /var/lib /run \\( -name '*fleet-agent*' -o -name 'agentd*' \\) 2>/dev/null; pgrep -a agentd || true; ls -d /home/dana/.local/share/fleet-agent/* /run/user/*/fleet-agent* 2>/dev/null || true"); strings.TrimSpace(left) != "" {
			t.Errorf("left on the host:\n%s", left)
		}
		w.fails(5, "deleted", "show", id)
		if n := len(w.machines()); n != 0 {
			t.Errorf("%d machines", n)
		}
		// R23: the installation can be admitted again.
		if doc := w.install(h, "dana", "box"); doc.Machine.ID == id {
			t.Error("a deleted machine's id came back")
		}
	})
	w.must("fleet", "audit", "verify")
}

// TestNothingLeaks looks for secrets and addresses where they must not be.
func TestNothingLeaks(t *testing.T) { // R1, R18
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan []byte, 1)
	go func() { // ends with stop
		var all []byte
		for ctx.Err() == nil {
			for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ"} {
				files, _ := filepath.Glob(pattern)
				for _, f := range files {
					b, _ := os.ReadFile(f)
					if len(all) < 256<<20 {
						all = append(append(all, b...), '\n')
					}
				}
			}
		}
		seen <- all
	}()
	w.install(h, "dana", "box")
	w.must("fleet", "exec", "box", "--", "true")
	stop()
	text := string(<-seen)

	data := strings.TrimSpace(w.sh(h, "dana", "echo ~/.local/share/fleet-agent/*"))
	var secrets []string
	for _, f := range []string{"credential", "credential.previous"} {
		var c wire.Credential
		if err := json.Unmarshal([]byte(w.sh(h, "dana", "cat "+data+"/"+f)), &c); err != nil || len(c.Secret) < 40 {
			t.Fatal(f, err)
		}
		secrets = append(secrets, c.Secret)
	}
	secrets = append(secrets, strings.TrimSpace(w.sh(h, "dana", "cat "+data+"/installation")))
	sessions, err := filepath.Glob(w.dir + "/home/.local/state/fleet/planes/*/session")
	if err != nil || len(sessions) != 1 {
		t.Fatal(sessions, err)
	}
	session, err := os.ReadFile(sessions[0])
	if err != nil {
		t.Fatal(err)
	}
	secrets = append(secrets, strings.TrimSpace(string(session)))

	where := map[string]string{
		"a command line or environment": text,
		"the plane's log":               w.log.String(),
		"the audit":                     w.must("fleet", "audit", "--json"),
		"the journal":                   w.sh(h, "root", "journalctl --no-pager -q"),
		"a unit file":                   w.sh(h, "root", "cat /home/dana/.config/systemd/user/*.service"),
		"the agent's log":               w.sh(h, "dana", "cat "+data+"/log/*"),
	}
	var plane strings.Builder
	err = filepath.WalkDir(w.dir+"/plane", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		plane.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	where["the plane's files"] = plane.String()
	for place, content := range where {
		if content == "" {
			t.Errorf("%s: nothing was read", place)
		}
		for i, s := range secrets {
			if strings.Contains(content, s) {
				t.Errorf("secret %d stands in %s", i, place)
			}
		}
	}
	for _, place := range []string{"the plane's files", "the plane's log", "the audit"} {
		for _, addr := range []string{h.Addr(), w.lab.RouterAddr()} {
			if strings.Contains(where[place], addr) {
				t.Errorf("the address %s stands in %s", addr, place)
			}
		}
	}
	if !strings.Contains(text, "fleet-host") {
		t.Error("the watch over command lines saw no fleet-host")
	}
	if tcp := w.sh(h, "root", "ss -ltnp | grep agentd || true"); tcp != "" {
		t.Errorf("agentd listens: %s", tcp)
	}
}

// TestSessionsOutliveTheAgent kills agentd while a session writes.
func TestSessionsOutliveTheAgent(t *testing.T) { // R34
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.install(h, "dana", "box")
	const script = "i=0; while [ $i -lt 20000 ]; do echo line $i of a long run; i=$((i+1)); done"
	out := w.must("fleet", "exec", "--detach", "--json", "box", "--", "sh", "-c", script+"; sleep 3; echo end")
	var s wire.Session
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err, out)
	}
	w.sh(h, "root", "kill -9 $(pgrep -x agentd)")
	w.must("fleet", "wait", "box", "--for", "present", "--timeout", "30s")
	w.poll("the agent again", func() error {
		if r := w.run("fleet", "sessions", "box"); r.exit != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	got := w.must("fleet", "attach", "box", s.ID, "--from", "0")
	var want strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&want, "line %d of a long run\n", i)
	}
	want.WriteString("end\n")
	if sha256.Sum256([]byte(got)) != sha256.Sum256([]byte(want.String())) {
		t.Errorf("%d bytes came back, want %d", len(got), want.Len())
	}
}

// TestPlaneOutageInterruptsNothing stops the plane and works on.
func TestPlaneOutageInterruptsNothing(t *testing.T) { // R5, R19
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.install(h, "dana", "box")
	w.endPlane(syscall.SIGKILL)
	if r := w.run("fleet", "exec", "box", "--", "echo", "on"); r.exit != 0 || r.out != "on\n" {
		t.Error(r)
	}
	w.fails(7, "", "ls")
	w.startPlane()
	if m := w.show("box"); m.Presence != wire.Present {
		t.Errorf("the plane's own outage made the machine %s", m.Presence)
	}
	begin := time.Now()
	w.must("fleet", "wait", "box", "--for", "present", "--timeout", "30s")
	t.Logf("heard again after %v", time.Since(begin))
}

// TestOutputThatNobodyReads closes the pipe that exec writes to, as head does.
func TestOutputThatNobodyReads(t *testing.T) { // R34
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.install(h, "dana", "box")
	for _, args := range [][]string{{"box"}, {"--all"}, {"--all", "--jsonl"}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := w.cmd(ctx, "fleet", append(append([]string{"exec"}, args...), "--", "yes")...)
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		c.Stdout, c.Stderr = write, &said
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		write.Close()
		read.Read(make([]byte, 1))
		read.Close()
		c.Wait()
		if c.ProcessState.ExitCode() != 141 || said.Len() > 0 {
			t.Errorf("exec %s: %s, said %q", args, c.ProcessState, said.String())
		}
	}
	w.poll("an end of the commands", func() error {
		if r := w.run("fleet", "exec", "box", "--", "pgrep", "-x", "yes"); r.exit != 1 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})

	var s wire.Session
	if err := json.Unmarshal([]byte(w.must("fleet", "exec", "--detach", "--json", "box", "--", "sh", "-c", "echo up; exec sleep 600")), &s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := w.cmd(ctx, "fleet", "attach", "box", s.ID)
	var out lockedBuffer
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.poll("output", func() error {
		if !strings.Contains(out.String(), "up") {
			return errors.New("none")
		}
		return nil
	})
	c.Process.Signal(syscall.SIGINT)
	c.Wait()
	if c.ProcessState.ExitCode() != 130 {
		t.Errorf("an interrupted attach: %s", c.ProcessState)
	}
	if r := w.run("fleet", "kill", "box", s.ID); r.exit != 0 {
		t.Error("an interrupted attach ended the session: ", r)
	}
}
