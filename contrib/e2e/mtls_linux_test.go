package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// TestARealMachineClimbsToMutualTLSAndComesBack: installed, known by a
// certificate, asleep past its end, known by its secret again. One session
// lives through all of it but the sleep, and the data path never minds. // R5, R27, R34
func TestARealMachineClimbsToMutualTLSAndComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.install(h, "dana", "box")
	w.poll("generation 2", func() error {
		if g := w.show("box").Credential.Generation; g != 2 {
			return fmt.Errorf("generation %d", g)
		}
		return nil
	})
	w.fails(9, "no listener for certificates", "rotate", "box", "--kind", "mtls")
	w.endPlane(syscall.SIGTERM)
	host, _, err := net.SplitHostPort(strings.TrimPrefix(w.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	w.args = append(w.args, "--mtls-listen", net.JoinHostPort(host, "9443"), "--certificate-life", "20s")
	w.startPlane()

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	session := w.cmd(ctx, "fleet", "exec", "-i", "box", "--", "cat")
	in, err := session.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	lives := func(word string) {
		t.Helper()
		fmt.Fprintln(in, word)
		if line, err := lines.ReadString('\n'); err != nil || line != word+"\n" {
			t.Errorf("the session answers %q to %s: %v", line, word, err)
		}
		if got := w.must("fleet", "exec", "box", "--", "echo", word); got != word+"\n" {
			t.Errorf("%q", got)
		}
	}
	lives("before")

	if doc := w.rotate(0, "--kind", "mtls", "--wait", "--timeout", "60s"); doc.Status != wire.StatusDone || doc.Kind != wire.KindMTLS {
		t.Errorf("%+v", doc)
	}
	up := w.show("box")
	if up.Credential.Kind != wire.KindMTLS || up.Credential.ExpiresAt == nil || up.Presence != wire.Present {
		t.Errorf("%+v", up)
	}
	lives("up")
	if files := w.sh(h, "dana", `cd ~/.local/share/fleet-agent/*/ && stat -c '%a %n' certificate* && current/agentd status --json`); !strings.HasPrefix(files, "600 certificate\n{") ||
		!strings.Contains(files, `"credential_kind": "mtls"`) {
		t.Error(files)
	}
	w.poll("another certificate", func() error {
		if m := w.show("box"); !m.Credential.ExpiresAt.After(up.Credential.ExpiresAt.Time) || m.Presence != wire.Present {
			return fmt.Errorf("%+v", m.Credential)
		}
		return nil
	})
	lives("renewed")
	if doc := w.rotate(0, "--wait", "--timeout", "60s"); doc.Kind != wire.KindMTLS || doc.Generation != up.Credential.Generation+1 {
		t.Errorf("%+v", doc)
	}
	w.install(h, "dana", "box") // idempotent here, too
	lives("replaced")
	if doc := w.rotate(0, "--kind", "bearer", "--wait", "--timeout", "60s"); doc.Kind != wire.KindBearer || doc.Generation != up.Credential.Generation+2 {
		t.Errorf("%+v", doc)
	}
	lives("down")
	in.Close()
	io.Copy(io.Discard, lines)
	if err := session.Wait(); err != nil {
		t.Errorf("the session ended with %v", err)
	}

	// Asleep past the certificate's end, it gets another one by itself.
	w.rotate(0, "--kind", "mtls", "--wait", "--timeout", "60s")
	if err := h.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	asleep := w.show("box")
	w.poll("the certificate to expire", func() error {
		if left := time.Until(asleep.Credential.ExpiresAt.Time); left > 0 {
			return fmt.Errorf("%v left", left)
		}
		return nil
	})
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.poll("the machine that slept", func() error {
		m := w.show("box")
		if m.Credential.Kind != wire.KindMTLS || !m.LastCheck.After(asleep.Credential.ExpiresAt.Time) {
			return fmt.Errorf("%+v, last check %v", m.Credential, m.LastCheck)
		}
		return nil
	})
	w.rotate(0, "--kind", "bearer", "--wait", "--timeout", "60s")
	w.must("fleet", "exec", "box", "--", "true")
	audit := w.must("fleet", "audit", "--machine", up.ID)
	for _, action := range []string{"credential.certify", "credential.key", "credential.rung"} {
		if !strings.Contains(audit, action) {
			t.Errorf("the audit has no %s: %s", action, audit)
		}
	}
}
