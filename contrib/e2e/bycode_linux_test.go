package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// elsewhere is the same plane seen by an operator at another machine, who knows
// it and is logged in no more.
func (w *world) elsewhere() *world {
	w.t.Helper()
	o := *w
	home := filepath.Join(w.dir, "elsewhere")
	if err := os.MkdirAll(home, 0o700); err != nil {
		w.t.Fatal(err)
	}
	o.env = append(slices.Clone(w.env), "HOME="+home) // the last one counts
	o.must("fleet", "login", w.url, "--ca-pin", w.pin, "--key", w.lab.KeyPath())
	o.must("fleet", "logout")
	return &o
}

// atTerminal runs fleet at a terminal of its own.
type atTerminal struct {
	screen lockedBuffer
	exit   chan int
}

func (w *world) atTerminal(args ...string) *atTerminal {
	w.t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		w.t.Fatal(err)
	}
	a := &atTerminal{exit: make(chan int, 1)}
	go io.Copy(&a.screen, master) // ends with the master
	c := w.cmd(w.t.Context(), "fleet", args...)
	c.Env = slices.DeleteFunc(slices.Clone(w.env), func(v string) bool { return v == "FLEET_NO_INPUT=1" })
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	if err := c.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { // it ends by itself, at the latest with the test
		c.Wait()
		tty.Close()
		master.Close()
		a.exit <- c.ProcessState.ExitCode()
	}()
	return a
}

var shownCode = regexp.MustCompile(`code  ([0-9A-Z]{4}-[0-9A-Z]{4})`)

// code waits for the code on the terminal.
func (w *world) code(a *atTerminal) string {
	w.t.Helper()
	var code string
	w.poll("a code", func() error {
		m := shownCode.FindStringSubmatch(a.screen.String())
		if m == nil {
			return fmt.Errorf("%s", a.screen.String())
		}
		code = m[1]
		return nil
	})
	return code
}

// TestAnInstallWithoutASessionOffersACode: who has SSH to a machine and no
// session may install there once a person who is logged in elsewhere approves.
func TestAnInstallWithoutASessionOffersACode(t *testing.T) { // R5, R7, R8
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	o := w.elsewhere()
	args := append(append([]string{"install"}, w.dest(h, "dana")...), "--fingerprint", w.fingerprint(h))

	// Where nobody looks at the terminal nobody is asked.
	if r := o.run("fleet", args...); r.exit != 4 || !strings.Contains(r.err, "fleet login") || strings.Contains(r.err, "code  ") {
		t.Error(r)
	}
	// Refused.
	a := o.atTerminal(args...)
	w.must("fleet", "deny", w.code(a))
	if exit := <-a.exit; exit != 4 || !strings.Contains(a.screen.String(), "refused, or its time ran out") {
		t.Errorf("%d: %s", exit, a.screen.String())
	}
	if n := len(w.machines()); n != 0 {
		t.Fatalf("%d machines", n)
	}
	// Approved, and what was asked for stands on the line to approve with.
	a = o.atTerminal(append(args, "--name", "box", "--label", "env=prod")...)
	code := w.code(a)
	if !strings.Contains(a.screen.String(), "fleet approve "+code+" --name box --label env=prod") {
		t.Errorf("%s", a.screen.String())
	}
	r := w.run("fleet", "approve", code, "--name", "box", "--label", "env=prod", "--yes")
	if r.exit != 0 || !strings.Contains(r.err, "account   dana") || !strings.Contains(r.err, "nobody has vouched") {
		t.Fatal(r)
	}
	if exit := <-a.exit; exit != 0 {
		t.Fatalf("%d: %s", exit, a.screen.String())
	}
	m := w.show("box")
	if m.Owner != "dana" || m.Labels["env"] != "prod" || m.Presence != wire.Present || m.Credential.Generation < 1 {
		t.Errorf("%+v", m)
	}
	if ls := o.must("fleet", "host", "ls"); !strings.Contains(ls, "box") || !strings.Contains(ls, h.Addr()) {
		t.Errorf("no link: %s", ls)
	}
	// Once more: whose it is, only the plane tells, and only to who is logged in.
	a = o.atTerminal(args...)
	if exit := <-a.exit; exit != 4 || !strings.Contains(a.screen.String(), "admitted before") {
		t.Errorf("%d: %s", exit, a.screen.String())
	}
	if out := w.must("fleet", "audit", "--jsonl"); !strings.Contains(out, `"enroll.approve"`) || !strings.Contains(out, `"person:dana"`) {
		t.Error(out)
	}
}

// securityKey is an agent's key that somebody always touches, as OpenSSH's
// PROTOCOL.u2f describes it.
type securityKey struct {
	agent.ExtendedAgent
	private ed25519.PrivateKey
}

func (k securityKey) public() ssh.PublicKey {
	pub, err := ssh.ParsePublicKey(ssh.Marshal(struct {
		Type string
		Key  []byte
		App  string
	}{ssh.KeyAlgoSKED25519, k.private.Public().(ed25519.PublicKey), "ssh:"}))
	if err != nil {
		panic(err)
	}
	return pub
}

func (k securityKey) List() ([]*agent.Key, error) {
	pub := k.public()
	return []*agent.Key{{Format: pub.Type(), Blob: pub.Marshal(), Comment: "key"}}, nil
}

func (k securityKey) Sign(_ ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	app, msg := sha256.Sum256([]byte("ssh:")), sha256.Sum256(data)
	rest := binary.BigEndian.AppendUint32([]byte{1}, 7) // touched; a counter
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Rest: rest, Blob: ed25519.Sign(k.private, slices.Concat(app[:], rest, msg[:]))}, nil
}

func (k securityKey) SignWithFlags(key ssh.PublicKey, data []byte, _ agent.SignatureFlags) (*ssh.Signature, error) {
	return k.Sign(key, data)
}

// inAgent serves a key as ssh-agent does and returns the socket.
func (w *world) inAgent(k agent.Agent) string {
	w.t.Helper()
	path := filepath.Join(w.dir, "agent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with its client
				defer c.Close()
				agent.ServeAgent(k, c)
			}()
		}
	}()
	return path
}

// TestAPlaneThatWantsATouchIsInstalledOnAndApprovedAtWithOne: a session alone
// admits nothing, over SSH and by code alike; with the key it goes as it always
// does. // R8
func TestAPlaneThatWantsATouchIsInstalledOnAndApprovedAtWithOne(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana"}, {Name: "ops"}}})
	w.stopPlane()
	w.args = append(w.args, "--require-touch")
	w.startPlane()
	o := w.elsewhere()

	w.fails(9, "touch of your security key", w.installArgs(h, "dana", "box")...)
	if n := len(w.machines()); n != 0 {
		t.Fatalf("%d machines were admitted without a touch", n)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := securityKey{private: private}
	file := filepath.Join(w.dir, "sk.pub")
	if err := os.WriteFile(file, ssh.MarshalAuthorizedKey(key.public()), 0o600); err != nil {
		t.Fatal(err)
	}
	withAgent := *w
	withAgent.env = append(slices.Clone(w.env), "SSH_AUTH_SOCK="+w.inAgent(key))
	// A key that nobody knows of is nobody's touch.
	withAgent.fails(9, "security key", w.installArgs(h, "dana", "box")...)
	w.must("fleet", "person", "key", "add", "dana", file)
	r := withAgent.run("fleet", w.installArgs(h, "dana", "box")...)
	if r.exit != 0 || !strings.Contains(r.err, "touch your security key") {
		t.Fatal(r)
	}
	if m := w.show("box"); m.Presence != wire.Present || m.Owner != "dana" {
		t.Errorf("%+v", m)
	}
	// Installed again it asks for nothing: the machine lives, and is admitted.
	a := o.atTerminal(append(append([]string{"install"}, w.dest(h, "ops")...), "--fingerprint", w.fingerprint(h))...)
	code := w.code(a)
	w.fails(9, "security key", "approve", code, "--name", "two", "--yes")
	if r := withAgent.run("fleet", "approve", code, "--name", "two", "--yes"); r.exit != 0 || !strings.Contains(r.err, "touch your security key") {
		t.Fatal(r)
	}
	if exit := <-a.exit; exit != 0 {
		t.Fatalf("%d: %s", exit, a.screen.String())
	}
	if m := w.show("two"); m.Presence != wire.Present {
		t.Errorf("%+v", m)
	}
}
