package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/contrib/lab/wan"
	"fleet.example/fleet/core/quick"
	"fleet.example/fleet/core/wire"
)

// shared lets the world's commands share connections, and starts sharing.
func (w *world) shared() {
	w.t.Helper()
	w.env = append(slices.DeleteFunc(slices.Clone(w.env), func(v string) bool { return v == "FLEET_NO_MUX=1" }),
		"XDG_RUNTIME_DIR="+w.dir+"/run")
	if err := os.Mkdir(w.dir+"/run", 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.must("fleet", "mux", "start")
	w.t.Cleanup(func() {
		m := w.mux()
		w.must("fleet", "mux", "stop")
		if m.PID > 0 {
			w.ended(m.PID)
		}
	})
}

func (w *world) mux() wire.Mux {
	w.t.Helper()
	var m wire.Mux
	if err := json.Unmarshal([]byte(w.must("fleet", "mux", "status", "--json")), &m); err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) ended(pid int) {
	w.t.Helper()
	w.poll(fmt.Sprintf("the end of process %d", pid), func() error {
		if syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("it runs")
		}
		return nil
	})
}

func (w *world) sshConnections(h *lab.Host) int {
	w.t.Helper()
	return strings.Count(w.sh(h, "root", "ps -C sshd -o args= || true")+"\n", "sshd: dana\n") +
		strings.Count(w.sh(h, "root", "ps -C sshd -o args= || true"), "sshd: dana@")
}

// listenIn has what the server sends to the next front that hands it a command
// go through this process, and returns which frames there were.
func (w *world) listenIn() (frames func() string) {
	w.t.Helper()
	found, err := filepath.Glob(w.dir + "/run/fleet/quick-*.sock")
	if err != nil || len(found) != 1 {
		w.t.Fatalf("%v %v", found, err)
	}
	at, real := found[0], found[0]+".real"
	if err := os.Rename(at, real); err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("unix", at)
	if err != nil {
		w.t.Fatal(err)
	}
	kinds := make(chan string, 1)
	go func() { // ends with the one front, or with the listener
		defer close(kinds)
		front, err := l.Accept()
		if err != nil {
			return
		}
		defer front.Close()
		server, err := net.Dial("unix", real)
		if err != nil {
			return
		}
		defer server.Close()
		go io.Copy(server, front) // ends with either
		var saw strings.Builder
		for {
			kind, p, err := quick.ReadFrame(server, nil)
			if err != nil {
				break
			}
			saw.WriteByte(kind)
			b, _ := quick.AppendFrame(nil, kind, p)
			if _, err := front.Write(b); err != nil {
				break
			}
		}
		kinds <- saw.String()
	}()
	return func() string {
		l.Close() // and removes its socket
		if err := os.Rename(real, at); err != nil {
			w.t.Error(err)
		}
		return <-kinds
	}
}

func TestSharedConnections(t *testing.T) { // R5, R31, R32
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.install(h, "dana", "box")
	w.shared()

	// Any number of commands, also at once, is one connection.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if r := w.run("fleet", "exec", "box", "--", "echo", "hello"); r.out != "hello\n" || r.exit != 0 {
				t.Error(r)
			}
		})
	}
	wg.Wait()
	var m wire.Mux
	w.poll("one connection that nobody uses any more", func() error {
		m = w.mux()
		if len(m.Connections) != 1 || m.Connections[0].State != wire.MuxConnected || m.Connections[0].Clients != 0 || w.sshConnections(h) != 1 {
			return fmt.Errorf("%+v, %d connections at the host", m, w.sshConnections(h))
		}
		return nil
	})

	// A plain command is done by the server, with the front's streams, signals
	// and exit code; one whose server is killed under it goes on by itself.
	// A server that takes its time is not waited for, so it is asked again.
	w.poll("a command that the server does", func() error {
		seen := w.listenIn()
		if r := w.run("fleet", "exec", "box", "--", "sh", "-c", "echo out; echo err >&2; kill -KILL $$"); r.out != "out\n" || r.err != "err\n" || r.exit != 137 {
			t.Error(r)
		}
		if got := seen(); got[:min(1, len(got))] != string(rune(quick.Begin)) || !strings.HasSuffix(got, "x") || !strings.Contains(got, "o") || !strings.Contains(got, "e") {
			return fmt.Errorf("the server sent %q", got)
		}
		return nil
	})
	told := w.cmd(t.Context(), "fleet", "exec", "box", "--", "sh", "-c", "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
	var said lockedBuffer
	told.Stdout = &said
	if err := told.Start(); err != nil {
		t.Fatal(err)
	}
	w.poll("a command that waits", func() error {
		if said.String() != "ready\n" {
			return fmt.Errorf("%q", said.String())
		}
		return nil
	})
	told.Process.Signal(syscall.SIGTERM)
	if told.Wait(); told.ProcessState.ExitCode() != 9 || said.String() != "ready\ncaught\n" {
		t.Errorf("%v: %q", told.ProcessState, said.String())
	}

	// Input, output, exit codes and signals go through unchanged.
	if r := w.input("in\x00put", "fleet", "exec", "-i", "box", "--", "sh", "-c", "cat; echo err >&2; exit 3"); r.out != "in\x00put" || r.err != "err\n" || r.exit != 3 {
		t.Error(r)
	}

	// An agent that restarts has other tokens and lost what was kept ready.
	w.must("fleet", "restart", "box")
	if r := w.run("fleet", "exec", "box", "--", "echo", "again"); r.out != "again\n" {
		t.Error(r)
	}
	w.must("fleet", "stop", "box")
	w.fails(255, "stopped", "exec", "box", "--", "true")
	w.must("fleet", "start", "box")
	w.must("fleet", "exec", "box", "--", "true")
	if again := w.mux(); again.PID != m.PID || len(again.Connections) != 1 {
		t.Errorf("%+v", again)
	}

	// The server that was killed is replaced, or done without where nobody is
	// at a terminal; a stale socket is in nobody's way. What it was doing goes on.
	counting := w.cmd(t.Context(), "fleet", "exec", "box", "--", "sh", "-c", "i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.02; done; exit 5")
	var counted lockedBuffer
	counting.Stdout = &counted
	if err := counting.Start(); err != nil {
		t.Fatal(err)
	}
	w.poll("some output", func() error {
		if !strings.Contains(counted.String(), "5\n") {
			return fmt.Errorf("%q", counted.String())
		}
		return nil
	})
	// So do a watch, an attached session, and what a forward's port leads to.
	w.sh(h, "dana", "mkdir watched")
	mint := strings.TrimSpace(w.sh(h, "root", "find /run/user -name mint.sock"))
	s := w.detach("box", "until [ -e watched/end ]; do sleep 0.05; done; echo end")
	type left struct {
		*exec.Cmd
		out lockedBuffer
	}
	begin := func(args ...string) *left {
		l := &left{Cmd: w.cmd(t.Context(), "fleet", args...)}
		l.Stdout = &l.out
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		return l
	}
	says := func(l *left, words string) {
		t.Helper()
		w.poll(words, func() error {
			if !strings.Contains(l.out.String(), words) {
				return fmt.Errorf("%q", l.out.String())
			}
			return nil
		})
	}
	watching, forwarding, attached := begin("file", "watch", "--json", "box:watched"), begin("forward", "--json", "box", "0:"+mint), begin("attach", "box", s.ID)
	says(watching, "ready")
	says(forwarding, "\n")
	var port wire.Forward
	if err := json.Unmarshal([]byte(forwarding.out.String()), &port); err != nil {
		t.Fatal(err)
	}
	reaches := func() {
		t.Helper()
		w.poll("the forward", func() error {
			c, err := net.Dial("tcp", port.Listen)
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			io.WriteString(c, "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
			b := make([]byte, 12)
			if _, err := io.ReadFull(c, b); err != nil || string(b) != "HTTP/1.1 200" {
				return fmt.Errorf("%q %v", b, err)
			}
			return nil
		})
	}
	reaches()
	syscall.Kill(m.PID, syscall.SIGKILL)
	w.ended(m.PID)
	reaches()
	w.sh(h, "dana", "touch watched/end")
	says(watching, `"created"`)
	if err := attached.Wait(); err != nil || attached.out.String() != "end\n" {
		t.Errorf("an attached session: %v %q", err, attached.out.String())
	}
	for _, l := range []*left{watching, forwarding} {
		l.Process.Signal(syscall.SIGINT)
		l.Wait()
	}
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintln(&want, i)
	}
	if counting.Wait(); counting.ProcessState.ExitCode() != 5 || counted.String() != want.String() {
		t.Errorf("%v: %q", counting.ProcessState, counted.String())
	}
	w.must("fleet", "exec", "box", "--", "true")
	if again := w.mux(); again.Running {
		t.Errorf("a server was started with nobody at a terminal: %+v", again)
	}
	w.must("fleet", "mux", "start")
	w.must("fleet", "exec", "box", "--", "true")

	// Another destination: what is attached goes on over the old one, and is counted.
	long := w.cmd(t.Context(), "fleet", "exec", "box", "--", "sh", "-c", "while [ ! -e gone ]; do sleep 0.05; done; echo end")
	var out lockedBuffer
	long.Stdout = &out
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	w.poll("an attached command", func() error {
		if c := w.mux().Connections; len(c) != 1 || c[0].Clients != 1 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	other := "ssh://dana@" + h.Addr()
	r := w.run("fleet", "host", "link", "box", other, "-i", w.lab.KeyPath())
	if r.exit != 0 || !strings.Contains(r.err, "1 attached over dana@") {
		t.Error(r)
	}
	w.must("fleet", "exec", "box", "--", "touch", "gone")
	if err := long.Wait(); err != nil || out.String() != "end\n" {
		t.Errorf("%v: %q", err, out.String())
	}

	// Who forgets a key has no connection with it left open.
	w.must("fleet", "trust", "rm", h.Addr())
	w.fails(255, "host key unknown", "exec", "box", "--", "true")
	w.must("fleet", append(append([]string{"trust"}, w.dest(h, "dana")...), "--fingerprint", w.fingerprint(h))...)
	w.must("fleet", "exec", "box", "--", "true")

	// Nor who logged out.
	w.must("fleet", "logout")
	w.poll("closed connections", func() error {
		if n := w.sshConnections(h); n != 0 {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
}

func TestOneServerHoweverManyStartIt(t *testing.T) { // R32
	w := newWorld(t)
	w.shared()
	w.must("fleet", "mux", "stop")
	pids := make([]int, 12)
	var wg sync.WaitGroup
	for i := range pids {
		wg.Go(func() {
			var m wire.Mux
			r := w.run("fleet", "mux", "start", "--json")
			if err := json.Unmarshal([]byte(r.out), &m); err != nil {
				t.Error(r)
			}
			pids[i] = m.PID
		})
	}
	wg.Wait()
	if slices.Sort(pids); pids[0] == 0 || pids[0] != pids[len(pids)-1] {
		t.Errorf("they found different servers: %v", pids)
	}

	// One that is stopped does not say that it runs.
	var m wire.Mux
	if err := json.Unmarshal([]byte(w.must("fleet", "mux", "stop", "--json")), &m); err != nil || m.Running || m.PID != pids[0] || len(m.Connections) != 0 {
		t.Errorf("%+v %v", m, err)
	}
	w.ended(pids[0])

	// One that nobody finds any more ends, when its socket is gone and when the
	// whole directory is; what comes meanwhile has another.
	for _, lose := range []func(socket string) error{os.Remove, func(socket string) error { return os.RemoveAll(filepath.Dir(socket)) }} {
		if err := json.Unmarshal([]byte(w.must("fleet", "mux", "start", "--json")), &m); err != nil || !m.Running {
			t.Fatalf("%+v %v", m, err)
		}
		first := m.PID
		if err := lose(m.Socket); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(w.must("fleet", "mux", "start", "--json")), &m); err != nil || m.PID == first {
			t.Errorf("%+v %v", m, err)
		}
		w.ended(first)
		if now := w.mux(); now.PID != m.PID {
			t.Errorf("%+v, and %d was started", now, m.PID)
		}
	}
}

// A fleet that was installed later takes over; what runs over the old server
// goes on until it ends.
func TestNewerFleetTakesOver(t *testing.T) { // R32
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.install(h, "dana", "box")
	w.shared()
	old := w.mux().PID
	long := w.cmd(t.Context(), "fleet", "exec", "box", "--", "sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.05; done; echo done")
	var out lockedBuffer
	long.Stdout = &out
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	w.poll("the first line", func() error {
		if out.String() != "up\n" {
			return fmt.Errorf("%q", out.String())
		}
		return nil
	})

	// The same programs, written again.
	newer := filepath.Join(w.dir, "newer")
	w.sys("cp", "-R", bin, newer)
	if err := os.Chtimes(filepath.Join(newer, "fleet-host"), time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	// It must be the program at the same place, or it would be another world.
	moved := filepath.Join(w.dir, "bin")
	if err := os.Rename(newer, moved); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		c := exec.Command(filepath.Join(moved, "fleet"), args...)
		c.Env = w.env
		b, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		return string(b)
	}
	run("mux", "start")
	run("exec", "box", "--", "true")
	if err := os.Chtimes(filepath.Join(moved, "fleet-host"), time.Time{}, time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	var before, after wire.Mux
	json.Unmarshal([]byte(run("mux", "status", "--json")), &before)
	run("mux", "start")
	json.Unmarshal([]byte(run("mux", "status", "--json")), &after)
	if before.PID == 0 || after.PID == 0 || before.PID == after.PID {
		t.Errorf("server %d before, %d after", before.PID, after.PID)
	}
	w.ended(before.PID)
	run("exec", "box", "--", "true")
	run("mux", "stop")

	if w.mux().PID != old {
		t.Error("another installation's server was touched")
	}
	w.sh(h, "dana", "touch go")
	if err := long.Wait(); err != nil || out.String() != "up\ndone\n" {
		t.Errorf("%v: %q", err, out.String())
	}
}

// A connection that is reset under running commands comes back once for all of
// them, and not one byte is lost or shown twice. One that stalls without a
// word is noticed and comes back too.
func TestConnectionsThatBreak(t *testing.T) { // R32, R34
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	proxy, err := wan.Listen(t.Context(), w.lab.PlaneAddr()+":0", net.JoinHostPort(h.Addr(), "22"), wan.Profile{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	_, port, _ := net.SplitHostPort(proxy.Addr())
	w.must("fleet", "install", "dana@"+w.lab.PlaneAddr(), "-p", port, "-i", w.lab.KeyPath(), "--name", "box", "--fingerprint", w.fingerprint(h),
		"-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3")
	w.shared()

	const lines = 400
	type follower struct {
		out, err lockedBuffer
		cmd      *exec.Cmd
	}
	all := make([]*follower, 3)
	for i := range all {
		f := &follower{}
		f.cmd = w.cmd(t.Context(), "fleet", "exec", "box", "--", "sh", "-c",
			fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i; if [ $((i%%100)) = 0 ]; then until [ -e go$((i/100)) ]; do sleep 0.05; done; fi; done", lines))
		f.cmd.Stdout, f.cmd.Stderr = &f.out, &f.err
		if err := f.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all[i] = f
	}
	w.poll("output", func() error {
		for _, f := range all {
			if !strings.Contains(f.out.String(), "line 60\n") {
				return fmt.Errorf("%q, %s", f.out.String(), f.err.String())
			}
		}
		return nil
	})
	proxy.Reset()
	w.sh(h, "dana", "touch go1")
	w.poll("more output", func() error {
		for _, f := range all {
			if !strings.Contains(f.out.String(), "line 200\n") {
				return fmt.Errorf("%q, %s", f.out.String(), f.err.String())
			}
		}
		return nil
	})
	proxy.Stall()
	w.sh(h, "dana", "touch go2 go3 go4")
	w.poll("a word about the stall", func() error {
		for _, f := range all {
			if strings.Count(f.err.String(), "connection lost") < 2 {
				return fmt.Errorf("%s", f.err.String())
			}
		}
		return nil
	})
	proxy.Flow()
	proxy.Reset()
	var want bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	for _, f := range all {
		if err := f.cmd.Wait(); err != nil || f.out.String() != want.String() {
			t.Errorf("%v: %d of %d bytes: %s", err, len(f.out.String()), want.Len(), f.err.String())
		}
	}
	if n := w.sshConnections(h); n != 1 {
		t.Errorf("%d connections are open at the host", n)
	}

	// What is not there is one failure for all, in words, and no second hang.
	proxy.Refuse(true)
	proxy.Reset()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { w.fails(255, "reach", "exec", "box", "--", "true") })
	}
	wg.Wait()
	if c := w.mux().Connections; len(c) != 1 || c[0].State != wire.MuxDown || c[0].Error == "" {
		t.Errorf("%+v", c)
	}
	proxy.Refuse(false)
	w.must("fleet", "exec", "box", "--", "true")
}

// TestNATThatForgets drops a connection's packets under a running command, as a
// flushed conntrack table does, with nothing but the defaults to notice it by:
// the command goes on over a new connection and loses no byte.
func TestNATThatForgets(t *testing.T) { // R32, R34
	t.Parallel()
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	proxy, err := wan.Listen(t.Context(), w.lab.PlaneAddr()+":0", net.JoinHostPort(h.Addr(), "22"), wan.Profile{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	_, port, _ := net.SplitHostPort(proxy.Addr())
	w.must("fleet", "install", "dana@"+w.lab.PlaneAddr(), "-p", port, "-i", w.lab.KeyPath(), "--name", "box", "--fingerprint", w.fingerprint(h))
	w.shared()

	var out, errOut lockedBuffer
	c := w.cmd(t.Context(), "fleet", "exec", "box", "--", "sh", "-c", "echo one; read line; echo two; sleep 1; echo three")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = &out, &errOut
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said := func(b *lockedBuffer, what string) func() error {
		return func() error {
			if !strings.Contains(b.String(), what) {
				return fmt.Errorf("stdout %q, stderr %q", out.String(), errOut.String())
			}
			return nil
		}
	}
	w.poll("output", said(&out, "one\n"))
	proxy.Forget()
	begin := time.Now()
	if _, err := io.WriteString(in, "go\n"); err != nil { // lost on the way, and sent again
		t.Fatal(err)
	}
	w.poll("a word about the loss", said(&errOut, "connection lost"))
	t.Logf("noticed after %v", time.Since(begin))
	in.Close()
	if err := c.Wait(); err != nil || out.String() != "one\ntwo\nthree\n" {
		t.Errorf("%v: %q, %s", err, out.String(), errOut.String())
	}
	w.must("fleet", "exec", "box", "--", "true")
}
