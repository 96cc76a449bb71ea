package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// token reads a gate file.
func (w *world) token(file string) wire.CredentialGate {
	w.t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	g, err := wire.ParseGate(string(b))
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

// knock makes a check with a gate token alone.
func (w *world) knock(token string) int {
	w.t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // who answers is not the question
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+wire.PathCheck, strings.NewReader("{}"))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set(wire.HeaderGate, token)
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestRotateTheGateOfRealMachines: a gate comes in front of a plane that has a
// machine, its token rotates while one machine sleeps and the plane is killed,
// and whoever slept through everything is back by itself. // R26
func TestRotateTheGateOfRealMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	awake, asleep := w.host(lab.HostSpec{}), w.host(lab.HostSpec{Name: "h2"})
	w.install(awake, "dana", "awake")

	file := w.dir + "/gate"
	w.must("planed", "gate", "new", file)
	w.stopPlane()
	w.args = append(w.args, "--gate-token-file", file)
	w.startPlane()
	holds := func(name string, h *lab.Host, version int64) {
		t.Helper()
		w.poll(fmt.Sprintf("%s to hold version %d", name, version), func() error {
			m := w.show(name)
			if m.Presence != wire.Present {
				return fmt.Errorf("%s is %s", name, m.Presence)
			}
			// The value itself stays there.
			got := w.sh(h, "dana", `cd ~/.local/share/fleet-agent/*/ && { stat -c %a gate && cut -d' ' -f1 gate || echo none; } 2>&1 && ls`)
			if !strings.HasPrefix(got, fmt.Sprintf("600\n%d\n", version)) || strings.Contains(got, "gate.next") {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	}
	holds("awake", awake, 1) // fetched by its own credential
	w.install(asleep, "dana", "asleep")
	holds("asleep", asleep, 1) // brought by the install
	first := w.token(file)
	if got := w.knock("fg_thatisnotthetoken"); got != http.StatusUnauthorized {
		t.Errorf("a wrong token is answered with %d", got)
	}

	if err := asleep.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.fails(8, "asleep", "rotate", "gate", "--timeout", "5s")
	w.endPlane(syscall.SIGKILL)
	w.startPlane()
	var doc wire.MaterialRotation
	status := func() error {
		if err := json.Unmarshal([]byte(w.must("fleet", "rotate", "gate", "--status", "--json")), &doc); err != nil {
			return err
		}
		if doc.State != wire.RotationRunning || doc.Step != wire.StepRoll || doc.From != 1 || doc.To != 2 || len(doc.Stragglers) != 1 || doc.Stragglers[0].Name != "asleep" {
			return fmt.Errorf("%+v", doc)
		}
		return nil
	}
	w.poll("the one straggler to be named", status)
	if a, b := w.knock(first.Value), w.knock(w.token(file+".secondary").Value); a != http.StatusBadRequest || b != http.StatusBadRequest {
		t.Errorf("both versions are to be accepted, and are answered with %d and %d", a, b)
	}
	w.must("fleet", "rotate", "gate", "--resume", "--leave", "asleep", "--timeout", "120s")
	holds("awake", awake, 2)
	if now := w.token(file); now.Version != 2 || now.Value == first.Value || w.knock(now.Value) != http.StatusBadRequest {
		t.Errorf("the plane's file holds version %d", now.Version)
	}
	if got := w.knock(first.Value); got != http.StatusUnauthorized {
		t.Errorf("the retired token is answered with %d", got)
	}
	w.must("fleet", "exec", "awake", "--", "true")

	if err := asleep.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	holds("asleep", asleep, 2)

	// A machine that no SSH leads to carries the token along.
	enrolled := w.host(lab.HostSpec{Name: "h3"})
	w.carry(enrolled, "dana")
	w.sh(enrolled, "dana", "umask 077; cat > ~/gate <<'X'\n"+w.token(file).Line()+"X")
	if out := w.sh(enrolled, "dana", "~/bundle/agentd enroll --plane "+w.url+" --ca-pin "+w.pin+" --artifact-signers ~/signers 2>&1; true"); !strings.Contains(out, "--gate-token-file") {
		t.Errorf("without a token: %s", out)
	}
	e := w.enroll(enrolled, "dana", "--gate-token-file ~/gate")
	w.must("fleet", "approve", w.said(enrolled, "dana", "waiting").Code, "--name", "enrolled", "--yes")
	if err := <-e.done; err != nil {
		t.Error(err)
	}
	holds("enrolled", enrolled, 2)

	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(w.must("fleet", "drill", "rotate", "--json", "--timeout", "120s")), &doc); err != nil || doc.State != wire.RotationDrilled || doc.Version != 2 || len(doc.Missed) != 0 {
		t.Errorf("the drill ended as %+v, %v", doc, err)
	}
	holds("awake", awake, 2)
	holds("asleep", asleep, 2)
	holds("enrolled", enrolled, 2)
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the drill changed the plane's file: %v", err)
	}
	if _, err := os.Stat(file + ".secondary"); !os.IsNotExist(err) {
		t.Errorf("the drill left a token: %v", err)
	}
	log := w.must("fleet", "audit", "--json")
	for _, action := range []string{"rotation.start", "rotation.leave", "rotation.narrow", "rotation.proved", "rotation.done", "rotation.drilled"} {
		if !strings.Contains(log, action) {
			t.Errorf("the audit log lacks %s", action)
		}
	}
	for _, secret := range []string{first.Value, w.token(file).Value} {
		if strings.Contains(w.log.String(), secret) || strings.Contains(log, secret) {
			t.Error("a token stands in a log")
		}
	}
}
