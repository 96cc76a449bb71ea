package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"

	"fleet.example/fleet/contrib/lab"
)

// TestJumpsOverIPv6 goes through literal jumps with addresses in brackets, whose
// keys are confirmed in every way that a target's can be.
func TestJumpsOverIPv6(t *testing.T) { // R2, R32
	t.Parallel()
	w := newWorldAt(t, func(ctx context.Context, l *lab.Lab) (string, error) { return l.PlaneAddr6(), l.StartIPv6(ctx) })
	h := w.host(lab.HostSpec{IPv6Only: true, Accounts: []lab.Account{{Name: "dana"}, {Name: "jay", NoLinger: true}, {Name: "kay", NoLinger: true}}})
	fp, key := w.fingerprint(h), []string{"-i", w.lab.KeyPath()}
	outer := "[" + h.Addr() + "]"
	known := filepath.Join(w.dir, "known_hosts")
	var lines strings.Builder
	for line := range strings.Lines(h.KnownHosts() + "\n") {
		if _, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			fmt.Fprintf(&lines, "%s %s\n", h.Addr(), rest)
		}
	}
	if err := os.WriteFile(known, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	config := w.sshConfig(fmt.Sprintf(`
Host loop-a
  ProxyJump loop-b
Host loop-b
  ProxyJump loop-c
Host loop-c
  ProxyJump loop-a
Host *
  UserKnownHostsFile %s
`, known))

	// Evidence, when it is named, confirms every hop; a test pins none of them.
	chain := "jay@" + outer + ":22,kay@" + outer
	to := func(words ...string) []string {
		return slices.Concat(words, []string{"dana@" + outer + ":22", "-J", chain}, key, config)
	}
	r := w.fails(6, "jump host "+h.Addr(), to("test")...)
	if !strings.Contains(r.err, "--trust known_hosts accepts that") {
		t.Error(r)
	}
	w.must("fleet", append(to("test"), "--trust", "known_hosts")...)
	if out := w.must("fleet", "trust", "ls"); out != "" {
		t.Errorf("a test pinned %s", out)
	}
	w.fails(6, "is not the one that was given", append(to("test"), "--fingerprint", outer+":22=SHA256:"+strings.Repeat("A", 43))...)

	w.must("fleet", append(to("test"), "--fingerprint", "jay@"+outer+":22="+fp, "--fingerprint", "kay@"+outer+"="+fp, "--fingerprint", fp)...)

	// A person at a terminal is asked hop by hop, nearest first; who answers no
	// goes no further.
	asked := func(answers ...string) (screen string, exit int) {
		t.Helper()
		master, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		var b lockedBuffer
		go io.Copy(&b, master) // ends with the master
		c := w.cmd(t.Context(), "fleet", append(to("install"), "--name", "box")...)
		c.Env = slices.DeleteFunc(slices.Clone(w.env), func(v string) bool { return v == "FLEET_NO_INPUT=1" })
		c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for i, a := range answers {
			w.poll("a question", func() error {
				if n := strings.Count(b.String(), "Is it right (yes/no)?"); n != i+1 {
					return fmt.Errorf("%d questions: %s", n, b.String())
				}
				return nil
			})
			io.WriteString(master, a+"\n")
		}
		c.Wait()
		tty.Close()
		return b.String(), c.ProcessState.ExitCode()
	}
	if screen, exit := asked("no"); exit != 6 || !strings.Contains(screen, "The host key of jump host "+h.Addr()) || !strings.Contains(screen, fp) {
		t.Errorf("exit %d: %s", exit, screen)
	}
	if out := w.must("fleet", "trust", "ls"); out != "" {
		t.Errorf("an answer of no pinned %s", out)
	}
	screen, exit := asked("yes", "yes", "yes")
	at := -1
	for _, place := range []string{"jump host " + h.Addr(), "jump host " + h.Addr() + " via " + h.Addr(), "host key of " + h.Addr() + " via " + h.Addr() + "," + h.Addr()} {
		i := strings.Index(screen, place)
		if i <= at {
			t.Errorf("%q is not asked about, or not in its turn: %s", place, screen)
		}
		at = max(at, i)
	}
	if exit != 0 {
		t.Fatalf("exit %d: %s", exit, screen)
	}
	if r := w.run("fleet", "exec", "box", "--", "id", "-un"); r.out != "dana\n" {
		t.Error(r)
	}

	// A way that leads back to itself is refused in words, before any of it is
	// gone.
	w.fails(1, "ProxyJump leads through", append([]string{"test", "loop-a"}, config...)...)
	w.fails(1, "jumphost loop via "+h.Addr(), slices.Concat([]string{"test", "jay@" + outer + ":22", "-J", "jay@" + outer}, key, config)...)
	w.fails(1, "more than 16 jumps", slices.Concat([]string{"test", "far", "-J", strings.TrimSuffix(strings.Repeat("x,", 20), ",")}, key, config)...)
	w.fails(1, "Invalid -J argument", slices.Concat([]string{"test", "far", "-J", "jay@[::1"}, key, config)...)
	w.noPlugins()
}
