package planed_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fleet.example/fleet/core/wire"
)

// valueOf reads a gate file.
func valueOf(t *testing.T, file string) wire.CredentialGate {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g, err := wire.ParseGate(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// knock makes a check with a gate token alone; beyond the gate it is malformed.
func (p *plane) knock(token string) int {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.url+wire.PathCheck, strings.NewReader("{}"))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set(wire.HeaderGate, token)
	resp, err := p.machineHTTP().Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func (p *plane) hup() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
}

func TestGateNewMakesAPrivateFileOnce(t *testing.T) { // R26
	file := filepath.Join(t.TempDir(), "gate")
	out, _, exit := planed(t, "gate", "new", file, "--version", "7", "--json")
	var doc struct {
		Schema  string
		Version int64
	}
	if exit != 0 || json.Unmarshal([]byte(out), &doc) != nil || doc.Schema != "fleet.gate-file/v1" || doc.Version != 7 {
		t.Fatal(exit, out)
	}
	g := valueOf(t, file)
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 || g.Version != 7 || len(g.Value) < 43 || strings.Contains(out, g.Value) {
		t.Fatal(st.Mode(), err, g.Version)
	}
	if _, errOut, exit := planed(t, "gate", "new", file); exit != 1 || !strings.Contains(errOut, "there already") {
		t.Error(exit, errOut)
	}
	if _, errOut, exit := planed(t, "gate", "new", file+"2", "--version", "0"); exit != 2 {
		t.Error(exit, errOut)
	}
	if valueOf(t, file) != g {
		t.Error("the file was replaced")
	}
}

// A plane whose gate token cannot be used does not start, and says why. // R24, R26
func TestAPlaneWithoutAUsableGateDoesNotStart(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "gate")
	p := initPlane(t, filepath.Join(dir, "data"))
	serve := []string{"serve", "--data", p.dir, "--listen", "127.0.0.1:0", "--gate-token-file", file}
	refused := func(words string, args ...string) {
		t.Helper()
		_, errOut, exit := planed(t, args...)
		if exit == 0 || !strings.Contains(errOut, words) {
			t.Errorf("exit %d: %s", exit, errOut)
		}
	}
	refused("no such file", serve...)
	for content, words := range map[string]string{"": "empty", "\n\n": "empty", "1": "one line", "x y": "not a positive number", "1 short": "16 to 256"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(words, serve...)
	}
	os.Remove(file)
	planed(t, "gate", "new", file)
	os.Chmod(file, 0o640)
	refused("0640", serve...)
	os.Chmod(file, 0o600)
	if err := os.WriteFile(file+".other", []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("one line", append(serve, "--gate-token-secondary-file", file+".other")...)
	refused("goes with --gate-token-file", "serve", "--data", p.dir, "--gate-token-secondary-file", file)
}

// SIGHUP reads the files again; what cannot be used leaves the values in use, a
// version above all that were counts at once, and one that was retired never
// again. // R26
func TestSIGHUPReadsTheGateAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gate")
	planed(t, "gate", "new", file)
	first := valueOf(t, file)
	p := newPlane(t, "--gate-token-file", file)
	if a, b := p.knock(first.Value), p.knock(first.Value+"x"); a != 400 || b != 401 {
		t.Fatal(a, b)
	}
	logged := func(words string, n int) {
		t.Helper()
		p.until(words, func() bool { return strings.Count(p.log.String(), words) >= n })
	}
	if err := os.WriteFile(file, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.hup()
	logged("keeping the gate tokens in use", 1)
	if got := p.knock(first.Value); got != 400 {
		t.Errorf("the value in use is answered with %d", got)
	}
	// Leaked: another one by hand.
	os.Remove(file)
	planed(t, "gate", "new", file, "--version", "2")
	second := valueOf(t, file)
	p.hup()
	p.until("the new value to count", func() bool { return p.knock(second.Value) == 400 })
	if got := p.knock(first.Value); got != 401 {
		t.Errorf("the value before is answered with %d", got)
	}
	// An old deployment puts the first one back.
	if err := os.WriteFile(file, []byte(first.Line()), 0o600); err != nil {
		t.Fatal(err)
	}
	p.hup()
	logged("version 1 of the gate was retired", 1)
	if a, b := p.knock(second.Value), p.knock(first.Value); a != 400 || b != 401 {
		t.Error(a, b)
	}
	if code := p.term(); code != 0 {
		t.Fatal(code)
	}
	_, errOut, exit := planed(t, "serve", "--data", p.dir, "--listen", "127.0.0.1:0", "--gate-token-file", file)
	if exit == 0 || !strings.Contains(errOut, "was retired") {
		t.Errorf("exit %d: %s", exit, errOut)
	}
	if log := p.log.String() + errOut; strings.Contains(log, first.Value) || strings.Contains(log, second.Value) {
		t.Error("a token stands in the log")
	}
}

// While requests are refused at the gate, planed status says so. // R22
func TestStatusTellsOfTheGate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gate")
	planed(t, "gate", "new", file)
	p := newPlane(t, "--gate-token-file", file)
	out, _, exit := planed(t, "status", "--data", p.dir)
	if exit != 0 || !strings.Contains(out, "version 1") || strings.Contains(out, "gate_refused") {
		t.Fatal(exit, out)
	}
	p.knock("fg_wrong")
	if out, _, _ = planed(t, "status", "--data", p.dir); !strings.Contains(out, "1 requests since") {
		t.Error(out)
	}
}
