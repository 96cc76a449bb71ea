package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// bin is the directory of the programs, with artifacts/ in it.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if lab.Available() != nil {
		return m.Run() // every test says why it is skipped
	}
	if bin = os.Getenv("FLEET_BIN"); bin == "" {
		root, err := filepath.Abs("../..")
		if err == nil {
			cmd := exec.Command("make", "-s", "artifact-linux-"+runtime.GOARCH)
			cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stderr, os.Stderr
			err = cmd.Run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cannot build the programs:", err)
			return 1
		}
		bin = filepath.Join(root, "bin")
	}
	// Tests that say that they may run at once wait more than they compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// world is a lab with a plane and an operator who is logged in.
type world struct {
	t     *testing.T
	lab   *lab.Lab
	dir   string // the operator's, and the plane's data
	url   string
	pin   string
	args  []string // of planed serve
	plane *exec.Cmd
	log   *lockedBuffer
	env   []string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldAt(t, func(_ context.Context, l *lab.Lab) (string, error) { return l.PlaneAddr(), nil })
}

// newWorldAt is a world whose plane is at an address of its lab.
func newWorldAt(t *testing.T, at func(context.Context, *lab.Lab) (string, error)) *world {
	t.Helper()
	lab.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := lab.New(ctx, t, lab.Options{Label: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	dir, err := os.MkdirTemp("/tmp", "fe2e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, lab: l, dir: dir, log: &lockedBuffer{}}
	w.env = []string{"HOME=" + dir + "/home", "PATH=" + bin + ":/usr/bin:/bin:/usr/sbin:/sbin", "FLEET_NO_INPUT=1",
		"FLEET_NO_MUX=1", // a terminal at this test must not make a difference; tests of the mux take it away
		"LANG=C.UTF-8"}
	if err := os.MkdirAll(dir+"/home", 0o700); err != nil {
		t.Fatal(err)
	}
	addr, err := at(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	listen := net.JoinHostPort(addr, "8443")
	w.url = "https://" + listen
	out := w.must("planed", "init", "--data", dir+"/plane", "--url", w.url, "--owner", "dana", "--json")
	var p wire.Plane
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err, out)
	}
	w.pin = p.CAPin
	w.args = []string{"serve", "--data", dir + "/plane", "--listen", listen, "--test-floor", "200ms", "--check-interval", "500ms"}
	w.startPlane()
	t.Cleanup(w.stopPlane)
	w.must("fleet", "login", w.url, "--ca-pin", w.pin, "--invite-file", p.InviteFile, "--key", l.KeyPath())
	return w
}

func (w *world) startPlane() {
	w.t.Helper()
	w.plane = exec.Command(filepath.Join(bin, "planed"), w.args...)
	w.plane.Stderr, w.plane.Env = w.log, w.env
	if err := w.plane.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.poll("a listening plane", func() error {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(w.url, "https://"), time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

func (w *world) stopPlane() { w.endPlane(syscall.SIGTERM) }

func (w *world) endPlane(sig syscall.Signal) {
	if w.plane == nil {
		return
	}
	w.plane.Process.Signal(sig)
	w.plane.Wait()
	w.plane = nil
}

func (w *world) poll(what string, f func() error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 60*time.Second)
	defer cancel()
	if err := lab.Poll(ctx, f); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// result is how a program ended.
type result struct {
	out, err string
	exit     int
}

func (r result) String() string {
	return fmt.Sprintf("exit %d\nstdout: %s\nstderr: %s", r.exit, r.out, r.err)
}

func (w *world) cmd(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	c.Env = w.env
	c.WaitDelay = 5 * time.Second
	return c
}

func (w *world) run(name string, args ...string) result { return w.input("", name, args...) }

func (w *world) input(stdin, name string, args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 2*time.Minute)
	defer cancel()
	c := w.cmd(ctx, name, args...)
	var out, errOut bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errOut
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("%s %v: %v", name, args, err)
	}
	if ctx.Err() != nil {
		w.t.Fatalf("%s %v hangs: %s", name, args, errOut.String())
	}
	return result{out.String(), errOut.String(), c.ProcessState.ExitCode()}
}

func (w *world) must(name string, args ...string) string {
	w.t.Helper()
	r := w.run(name, args...)
	if r.exit != 0 {
		w.t.Fatalf("%s %s: %s", name, strings.Join(args, " "), r)
	}
	return r.out
}

// fails runs fleet and holds its exit code and words.
func (w *world) fails(exit int, words string, args ...string) result {
	w.t.Helper()
	r := w.run("fleet", args...)
	if r.exit != exit || !strings.Contains(r.err, words) {
		w.t.Errorf("fleet %s: want exit %d and %q: %s", strings.Join(args, " "), exit, words, r)
	}
	return r
}

func (w *world) host(spec lab.HostSpec) *lab.Host {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if spec.Name == "" {
		spec.Name = "h1"
	}
	if spec.Accounts == nil {
		spec.Accounts = []lab.Account{{Name: "dana"}}
	}
	h, err := w.lab.Host(ctx, spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

// sh runs a script on a host as an account, without SSH.
func (w *world) sh(h *lab.Host, account, script string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), time.Minute)
	defer cancel()
	out, err := h.Exec(ctx, account, "sh", "-c", script)
	if err != nil {
		w.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return out
}

func (w *world) fingerprint(h *lab.Host) string {
	w.t.Helper()
	for _, k := range h.HostKeys() {
		if strings.HasPrefix(k, "ssh-ed25519 ") {
			c := exec.Command("ssh-keygen", "-lf", "-")
			c.Stdin = strings.NewReader(k + "\n")
			out, err := c.Output()
			if err != nil {
				w.t.Fatal(err)
			}
			return strings.Fields(string(out))[1]
		}
	}
	w.t.Fatal("no ed25519 host key")
	return ""
}

// dest is the command line that reaches an account on a host.
func (w *world) dest(h *lab.Host, account string) []string {
	return []string{account + "@" + h.Addr(), "-i", w.lab.KeyPath()}
}

func (w *world) installArgs(h *lab.Host, account, name string, more ...string) []string {
	a := append([]string{"install"}, w.dest(h, account)...)
	return append(append(a, "--name", name, "--fingerprint", w.fingerprint(h)), more...)
}

func (w *world) install(h *lab.Host, account, name string, more ...string) wire.Install {
	w.t.Helper()
	out := w.must("fleet", w.installArgs(h, account, name, append(more, "--json")...)...)
	var doc wire.Install
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		w.t.Fatal(err)
	}
	return doc
}

func (w *world) show(name string) wire.Machine {
	w.t.Helper()
	var m wire.Machine
	if err := json.Unmarshal([]byte(w.must("fleet", "show", name, "--json")), &m); err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) machines() []wire.Machine {
	w.t.Helper()
	var m wire.Machines
	if err := json.Unmarshal([]byte(w.must("fleet", "ls", "--json")), &m); err != nil {
		w.t.Fatal(err)
	}
	return m.Machines
}
