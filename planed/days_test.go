package planed_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// rounds of the loop that kills the plane; FLEET_KILL_ROUNDS raises them.
func killRounds(t *testing.T) int {
	n := 25
	if v := os.Getenv("FLEET_KILL_ROUNDS"); v != "" {
		if _, err := fmt.Sscan(v, &n); err != nil {
			t.Fatal(err)
		}
	}
	if testing.Short() {
		n = min(n, 5)
	}
	return n
}

// killed is a machine in the loop: what its disk holds is what may be presented.
type killed struct {
	*box
	current, next secret.Text
	generation    int64
	answered      int64 // the highest generation that the plane has confirmed
}

// try presents next, then current, as an agent does, and returns the status.
func (k *killed) try() (int, error) {
	for _, s := range []secret.Text{k.next, k.current} {
		if s.Empty() {
			continue
		}
		status, out, err := k.post(wire.PathCheck, s, running)
		if err != nil {
			return 0, err
		}
		if status == http.StatusUnauthorized && s == k.next {
			continue
		}
		if status == http.StatusOK {
			var a wire.CheckAnswer
			if err := json.Unmarshal(out, &a); err != nil {
				return 0, err
			}
			if s == k.next {
				k.current, k.next = k.next, secret.Text{}
				k.generation++
			}
			k.answered = max(k.answered, a.Generation)
		}
		return status, nil
	}
	return http.StatusUnauthorized, nil
}

// TestKilledAtAnyInstantThePlaneLosesNothingItAnswered // R6, R20, R23
func TestKilledAtAnyInstantThePlaneLosesNothingItAnswered(t *testing.T) {
	p := newPlane(t)
	owner := p.owner()
	var boxes []*killed
	for range 4 {
		b := p.newBox()
		b.admit(owner, "")
		boxes = append(boxes, &killed{box: b, current: b.secret, generation: 1})
	}
	for round := range killRounds(t) {
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for i, k := range boxes {
			wg.Go(func() {
				k.instance = fmt.Sprintf("r%dx%d", round, i)
				k.seq = 0
				for {
					select {
					case <-stop:
						return
					default:
					}
					status, err := k.try()
					if err != nil {
						return // the plane is gone
					}
					if status != http.StatusOK {
						t.Errorf("machine %d: %d", i, status)
						return
					}
					if k.next.Empty() {
						k.next = secret.New("fm_")
					}
					body, _ := json.Marshal(wire.RotateRequest{Generation: k.generation + 1, Digest: k.next.Digest().Hex()})
					if status, _, err := k.post(wire.PathRotate, k.current, string(body)); err != nil {
						return
					} else if status != http.StatusOK && status != http.StatusConflict {
						t.Errorf("machine %d: rotate: %d", i, status)
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		p.kill()
		close(stop)
		wg.Wait()
		for _, k := range boxes {
			k.http.CloseIdleConnections()
		}
		if round%8 == 0 {
			if out, errOut, exit := planed(t, "check", "--data", p.dir); exit != 0 {
				t.Fatalf("round %d: %s%s", round, out, errOut)
			}
		}
		p.start()
		for i, k := range boxes {
			k.instance, k.seq = fmt.Sprintf("c%dx%d", round, i), 0
			status, err := k.try()
			switch {
			case err != nil:
				t.Fatal(err)
			case status != http.StatusOK:
				t.Fatalf("round %d: machine %d is locked out: %d", round, i, status)
			}
			m, err := owner.Machine(t.Context(), k.id)
			if err != nil || m.Credential.Generation < k.answered || m.Presence != wire.Present || m.Lifecycle.State != wire.LifecycleRunning {
				t.Fatalf("round %d: machine %d: %+v %v", round, i, m, err)
			}
			// Admitting again makes no second machine and replaces nothing.
			if a, err := owner.Admit(t.Context(), wire.AdmitRequest{InstallationDigest: k.installation.Digest().Hex(),
				CredentialDigest: secret.New("fm_").Digest().Hex()}); err != nil || a.Machine != k.id || a.Status != wire.AdmitLiving {
				t.Fatal(a, err)
			}
		}
		if l, err := owner.Machines(t.Context(), wire.MachineFilter{}); err != nil || len(l.Machines) != len(boxes) {
			t.Fatal(len(l.Machines), err)
		}
	}
	if code := p.term(); code != 0 {
		t.Fatal(code, p.log)
	}
	if out, errOut, exit := planed(t, "check", "--data", p.dir); exit != 0 {
		t.Fatal(out, errOut)
	}
}

func TestAnOutageMakesNobodyAbsent(t *testing.T) { // R9, R19
	p := newPlane(t, "--test-floor", "100ms", "--check-interval", "100ms")
	owner := p.owner()
	b, silent := p.newBox(), p.newBox()
	b.admit(owner, "")
	silent.admit(owner, "")
	silent.mustCheck(running)
	presence := func(x *box) string {
		m, err := owner.Machine(t.Context(), x.id)
		if err != nil {
			t.Fatal(err)
		}
		return m.Presence
	}
	p.until("the silent machine is absent", func() bool {
		b.mustCheck(running)
		return presence(silent) == wire.Absent
	})
	if m, err := owner.Machine(t.Context(), silent.id); err != nil || m.Lifecycle.State != wire.LifecycleUnknown {
		t.Fatal(m.Lifecycle, err) // R12
	}
	if presence(b) != wire.Present {
		t.Fatal("a machine that checks is absent")
	}
	if code := p.term(); code != 0 {
		t.Fatal(code)
	}
	down := time.Now()
	p.until("the outage is longer than the silence that is allowed", func() bool { return time.Since(down) > 1500*time.Millisecond })
	p.start()
	if got := presence(b); got != wire.Present {
		t.Errorf("the plane's outage made a machine %s", got)
	}
	if got := presence(silent); got != wire.Absent {
		t.Errorf("the plane's outage made an absent machine %s", got)
	}
}

func TestSIGTERMFinishesWhatIsUnderWay(t *testing.T) {
	p := newPlane(t)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "")
	b.mustCheck(running)
	var wg sync.WaitGroup
	answered := make(chan string, 512)
	for range 8 {
		wg.Go(func() {
			for {
				a, err := owner.Admit(t.Context(), wire.AdmitRequest{InstallationDigest: secret.New("").Digest().Hex(), CredentialDigest: secret.New("").Digest().Hex()})
				if err != nil {
					return
				}
				answered <- a.Machine
				if len(answered) > 400 {
					return
				}
			}
		})
	}
	first := <-answered
	if code := p.term(); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.log)
	}
	wg.Wait()
	close(answered)
	if _, err := os.Lstat(filepath.Join(p.dir, "admin.sock")); err == nil {
		t.Error("the admin socket is left behind")
	}
	p.start()
	for id := range answered {
		if _, err := owner.Machine(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := owner.Machine(t.Context(), first); err != nil || m.Presence != wire.Never {
		t.Fatal(m, err)
	}
	if m, err := owner.Machine(t.Context(), b.id); err != nil || m.LastCheck == nil {
		t.Fatal("the last flush was lost", err)
	}
}

func TestInitIsSafeToInterruptAndNeverOverwrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	args := []string{"init", "--data", dir, "--url", "https://plane.example", "--owner", "dana"}
	for range 40 {
		cmd := exec.Command(binary(), args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(15)) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		if _, err := os.Stat(filepath.Join(dir, "plane.json")); err == nil {
			break
		}
		if _, errOut, exit := planed(t, "serve", "--data", dir); exit != fault.NotFound {
			t.Fatal(exit, errOut)
		}
	}
	out, errOut, exit := planed(t, args...)
	if exit != 0 && exit != fault.Refused {
		t.Fatal(exit, out, errOut)
	}
	key, err := os.ReadFile(filepath.Join(dir, "root.key"))
	if err != nil {
		t.Fatal(err)
	}
	if _, errOut, exit := planed(t, args...); exit != fault.Refused || !strings.Contains(errOut, "already") {
		t.Fatal(exit, errOut)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "root.key")); err != nil || !bytes.Equal(key, again) {
		t.Fatal("the root key was changed", err)
	}
	if out, errOut, exit := planed(t, "check", "--data", dir); exit != 0 {
		t.Fatal(out, errOut)
	}
	for _, f := range []string{"root.key", "intermediate.key", "owner.invite", "plane.db", "plane.json"} {
		st, err := os.Stat(filepath.Join(dir, f))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Error(f, st.Mode(), err)
		}
	}
}

func TestANewerStoreAndADamagedOneAreRefusedInWords(t *testing.T) {
	p := initPlane(t, filepath.Join(t.TempDir(), "data"))
	file := filepath.Join(p.dir, "plane.db")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"empty": {}, "damaged": bytes.Repeat([]byte("x"), len(whole)), "cut": whole[:5000]} {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, errOut, exit := planed(t, "serve", "--data", p.dir); exit != fault.Failure || !strings.Contains(errOut, "store") || strings.Contains(errOut, "panic") {
			t.Errorf("%s: %d %s", name, exit, errOut)
		}
	}
}

func TestTheAdministratorsCommands(t *testing.T) {
	p := newPlane(t)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "web")
	b.mustCheck(running)
	out, errOut, exit := planed(t, "status", "--data", p.dir, "--json")
	var st struct {
		Schema   string `json:"schema"`
		Machines int    `json:"machines"`
		CAPin    string `json:"ca_pin"`
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil || exit != 0 || st.Machines != 1 || st.CAPin != p.pin || st.Schema != "fleet.plane-status/v1" {
		t.Fatal(out, errOut, err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if _, errOut, exit := planed(t, "backup", "--data", p.dir, copied); exit != 0 {
		t.Fatal(errOut)
	}
	if st, err := os.Stat(copied); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatal(st, err)
	}
	if _, _, exit := planed(t, "backup", "--data", p.dir, copied); exit != fault.Refused {
		t.Error("a backup was overwritten")
	}
	out, errOut, exit = planed(t, "recover-owner", "--data", p.dir)
	if exit != 0 {
		t.Fatal(errOut)
	}
	inv, err := durable.ReadPrivate(strings.TrimSpace(out), 1000)
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.login(newKey(t), string(inv))
	if err != nil {
		t.Fatal(err)
	}
	if w, err := again.Whoami(t.Context()); err != nil || w.Name != "dana" || w.Role != wire.RoleOwner {
		t.Fatal(w, err)
	}
	a, err := again.Audit(t.Context(), planeclient.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, e := range a.Entries {
		seen = seen || e.Actor == "local:recover-owner"
	}
	if !seen {
		t.Error("the recovery is not in the audit log")
	}
	p.term()
	if _, errOut, exit := planed(t, "status", "--data", p.dir); exit != fault.Unreachable || !strings.Contains(errOut, "not running") {
		t.Error(exit, errOut)
	}
	if out, errOut, exit := planed(t, "recover-owner", "--data", p.dir, "--json"); exit != 0 || !strings.Contains(out, "owner.invite") {
		t.Error(out, errOut)
	}
}

// TestNoAddressStaysAnywhere has machines and persons come from an address of
// their own and looks for it in everything the plane leaves. // R18
func TestNoAddressStaysAnywhere(t *testing.T) {
	const from = "127.77.66.55"
	sink := filepath.Join(t.TempDir(), "audit.jsonl")
	p := newPlane(t, "--log-level", "debug", "--audit-sink", sink)
	owner := p.owner()
	b := p.newBox()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	b.http.Transport.(*http.Transport).DialContext = dialer.DialContext
	b.admit(owner, "")
	b.mustCheck(`{"name":"` + from + `","boot":"` + from + `","version":"` + from + `","lifecycle":{"state":"running"},"readiness":{"blockers":[{"code":"no_route","detail":"cannot reach ` + from + `:22","remedy":"ping ` + from + `"}]}}`)
	b.check("<html>")
	if status, _, err := b.post(wire.PathLogin, secret.New("x"), `{"nonce":"x"}`); err != nil || status == http.StatusOK {
		t.Fatal(status, err)
	}
	if status, _, err := b.post(wire.PathLogin, secret.New("x"), `{"nonce":"x","url":"`+p.url+`"}`); err != nil || status != http.StatusUnauthorized {
		t.Fatal(status, err)
	}
	// What net/http itself complains about.
	c, err := dialer.Dial("tcp", "127.0.0.1"+p.url[strings.LastIndex(p.url, ":"):])
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	c.Close()
	p.until("net/http has complained", func() bool { return strings.Contains(p.log.String(), "TLS handshake error") })
	p.until("the sink has the entries", func() bool {
		b, err := os.ReadFile(sink)
		return err == nil && bytes.Contains(b, []byte("machine.admit"))
	})
	p.term()
	if strings.Contains(p.log.String(), from) {
		t.Errorf("the log names the address:\n%s", p.log)
	}
	files := []string{sink}
	filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return nil
	})
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte(from)) {
			t.Errorf("%s names the address", f)
		}
		if bytes.Contains(content, []byte(b.secret.Reveal())) || bytes.Contains(content, []byte(b.installation.Reveal())) {
			t.Errorf("%s holds a secret", f) // R24
		}
	}
}

func TestUsageErrors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for _, args := range [][]string{
		{"serve"}, {"init", "--data", dir}, {"init", "--data", dir, "--url", "http://plane.example"}, {"init", "--data", dir, "--url", "https://plane.example/path"},
		{"serve", "--data", dir, "--check-interval", "5s"}, {"serve", "--data", dir, "--test-floor", "11s"},
		{"serve", "--data", dir, "--metrics-listen", "0.0.0.0:9"}, {"serve", "--data", dir, "--tls-cert", "x"}, {"serve", "--data", dir, "--nonsense"},
		{"backup", "--data", dir}, {"nonsense"},
	} {
		if _, errOut, exit := planed(t, args...); exit != fault.Usage || errOut == "" {
			t.Errorf("%v: %d %s", args, exit, errOut)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused command made the directory")
	}
}
