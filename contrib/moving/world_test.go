package moving_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/programs"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

var bin string

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, &bin, func(dir string) error {
		return programs.Build(dir, nil, "agentd", "agentd-shim", "planed", "fleet", "fleet-front", "fleet-host")
	}))
}

// patience bounds every wait; nothing here is that slow.
const patience = 3 * time.Minute

// process is a program that runs until it is ended.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  *programs.Output
}

func run(t *testing.T, log *programs.Output, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(filepath.Join(bin, name), args...), done: make(chan struct{}), log: log}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(p.done); p.cmd.Wait() }() // end waits for it
	return p
}

func (p *process) end(sig syscall.Signal) {
	if p == nil {
		return
	}
	p.cmd.Process.Signal(sig)
	<-p.done
}

// world is a plane, and a person's fleet that is logged in to it.
type world struct {
	t     *testing.T
	root  string
	data  string // the plane's
	url   string
	pin   string
	key   string // the person's, and key+".pub"
	env   []string
	args  []string // of planed serve
	plane *process
	log   programs.Output
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func newKey(t *testing.T, file string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{file: pem.EncodeToMemory(block), file + ".pub": ssh.MarshalAuthorizedKey(signer.PublicKey())} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	root, err := os.MkdirTemp("", "fv") // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, root: root, data: root + "/plane", key: root + "/key"}
	t.Cleanup(func() {
		w.plane.end(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the plane's log:\n%s", w.log.String())
		}
		os.RemoveAll(root)
	})
	home := root + "/home"
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	w.env = []string{"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH"), "XDG_STATE_HOME=" + home + "/state", "XDG_RUNTIME_DIR=" + home}
	newKey(t, w.key)
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	w.url = "https://localhost:" + port
	var doc wire.Plane
	if err := json.Unmarshal([]byte(w.must("planed", "init", "--data", w.data, "--url", w.url, "--owner", "dana", "--json")), &doc); err != nil {
		t.Fatal(err)
	}
	w.pin = doc.CAPin
	w.args = append([]string{"serve", "--data", w.data, "--listen", addr, "--check-interval", "1s", "--test-floor", "200ms"}, flags...)
	w.serve()
	w.must("fleet", "login", w.url, "--ca-pin", w.pin, "--invite-file", doc.InviteFile, "--key", w.key)
	return w
}

func (w *world) serve() {
	w.t.Helper()
	w.plane = run(w.t, &w.log, w.env, "planed", w.args...)
	w.poll("the plane to serve", func() error {
		if _, _, exit := w.run("", "planed", "status", "--data", w.data); exit != 0 {
			select {
			case <-w.plane.done:
				w.t.Fatalf("the plane ended: %s", w.log.String())
			default:
			}
			return errors.New("it does not")
		}
		return nil
	})
}

// run runs a program to its end.
func (w *world) run(stdin, name string, args ...string) (out, errOut string, exit int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	cmd.Env = w.env
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &o, &e
	err := cmd.Run()
	var x *exec.ExitError
	if err != nil && !errors.As(err, &x) {
		w.t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func (w *world) must(name string, args ...string) string {
	w.t.Helper()
	out, errOut, exit := w.run("", name, args...)
	if exit != 0 {
		w.t.Fatalf("%s %s: exit %d: %s%s", name, strings.Join(args, " "), exit, out, errOut)
	}
	return out
}

// fails runs fleet to an exit code, and wants words in what it says.
func (w *world) fails(exit int, words string, args ...string) {
	w.t.Helper()
	out, errOut, got := w.run("", "fleet", args...)
	if got != exit || !strings.Contains(out+errOut, words) {
		w.t.Fatalf("fleet %s: exit %d, not %d, or without %q:\n%s%s", strings.Join(args, " "), got, exit, words, out, errOut)
	}
}

func (w *world) poll(what string, f func() error) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("waited for %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (w *world) rotation(kind string) (r wire.MaterialRotation) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(w.must("fleet", "rotate", kind, "--status", "--json")), &r); err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) show(name string) (m wire.Machine) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(w.must("fleet", "show", name, "--json")), &m); err != nil {
		w.t.Fatal(err)
	}
	return m
}

// client is the person's, to admit machines without SSH.
func (w *world) client() *planeclient.Client {
	w.t.Helper()
	p, err := state.DirsOf(func(k string) string {
		for _, e := range w.env {
			if v, ok := strings.CutPrefix(e, k+"="); ok {
				return v
			}
		}
		return ""
	}).OpenPlane("")
	if err != nil {
		w.t.Fatal(err)
	}
	token, err := p.Session()
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := planeclient.New(planeclient.Options{URL: p.URL(), RootsPEM: p.RootsPEM(), Token: token})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

// agent is one machine.
type agent struct {
	w         *world
	name      string
	data, run string
	process   *process
	log       programs.Output
}

// agent makes a machine and starts it.
func (w *world) agent(name, roots string) *agent {
	w.t.Helper()
	a := &agent{w: w, name: name, data: w.root + "/" + name + "/d", run: w.root + "/" + name + "/r"}
	if err := os.MkdirAll(a.data, 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Symlink(bin, a.data+"/current"); err != nil {
		w.t.Fatal(err)
	}
	cred := secret.New("fm_")
	c := w.client()
	got, err := c.Admit(w.t.Context(), wire.AdmitRequest{InstallationDigest: secret.New("").Digest().Hex(), CredentialDigest: cred.Digest().Hex(), Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	doc, err := json.Marshal(wire.Credential{Schema: wire.SchemaCredential, Machine: got.Machine, Generation: 1, Secret: cred.Reveal(),
		Plane: wire.CredentialPlane{URL: c.URL(), RootsPEM: roots}, Gate: got.Gate})
	if err != nil {
		w.t.Fatal(err)
	}
	if out, errOut, exit := w.run(string(doc), "agentd", "credential", "install", "--data", a.data, "--runtime", a.run); exit != 0 {
		w.t.Fatal(out, errOut)
	}
	w.t.Cleanup(func() {
		a.stop()
		if w.t.Failed() {
			w.t.Logf("%s's log:\n%s", name, a.log.String())
		}
	})
	a.start()
	return a
}

func (a *agent) start() {
	a.w.t.Helper()
	a.process = run(a.w.t, &a.log, a.w.env, "agentd", "run", "--data", a.data, "--runtime", a.run)
	a.w.poll(a.name+" to check", func() error {
		if m := a.w.show(a.name); m.Presence != wire.Present {
			return errors.New(m.Presence)
		}
		return nil
	})
}

// stop is a machine that falls asleep: no last word.
func (a *agent) stop() {
	if a.process != nil {
		a.process.end(syscall.SIGKILL)
		a.process = nil
	}
}

// takes has the machine take statements of the person's key.
func (a *agent) takes(keyFile string) {
	a.w.t.Helper()
	b, err := os.ReadFile(keyFile + ".pub")
	if err == nil {
		err = os.WriteFile(a.data+"/signers", b, 0o600)
	}
	if err != nil {
		a.w.t.Fatal(err)
	}
}

func (a *agent) plane() (p wire.CredentialPlane) {
	a.w.t.Helper()
	b, err := os.ReadFile(a.data + "/plane.json")
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		a.w.t.Fatal(err)
	}
	return p
}

// at waits until the machine is at a URL and checks there.
func (a *agent) at(url string, version int64) {
	a.w.t.Helper()
	a.w.poll(fmt.Sprintf("%s to be at %s", a.name, url), func() error {
		if p := a.plane(); p.URL != url || p.URLVersion != version {
			return fmt.Errorf("%s, version %d", p.URL, p.URLVersion)
		}
		return nil
	})
}

// door forwards connections to another address, until it is shut.
type door struct {
	l  net.Listener
	wg sync.WaitGroup
	mu sync.Mutex
	in map[net.Conn]bool
}

func openDoor(t *testing.T, to string) *door {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{l: l, in: map[net.Conn]bool{}}
	d.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.wg.Go(func() { d.pass(c, to) })
		}
	})
	t.Cleanup(d.shut)
	return d
}

func (d *door) pass(c net.Conn, to string) {
	far, err := net.Dial("tcp", to)
	if err != nil {
		c.Close()
		return
	}
	d.mu.Lock()
	d.in[c], d.in[far] = true, true
	d.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(far, c); far.Close(); c.Close() })
	wg.Go(func() { io.Copy(c, far); far.Close(); c.Close() })
	wg.Wait()
}

func (d *door) url() string { return "https://" + d.l.Addr().String() }

func (d *door) shut() {
	d.l.Close()
	d.mu.Lock()
	for c := range d.in {
		c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }
