package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// killRounds is how often TestKilledAtRandom kills; FLEET_KILL_ROUNDS says otherwise.
const killRounds = 20

// TestKilledAtRandom kills planed, agentd or fleet between any two
// instructions while something changes, lets them come back the way they do,
// and looks at what is left: one machine, the same one unless it was
// uninstalled, its credential works, no file is torn, the states are true, and
// what the plane confirmed it still knows.
func TestKilledAtRandom(t *testing.T) { // R6, R12, R20, R21, R23
	rounds := killRounds
	if s := os.Getenv("FLEET_KILL_ROUNDS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("FLEET_KILL_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d rounds, FLEET_KILL_SEED=%d", rounds, seed)
	w := newWorld(t)
	k := &killer{world: w, host: w.host(lab.HostSpec{}), rand: rand.New(rand.NewPCG(seed, 0)), killed: map[string]int{}}
	k.id = w.install(k.host, "dana", "box").Machine.ID
	for i := range rounds {
		k.round(i)
		if t.Failed() {
			t.Fatalf("round %d of %d, FLEET_KILL_SEED=%d", i, rounds, seed)
		}
	}
	w.must("fleet", "audit", "verify")
	t.Logf("killed: %v", k.killed)
}

// killer is one machine that is changed and killed in turns.
type killer struct {
	*world
	host   *lab.Host
	rand   *rand.Rand
	id     string
	label  string // the last value that the plane confirmed
	trying string // the value that a killed command may have set
	killed map[string]int
}

func (k *killer) round(i int) {
	value := fmt.Sprintf("r%d", i)
	deeds := []struct {
		name  string
		args  []string
		spans time.Duration // about how long it takes, to kill within it
	}{
		{"install", k.installArgs(k.host, "dana", "box"), 1500 * time.Millisecond},
		{"uninstall", []string{"uninstall", "box"}, 1500 * time.Millisecond},
		{"label", []string{"label", "box", "round=" + value}, 60 * time.Millisecond},
		{"exec", []string{"exec", "box", "--", "sh", "-c", "echo $$ > f.new && mv f.new f"}, 700 * time.Millisecond},
	}
	d := deeds[k.rand.IntN(len(deeds))]
	victim := []string{"planed", "agentd", "fleet", "fleet-host"}[k.rand.IntN(4)]
	after := time.Duration(k.rand.Int64N(int64(d.spans)))
	what := fmt.Sprintf("round %d: %s, %s killed after %v", i, d.name, victim, after.Round(time.Millisecond))

	ctx, cancel := context.WithTimeout(k.t.Context(), 2*time.Minute)
	defer cancel()
	c := k.cmd(ctx, "fleet", d.args...)
	// A group of its own: what it started dies with it where that is asked for.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		k.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }() // ends with the command, which the context bounds
	timer := time.NewTimer(after)
	defer timer.Stop()
	var err error
	early := false
	select {
	case err = <-done:
		early = true
	case <-timer.C:
	}
	if !early || victim == "planed" || victim == "agentd" {
		k.killed[victim]++
	}
	switch victim {
	case "planed":
		k.endPlane(syscall.SIGKILL)
		k.startPlane()
	case "agentd":
		// There is none between an uninstall and an install.
		k.sh(k.host, "root", "pkill -9 -x agentd || true")
	case "fleet":
		if !early {
			c.Process.Signal(syscall.SIGKILL)
		}
	case "fleet-host":
		if !early {
			syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		}
	}
	if !early {
		err = <-done
	}
	if ctx.Err() != nil {
		k.t.Errorf("%s: the command hangs: %s", what, said.String())
		return
	}
	if d.name == "label" {
		if err == nil {
			k.label, k.trying = value, ""
		} else {
			k.trying = value
		}
	}
	k.settle(what, d.name == "uninstall")
	k.look(what)
	if k.t.Failed() {
		k.t.Logf("%s ended with %v: %s", what, err, said.String())
	}
}

// settle runs install, as a person would who saw something fail, until it succeeds.
func (k *killer) settle(what string, uninstalled bool) {
	k.poll(what+": an install afterwards", func() error {
		r := k.run("fleet", k.installArgs(k.host, "dana", "box", "--json")...)
		var doc wire.Install
		switch {
		case r.exit == 0:
			if err := json.Unmarshal([]byte(r.out), &doc); err != nil || doc.Machine == nil {
				k.t.Fatalf("%s: %v: %s", what, err, r)
			}
		case strings.Contains(r.err, "install_running"), r.exit == 8:
			return fmt.Errorf("%s", r)
		default:
			k.t.Fatalf("%s: install: %s", what, r)
		}
		if doc.Machine.ID != k.id {
			if !uninstalled {
				k.t.Errorf("%s: the machine became another: %s, was %s", what, doc.Machine.ID, k.id)
			}
			k.id, k.label, k.trying = doc.Machine.ID, "", ""
		}
		return nil
	})
}

// look holds what must be true at rest.
func (k *killer) look(what string) {
	k.t.Helper()
	all := k.machines()
	if len(all) != 1 || all[0].ID != k.id {
		k.t.Errorf("%s: machines %+v", what, all)
		return
	}
	k.poll(what+": a machine at rest", func() error {
		m := k.show(k.id)
		if m.Presence != wire.Present || m.Lifecycle.State != wire.LifecycleRunning || m.Name != "box" {
			return fmt.Errorf("%s, %+v, %q", m.Presence, m.Lifecycle, m.Name)
		}
		if m.Credential.Generation < 2 || m.Credential.NextPending {
			return fmt.Errorf("the secret that travelled is not rotated away: %+v", m.Credential)
		}
		st, err := k.status()
		if err != nil {
			return err
		}
		if st.Machine != k.id || st.Credential != wire.CredentialOK || st.Generation != m.Credential.Generation || st.LastCheck == nil || !st.LastCheck.OK {
			return fmt.Errorf("the agent says %+v, the plane generation %d", st, m.Credential.Generation)
		}
		return nil
	})
	switch got := k.show(k.id).Labels["round"]; {
	case got == k.label:
	case got == k.trying && got != "":
		k.label = got
	default:
		k.t.Errorf("%s: label %q, the plane confirmed %q", what, got, k.label)
	}
	k.trying = ""
	k.files(what)
	if r := k.run("fleet", "exec", "box", "--", "echo", "alive"); r.out != "alive\n" {
		k.t.Errorf("%s: exec: %s", what, r)
	}
	if f := strings.TrimSpace(k.sh(k.host, "dana", "cat f 2>/dev/null || echo 1")); f == "" {
		k.t.Errorf("%s: a file written by a session is torn", what)
	}
}

func (k *killer) status() (st wire.AgentStatus, err error) {
	ctx, cancel := context.WithTimeout(k.t.Context(), 20*time.Second)
	defer cancel()
	out, err := k.host.Exec(ctx, "dana", "sh", "-c", "exec "+dataGlob+"/current/agentd status --json")
	if err != nil {
		return st, err
	}
	return st, json.Unmarshal([]byte(out), &st)
}

// files holds that no file of the installation is torn, and none half-made is left.
func (k *killer) files(what string) {
	k.t.Helper()
	const each = `cd ` + dataGlob + ` || exit 1
for f in credential credential.next credential.previous plane.json service.json; do
  [ -e "$f" ] && { echo "== $f $(stat -c %a "$f")"; cat "$f"; echo; }
done
echo "== installation $(stat -c %a installation)"; cat installation
echo "== tree 0"; ls -A versions; find . -name '*.fleet-tmp*'`
	seen := map[string]string{}
	for _, part := range strings.Split("\n"+k.sh(k.host, "dana", each), "\n== ")[1:] {
		head, body, _ := strings.Cut(part, "\n")
		name, mode, _ := strings.Cut(head, " ")
		seen[name] = strings.TrimSpace(body)
		if strings.HasSuffix(path.Ext(name), "json") || strings.HasPrefix(name, "credential") {
			if !json.Valid([]byte(body)) {
				k.t.Errorf("%s: %s is torn: %d bytes", what, name, len(body))
			}
		}
		if name != "tree" && mode != "600" {
			k.t.Errorf("%s: %s has mode %s", what, name, mode)
		}
	}
	var c wire.Credential
	if err := json.Unmarshal([]byte(seen["credential"]), &c); err != nil || c.Machine != k.id {
		k.t.Errorf("%s: the credential is %s's: %v", what, c.Machine, err)
	}
	if id := seen["installation"]; len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		k.t.Errorf("%s: the installation id has %d characters", what, len(id))
	}
	if tree := strings.Fields(seen["tree"]); len(tree) != 1 || len(tree[0]) != 64 {
		k.t.Errorf("%s: versions and left-overs: %v", what, tree)
	}
}
