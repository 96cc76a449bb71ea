package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// signedBuild is an artifact of the test's own: the built one with another
// agentd in it, signed by a key that the operator was told to trust.
type signedBuild struct {
	dir string // for FLEET_ARTIFACT_DIR
	id  string
}

// otherArtifact makes one. agentd is the path of the program that takes
// agentd's place.
func (w *world) otherArtifact(name, agentd string) signedBuild {
	w.t.Helper()
	key := filepath.Join(w.dir, "artifact-key")
	if _, err := os.Stat(key); err != nil {
		w.sys("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
		w.must("fleet", "artifact", "trust", key+".pub")
	}
	return w.otherArtifactBy(name, agentd, key)
}

func (w *world) otherArtifactBy(name, agentd, key string) signedBuild {
	w.t.Helper()
	in := filepath.Join(w.dir, name+"-programs")
	if err := os.Mkdir(in, 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.sys("tar", "-xzf", filepath.Join(bin, "artifacts", "fleet-agent-linux-"+runtime.GOARCH+".tar.gz"), "-C", in)
	w.sys("install", "-m", "755", agentd, filepath.Join(in, "agentd"))
	out := filepath.Join(w.dir, name)
	answer := w.must("fleet", "artifact", "build", in, "--os", "linux", "--arch", runtime.GOARCH, "--as", name,
		"--sign-key", key, "--out", out, "--json")
	var built struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &built); err != nil || built.ID == "" {
		w.t.Fatal(answer, err)
	}
	return signedBuild{out, built.ID}
}

// agentdVersion builds agentd with another version.
func (w *world) agentdVersion(version string) string {
	w.t.Helper()
	out := filepath.Join(w.dir, "agentd-"+version)
	c := exec.Command("go", "build", "-trimpath", "-tags", "urfave_cli_no_docs",
		"-ldflags", "-s -w -buildid= -X main.version="+version, "-o", out, "fleet.example/fleet/cmd/agentd")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := c.CombinedOutput(); err != nil {
		w.t.Fatalf("cannot build agentd: %v: %s", err, text)
	}
	return out
}

// with gives the operator an artifact directory for the calls in do.
func (w *world) with(b signedBuild, do func()) {
	clean := w.env
	w.env = append(clean[:len(clean):len(clean)], "FLEET_ARTIFACT_DIR="+b.dir)
	defer func() { w.env = clean }()
	do()
}

// sys runs a program of this machine.
func (w *world) sys(name string, args ...string) {
	w.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// runs waits until the plane shows the machine present with a version.
func (w *world) runs(name, version string) {
	w.t.Helper()
	w.poll(name+" with version "+version, func() error {
		if m := w.show(name); m.Agent.Version != version || m.Presence != wire.Present {
			return fmt.Errorf("%s, %s", m.Agent.Version, m.Presence)
		}
		return nil
	})
}

func (w *world) detach(name, script string) wire.Session {
	w.t.Helper()
	var s wire.Session
	out := w.must("fleet", "exec", "--detach", "--json", name, "--", "sh", "-c", script)
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.ID == "" {
		w.t.Fatal(out, err)
	}
	return s
}

const dataGlob = "/home/dana/.local/share/fleet-agent/*"

func TestUpdateAndRollback(t *testing.T) { // R3, R4, R29, R34
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	first := w.install(h, "dana", "box")
	was := w.show("box").Agent.Version
	next := w.otherArtifact("v2-next", w.agentdVersion("v2-next"))
	broken := filepath.Join(w.dir, "broken-agentd")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	bad := w.otherArtifact("v3-broken", broken)

	// Another fleet changes nothing by itself, and the same artifact is not sent again.
	w.must("fleet", "update", "box")
	w.runs("box", was)

	w.with(next, func() {
		// A running session defers the update.
		s := w.detach("box", "echo before; while [ ! -e go ]; do sleep 0.05; done; echo after")
		w.fails(8, "deferred", "update", "box")
		w.runs("box", was)
		// An install finds all in place, and puts the other version aside for later.
		if doc := w.install(h, "dana", "box"); !doc.Matched.PlaneRow || doc.Machine.Agent.Version != was {
			t.Errorf("an install over a running session: %+v", doc)
		}
		w.runs("box", was)
		w.sh(h, "dana", "touch go")
		if got := w.must("fleet", "attach", "box", s.ID, "--from", "0"); got != "before\nafter\n" {
			t.Errorf("the session that deferred the update wrote %q", got)
		}
		w.must("fleet", "update", "box")
		w.runs("box", "v2-next")
		if got := w.must("fleet", "attach", "box", s.ID, "--from", "0"); got != "before\nafter\n" {
			t.Errorf("after the update the session's output is %q", got)
		}
	})
	if n := len(w.machines()); n != 1 || w.show("box").ID != first.Machine.ID {
		t.Errorf("%d machines", n)
	}

	// A rollback goes past a running session, which loses not one byte.
	s := w.detach("box", "echo before; while [ ! -e more ]; do sleep 0.05; done; echo after")
	w.must("fleet", "rollback", "box")
	w.runs("box", was)
	w.sh(h, "dana", "touch more")
	if got := w.must("fleet", "attach", "box", s.ID, "--from", "0"); got != "before\nafter\n" {
		t.Errorf("across the rollback the session wrote %q", got)
	}

	// What does not check in is not kept, and is not what a rollback goes back to.
	w.with(bad, func() { w.fails(1, "former one runs again", "update", "box") })
	w.runs("box", was)
	if r := w.run("fleet", "exec", "box", "--", "echo", "alive"); r.out != "alive\n" {
		t.Error(r)
	}
	if p := w.sh(h, "dana", "readlink "+dataGlob+"/current "+dataGlob+"/previous"); strings.Contains(p, bad.id) {
		t.Errorf("the broken version is still named:\n%s", p)
	}
	w.must("fleet", "rollback", "box")
	w.runs("box", "v2-next")
	w.must("fleet", "update", "box")
	w.runs("box", was)

	if got := strings.Fields(w.sh(h, "dana", "ls "+dataGlob+"/versions")); len(got) != 2 {
		t.Errorf("versions that nothing needs are kept: %q", got)
	}

	// An update that died between the switch and the restart is finished by the next.
	w.sh(h, "dana", "cd "+dataGlob+" && ln -s versions/"+next.id+" c.new && mv -T c.new current")
	w.with(next, func() { w.must("fleet", "update", "box") })
	w.runs("box", "v2-next")

	// The latch outlives update and rollback.
	w.must("fleet", "stop", "box")
	w.must("fleet", "wait", "box", "--for", "stopped", "--timeout", "30s")
	for _, verb := range []string{"update", "rollback"} {
		if r := w.run("fleet", verb, "box"); r.exit == 0 {
			t.Errorf("%s of a stopped machine: %s", verb, r)
		} else {
			t.Log(r)
		}
		if got := w.sh(h, "dana", "ls "+dataGlob+"/latch >/dev/null && echo latched; pgrep -x agentd || true"); got != "latched\n" {
			t.Errorf("after %s of a stopped machine: %q", verb, got)
		}
	}
	w.must("fleet", "start", "box")
	w.runs("box", "v2-next")
	w.updatesThatAreNotTaken(h)
	w.updatesOnConnect(h)
}

// versions is what the machine has, and which of it counts.
func (w *world) versions(h *lab.Host) string {
	w.t.Helper()
	return w.sh(h, "dana", "cd "+dataGlob+" && readlink current previous; ls -A . versions; cat held 2>/dev/null; true")
}

// updatesThatAreNotTaken ends with the version that it began with.
func (w *world) updatesThatAreNotTaken(h *lab.Host) {
	t := w.t
	before := w.versions(h)
	// Nobody's and a stranger's changes nothing at all.
	stranger := filepath.Join(w.dir, "stranger")
	w.sys("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger)
	foreign := w.otherArtifactBy("8.0.0", w.agentdVersion("8.0.0"), stranger)
	w.with(foreign, func() { w.fails(9, "not trusted", "update", "box") })
	w.sys("rm", filepath.Join(foreign.dir, "fleet-agent-linux-"+runtime.GOARCH+".json.sig"))
	w.with(foreign, func() { w.fails(9, "not signed", "update", "box") })
	if after := w.versions(h); after != before {
		t.Errorf("what is not signed by a trusted key changed the machine:\n%s\n%s", before, after)
	}

	// It runs and answers, and has no way to the plane: the former one is taken
	// back, and remembered is what was left. A session loses nothing by all that.
	mute := filepath.Join(w.dir, "mute-agentd")
	if err := os.WriteFile(mute, []byte("#!/bin/sh\nHTTPS_PROXY=http://127.0.0.1:9 exec \"$(dirname \"$0\")/../../previous/agentd\" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cannot := w.otherArtifact("8.1.0", mute)
	w.with(cannot, func() { w.fails(1, "former one runs again", "update", "box") })
	w.runs("box", "v2-next")
	if got := w.sh(h, "dana", "cat "+dataGlob+"/held"); strings.TrimSpace(got) != cannot.id {
		t.Errorf("held is %q", got)
	}

	if r := w.run("fleet", "exec", "box", "--", "echo", "alive"); r.out != "alive\n" {
		t.Error(r)
	}

	// The operator's side went away in the middle of an update, and the new version
	// does not even run: a person takes it back.
	w.sh(h, "dana", "cd "+dataGlob+` && was=$(readlink current) && bad=versions/$(printf 'b%.0s' $(seq 64)) && cp -a $was $bad &&
rm $bad/agentd && printf '#!/bin/sh\nexit 1\n' > $bad/agentd && chmod 755 $bad/agentd && ln -sfn $was previous && ln -sfn $bad current`)
	w.sh(h, "dana", "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user restart 'fleet-agent*' || true")
	w.must("fleet", "rollback", "box")
	w.runs("box", "v2-next")
	if r := w.run("fleet", "exec", "box", "--", "echo", "alive"); r.out != "alive\n" {
		t.Error(r)
	}
}

// updatesOnConnect are those that nobody asked for by name.
func (w *world) updatesOnConnect(h *lab.Host) {
	t := w.t
	older := w.otherArtifact("8.3.0", w.agentdVersion("8.3.0"))
	newer := w.otherArtifact("8.4.0", w.agentdVersion("8.4.0"))
	// Two operators at once take turns, and one of the two versions is whole.
	var wg sync.WaitGroup
	for _, b := range []signedBuild{older, newer} {
		wg.Go(func() {
			own := *w
			own.env = append(slices.Clone(w.env), "FLEET_ARTIFACT_DIR="+b.dir)
			if r := own.run("fleet", "update", "box"); r.exit != 0 {
				t.Errorf("an update beside another: %s", r)
			}
		})
	}
	wg.Wait()
	w.with(older, func() { w.must("fleet", "update", "box") })
	w.runs("box", "8.3.0")

	w.shared()
	update := func() (u wire.MuxUpdate) {
		for _, c := range w.mux().Connections {
			for _, u := range c.Updates {
				return u
			}
		}
		return u
	}
	await := func(state string) {
		t.Helper()
		w.poll("an update that is "+state, func() error {
			if u := update(); u.State != state {
				return fmt.Errorf("%+v", u)
			}
			return nil
		})
	}
	reconnect := func() { w.must("fleet", "mux", "stop"); w.must("fleet", "mux", "start") }
	clean := w.env
	w.env = append(slices.Clone(clean), "FLEET_ARTIFACT_DIR="+newer.dir, "FLEET_UPDATES=notice")
	w.must("fleet", "exec", "box", "--", "true")
	await(wire.UpdateAvailable)
	if r := w.run("fleet", "exec", "box", "--", "echo", "out"); r.exit != 0 || r.out != "out\n" || !strings.Contains(r.err, "fleet update box brings 8.4.0") {
		t.Errorf("a notice: %s", r)
	}
	if r := w.run("fleet", "exec", "box", "--", "echo", "out"); r.err != "" {
		t.Errorf("a notice is given again: %s", r)
	}

	// The default: it waits for the session, loses none of its output, and is done then.
	w.env = append(slices.Clone(clean), "FLEET_ARTIFACT_DIR="+newer.dir)
	reconnect()
	s := w.detach("box", "echo before; while [ ! -e enough ]; do sleep 0.05; done; echo after")
	await(wire.UpdateDeferred)
	w.runs("box", "8.3.0")
	w.sh(h, "dana", "touch enough")
	w.runs("box", "8.4.0")
	await(wire.UpdateDone)
	if r := w.run("fleet", "attach", "box", s.ID, "--from", "0"); r.exit != 0 || r.out != "before\nafter\n" || !strings.Contains(r.err, "was updated from 8.3.0 to 8.4.0") {
		t.Errorf("after an update: %s", r)
	}
	// An older one is none, and one that a person rolled back from is left alone,
	// by every operator.
	w.env = append(slices.Clone(clean), "FLEET_ARTIFACT_DIR="+older.dir)
	reconnect()
	w.must("fleet", "exec", "box", "--", "true")
	w.must("fleet", "rollback", "box")
	w.runs("box", "8.3.0")
	w.env = append(slices.Clone(clean), "FLEET_ARTIFACT_DIR="+newer.dir)
	reconnect()
	w.must("fleet", "exec", "box", "--", "true")
	await(wire.UpdateHeld)
	w.runs("box", "8.3.0")
	w.must("fleet", "update", "box")
	w.runs("box", "8.4.0")
	w.env = clean
}
