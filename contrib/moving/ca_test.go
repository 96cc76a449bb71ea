package moving_test

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

// newRoot has the plane make a root and present it.
func (w *world) newRoot() (pin string) {
	w.t.Helper()
	var doc struct {
		Root struct {
			Pin string `json:"pin"`
		} `json:"root"`
	}
	if err := json.Unmarshal([]byte(w.must("planed", "ca", "new-root", "--data", w.data, "--root-key-out", w.root+"/key-of-"+freeAddr(w.t), "--json")), &doc); err != nil {
		w.t.Fatal(err)
	}
	w.plane.cmd.Process.Signal(syscall.SIGHUP)
	w.poll("the plane to present the new root", func() error {
		_, err := planeclient.VerifyPin(w.t.Context(), w.url, doc.Root.Pin)
		return err
	})
	return doc.Root.Pin
}

// trusts waits until a machine has a version of the roots.
func (a *agent) trusts(version int64, roots string) {
	a.w.t.Helper()
	a.w.poll(a.name+" to trust other roots", func() error {
		if p := a.plane(); p.TrustVersion != version || strings.TrimSpace(p.RootsPEM) != strings.TrimSpace(roots) {
			return errorf("version %d", p.TrustVersion)
		}
		return nil
	})
}

// TestAFleetTrustsAnotherRoot: a new root comes, is tried, taken back once, and
// then takes the old one's place, with the plane killed on the way; a machine on
// the rung of mutual TLS keeps its certificate, and whoever slept is back by
// itself. // R26, R27
func TestAFleetTrustsAnotherRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mtls-listen", freeAddr(t))
	old := readFile(t, w.data+"/root.pem")
	awake, asleep, certified := w.agent("awake", old), w.agent("asleep", old), w.agent("certified", old)
	for _, a := range []*agent{awake, asleep, certified} {
		a.takes(w.key)
	}
	w.must("fleet", "rotate", "certified", "--kind", "mtls", "--wait", "--timeout", "2m")
	asleep.stop()

	w.fails(9, "does not present a root", "rotate", "ca", "--to", "sha256:"+strings.Repeat("0", 64))
	w.fails(9, "already", "rotate", "ca", "--to", w.pin)
	w.newRoot()
	first := readFile(t, w.data+"/root.next.pem")
	w.fails(8, "asleep", "rotate", "ca", "--to", w.data+"/root.next.pem", "--key", w.key, "--timeout", "5s")
	awake.trusts(2, first)
	certified.trusts(2, first)
	if out, _, exit := w.run("", "planed", "ca", "renew", "--data", w.data); exit == 0 {
		t.Error("the intermediate is replaced while a root is on its way:", out)
	}
	w.must("fleet", "rotate", "ca", "--abort", "--key", w.key, "--timeout", "2m")
	awake.trusts(3, old)
	certified.trusts(3, old)
	if _, err := os.Stat(w.data + "/root.next.pem"); err == nil {
		t.Error("the root that was taken back lies there still")
	}

	pin := w.newRoot()
	second := readFile(t, w.data+"/root.next.pem")
	w.fails(8, "asleep", "rotate", "ca", "--to", pin, "--key", w.key, "--timeout", "4s")
	awake.trusts(4, second)
	w.plane.end(syscall.SIGKILL)
	w.serve()
	w.must("fleet", "rotate", "ca", "--resume", "--leave", "asleep", "--timeout", "2m")
	r := w.rotation("ca")
	if r.State != wire.RotationDone || r.Version != 4 || strings.TrimSpace(r.Value) != strings.TrimSpace(second) || r.ProvedAt == nil {
		t.Fatalf("%+v", r)
	}
	if got := readFile(t, w.data+"/root.pem"); got != second {
		t.Error("the plane's root is another")
	}
	var shown struct {
		Root    struct{ Pin string }
		Trusted []struct{ Pin string }
	}
	if err := json.Unmarshal([]byte(w.must("planed", "ca", "show", "--data", w.data, "--json")), &shown); err != nil || shown.Root.Pin != pin || len(shown.Trusted) != 0 {
		t.Fatalf("%+v, %v", shown, err)
	}
	asleep.start()
	asleep.trusts(4, second)
	if k := w.show("certified").Credential.Kind; k != wire.KindMTLS {
		t.Errorf("the machine that was known by certificate is known by %s", k)
	}

	// The new root alone vouches for the plane once the intermediate is replaced.
	keys, err := os.ReadDir(w.root)
	if err != nil {
		t.Fatal(err)
	}
	renewed := false
	for _, k := range keys {
		if strings.HasPrefix(k.Name(), "key-of-") {
			_, _, exit := w.run("", "planed", "ca", "renew", "--data", w.data, "--root-key", w.root+"/"+k.Name())
			renewed = renewed || exit == 0
		}
	}
	if !renewed {
		t.Fatal("the intermediate was not replaced")
	}
	w.plane.end(syscall.SIGTERM)
	w.serve()
	if _, err := planeclient.VerifyPin(t.Context(), w.url, w.pin); err == nil {
		t.Error("the old root vouches for the plane still")
	}
	for _, a := range []*agent{awake, asleep, certified} {
		before := w.show(a.name).LastCheck
		w.poll(a.name+" to check under the new root alone", func() error {
			if now := w.show(a.name).LastCheck; now == nil || before != nil && !now.After(before.Time) {
				return errorf("not yet")
			}
			return nil
		})
	}
	w.must("fleet", "login", w.url, "--ca-pin", pin, "--key", w.key)
}
