package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// carry brings the artifact to a host as a person with a stick would: unpacked,
// with manifest, signature and the signer's public key.
func (w *world) carry(h *lab.Host, account string) {
	w.t.Helper()
	base := filepath.Join(bin, "artifacts", "fleet-agent-linux-"+runtime.GOARCH)
	signer, err := os.ReadFile(filepath.Join(bin, "..", ".keys", "artifact-sign.pub"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.sh(h, account, "mkdir -p ~/bundle && cat > ~/signers <<'X'\n"+string(signer)+"\nX")
	for from, to := range map[string]string{base + ".tar.gz": "a.tar.gz", base + ".json": "bundle/manifest.json", base + ".json.sig": "bundle/manifest.json.sig"} {
		if err := h.Put(account, from, to, 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	w.sh(h, account, "tar -xzf ~/a.tar.gz -C ~/bundle")
}

// enrolling is an agentd enroll under way on a host.
type enrolling struct{ done chan error }

func (w *world) enroll(h *lab.Host, account string, flags ...string) *enrolling {
	w.t.Helper()
	e := &enrolling{done: make(chan error, 1)}
	go func() { // the command ends by itself, at the latest after ten minutes, or with its host
		out, err := h.Exec(w.t.Context(), account, "sh", "-c",
			"exec ~/bundle/agentd enroll --plane "+w.url+" --ca-pin "+w.pin+" --artifact-signers ~/signers --jsonl "+strings.Join(flags, " ")+" > ~/enroll.out 2> ~/enroll.err")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		e.done <- err
	}()
	return e
}

// said waits for a document with the status in the command's output.
func (w *world) said(h *lab.Host, account, status string) (doc struct{ Status, Code, URL, Machine string }) {
	w.t.Helper()
	w.poll("agentd enroll says "+status, func() error {
		out := w.sh(h, account, "cat ~/enroll.out ~/enroll.err 2>/dev/null; true")
		for line := range strings.Lines(out) {
			if json.Unmarshal([]byte(line), &doc) == nil && doc.Status == status {
				return nil
			}
		}
		return fmt.Errorf("%s", out)
	})
	return doc
}

// TestAMachineEnrollsByItself: no SSH leads there; a person who is logged in
// elsewhere approves a code. // R7, R8, R29
func TestAMachineEnrollsByItself(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.carry(h, "dana")
	data := "$HOME/.local/share/fleet-agent/*"

	// A bundle that was altered, or whose signer is not the named one, asks nobody.
	w.sh(h, "dana", "cp -a bundle altered && printf x >> altered/agentd-shim && ssh-keygen -q -t ed25519 -N '' -f other")
	for words, cmd := range map[string]string{
		"not the file that was signed": "altered/agentd enroll --plane " + w.url + " --ca-pin " + w.pin + " --artifact-signers signers",
		"not trusted":                  "bundle/agentd enroll --plane " + w.url + " --ca-pin " + w.pin + " --artifact-signers other.pub",
		"--artifact-signers":           "bundle/agentd enroll --plane " + w.url + " --ca-pin " + w.pin,
		"pinned root":                  "bundle/agentd enroll --plane " + w.url + " --ca-pin sha256:" + strings.Repeat("0", 64) + " --artifact-signers signers",
	} {
		if out := w.sh(h, "dana", "cd && if "+cmd+" 2>&1; then echo WENT WELL; fi"); !strings.Contains(out, words) || strings.Contains(out, "WENT WELL") || strings.Contains(out, "approve") {
			t.Errorf("%s: %s", words, out)
		}
	}

	// Refused: the machine learns that it is over, and no more.
	e := w.enroll(h, "dana")
	doc := w.said(h, "dana", "waiting")
	if strings.Contains(doc.URL, strings.ReplaceAll(doc.Code, "-", "")) || doc.URL != w.url+wire.PathApprovePage {
		t.Errorf("the URL is %s", doc.URL)
	}
	w.fails(2, "--yes", "approve", doc.Code)
	w.must("fleet", "deny", strings.ToLower(doc.Code))
	if err := <-e.done; err == nil || !strings.Contains(w.sh(h, "dana", "cat enroll.err"), "refused, or its time ran out") {
		t.Error(err, w.sh(h, "dana", "cat enroll.err"))
	}
	w.fails(5, "no machine waits with this code", "approve", doc.Code, "--yes")
	w.fails(5, "no machine waits with this code", "deny", "ABCD-EFGH")
	w.fails(2, "is no code", "approve", "ABCD")

	// Killed while it waits, then run again: another code, and nothing left over.
	e = w.enroll(h, "dana")
	first := w.said(h, "dana", "waiting")
	w.sh(h, "dana", "pkill -9 -u dana -x agentd")
	<-e.done
	w.sh(h, "dana", "rm enroll.out")
	e = w.enroll(h, "dana")
	doc = w.said(h, "dana", "waiting")
	w.fails(5, "no machine waits", "approve", first.Code, "--yes")
	r := w.run("fleet", "approve", doc.Code, "--yes", "--name", "box", "--label", "env=prod")
	if r.exit != 0 || !strings.Contains(r.out, "belongs to dana") || !strings.Contains(r.err, "nobody has vouched") || !strings.Contains(r.err, "account   dana") {
		t.Fatal(r)
	}
	if err := <-e.done; err != nil {
		t.Fatal(err, w.sh(h, "dana", "cat enroll.err"))
	}
	done := w.said(h, "dana", "enrolled")
	m := w.show("box")
	if m.ID != done.Machine || m.Owner != "dana" || m.Presence != wire.Present || m.Labels["env"] != "prod" || m.Agent.ServiceManager != "systemd" || m.Agent.Scope != "user" {
		t.Errorf("%+v", m)
	}
	for _, secret := range []string{"fm_", "fp_"} { // R1
		if out := w.sh(h, "dana", "cat enroll.out enroll.err; ps -eo args; systemctl --user cat fleet-agent 2>/dev/null; true"); strings.Contains(out, secret) {
			t.Errorf("a secret is shown: %s", out)
		}
	}
	if out := w.sh(h, "dana", "stat -c '%a %U' "+data+"/credential "+data+"/installation"); out != "600 dana\n600 dana\n" {
		t.Error(out)
	}
	// A link makes it reachable like any other.
	w.must("fleet", append([]string{"trust"}, append(w.dest(h, "dana"), "--fingerprint", w.fingerprint(h))...)...)
	w.must("fleet", append([]string{"host", "link", "box"}, w.dest(h, "dana")...)...)
	if out := w.must("fleet", "exec", "box", "--", "id", "-un"); out != "dana\n" {
		t.Error(out)
	}
	// The audit says who, and what the machine had said.
	if out := w.must("fleet", "audit", "--jsonl"); !strings.Contains(out, `"enroll.approve"`) || !strings.Contains(out, `"said_account":"dana"`) || !strings.Contains(out, `"enroll.deny"`) {
		t.Error(out)
	}

	// Again: nobody is asked, and nothing is made a second time.
	w.sh(h, "dana", "rm enroll.out enroll.err")
	if err := <-w.enroll(h, "dana").done; err != nil {
		t.Error(err, w.sh(h, "dana", "cat enroll.err"))
	}
	if again := w.said(h, "dana", "enrolled"); again.Machine != m.ID || len(w.machines()) != 1 {
		t.Errorf("%+v", again)
	}
	// The latch stands. // R29
	w.must("fleet", "stop", "box")
	w.must("fleet", "wait", "box", "--for", "stopped", "--timeout", "30s")
	if err := <-w.enroll(h, "dana").done; err == nil || !strings.Contains(w.sh(h, "dana", "cat enroll.err"), "stopped it on purpose") {
		t.Error(err, w.sh(h, "dana", "cat enroll.err"))
	}
	if m := w.show("box"); m.Lifecycle.State != wire.LifecycleStopped {
		t.Errorf("%+v", m.Lifecycle)
	}
	w.must("fleet", "start", "box")
	w.must("fleet", "wait", "box", "--for", "ready", "--timeout", "30s")

	// Deleted, it waits for a person; enrolling is one, and gives it a new row.
	w.must("fleet", "delete", "box")
	w.poll("the agent knows that it was deleted", func() error {
		out := w.sh(h, "dana", data+"/current/agentd status --json; true")
		if !strings.Contains(out, `"revoked"`) {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	w.sh(h, "dana", "rm enroll.out enroll.err")
	e = w.enroll(h, "dana")
	doc = w.said(h, "dana", "waiting")
	w.must("fleet", "approve", doc.Code, "--yes", "--name", "box2")
	if err := <-e.done; err != nil {
		t.Fatal(err, w.sh(h, "dana", "cat enroll.err"))
	}
	if m2 := w.show("box2"); m2.ID == m.ID || m2.Presence != wire.Present {
		t.Errorf("%+v", m2)
	}
}

// TestEnrollingOutlivesThePlane: a plane that is down for a while, also between
// approval and pick-up, loses no request and no approval. // R19
func TestEnrollingOutlivesThePlane(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.carry(h, "dana")
	e := w.enroll(h, "dana")
	doc := w.said(h, "dana", "waiting")
	w.stopPlane()
	w.poll("it says that it tries on", func() error {
		if out := w.sh(h, "dana", "cat enroll.err"); !strings.Contains(out, "trying on") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	w.startPlane()
	w.must("fleet", "approve", doc.Code, "--yes", "--name", "box")
	w.stopPlane()
	w.startPlane()
	select {
	case err := <-e.done:
		if err != nil {
			t.Fatal(err, w.sh(h, "dana", "cat enroll.err"))
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on waiting: ", w.sh(h, "dana", "cat enroll.err"))
	}
	if m := w.show("box"); m.Presence != wire.Present {
		t.Errorf("%+v", m)
	}
}
