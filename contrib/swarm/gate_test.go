package swarm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

// gated makes a plane with a gate and n machines that hold its token.
func gated(t *testing.T, n int, interval time.Duration) (p *Plane, file string) {
	t.Helper()
	ctx := t.Context()
	dir := t.TempDir()
	binary, err := Build(ctx, dir, "planed")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "gate")
	if out, err := exec.CommandContext(ctx, binary, "gate", "new", file).CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	p, err = Prepare(ctx, binary, filepath.Join(dir, "data"), n, "--test-floor", (interval / 5).String(), "--check-interval", interval.String(), "--gate-token-file", file)
	if err != nil {
		t.Fatal(err)
	}
	g := token(t, file)
	for i := range p.machines {
		p.machines[i].Gate = &g
	}
	return p, file
}

func token(t *testing.T, file string) wire.CredentialGate {
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

// knock makes a check with a gate token and no credential, and returns what is
// answered: beyond the gate a missing header is complained of.
func knock(t *testing.T, p *Plane, gate string) int {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(p.Roots))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+wire.PathCheck, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderGate, gate)
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// ended polls until no rotation is under way.
func ended(t *testing.T, client *planeclient.Client, limit time.Duration) wire.MaterialRotation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var last wire.MaterialRotation
	for {
		if r, err := client.MaterialRotation(ctx, wire.MaterialGate); err == nil {
			if last.Step != r.Step {
				t.Logf("%s: %d of %d moved", r.Step, r.Machines.Moved, r.Machines.All)
			}
			if last = r; r.State != wire.RotationRunning {
				return r
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the rotation did not end: %+v", last)
		}
	}
}

// TestAGateRotationEndsByItself: every machine of a large fleet takes the new
// token, the old one is refused in the end, and on the way not one check is. // R26
func TestAGateRotationEndsByItself(t *testing.T) {
	n := swarmSize(t)
	interval := 5 * time.Second
	if testing.Short() {
		interval = time.Second
	}
	p, file := gated(t, n, interval)
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { p.Kill() }()
	old := token(t, file)
	s, err := Run(p, 64, interval)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	await(t, client, n, func(m wire.Machine) bool { return m.Presence == wire.Present })

	began := time.Now()
	failed := s.Failed.Load()
	if _, err := client.SteerRotation(t.Context(), wire.MaterialGate, wire.RotationRequest{Action: wire.RotationStart}); err != nil {
		t.Fatal(err)
	}
	r := ended(t, client, 5*time.Minute)
	t.Logf("%d machines took another gate token in %v", n, time.Since(began).Round(time.Millisecond))
	if r.State != wire.RotationDone || r.Version != old.Version+1 || r.ProvedAt == nil || r.Machines.Moved != n {
		t.Errorf("the rotation ended as %+v", r)
	}
	if lost := s.Failed.Load() - failed; lost != 0 {
		t.Errorf("%d checks were not answered meanwhile", lost)
	}
	for _, m := range s.Machines {
		if st := m.Store.Status(); st.Gate != old.Version+1 {
			t.Errorf("%s holds version %d", m.ID, st.Gate)
		}
	}
	now := token(t, file)
	if now.Version != old.Version+1 || now.Value == old.Value {
		t.Errorf("the plane's file holds version %d", now.Version)
	}
	if _, err := os.Stat(file + ".secondary"); !os.IsNotExist(err) {
		t.Errorf("the secondary file is there still: %v", err)
	}
	if got := knock(t, p, old.Value); got != http.StatusUnauthorized {
		t.Errorf("the retired token is answered with %d", got)
	}
	if got := knock(t, p, now.Value); got != http.StatusBadRequest {
		t.Errorf("the new token is answered with %d", got)
	}
}

// TestAPlaneKilledAtEveryStepRotatesItsGate: the plane is killed whenever it has
// taken a step, and the person's request with it; the rotation ends all the same
// and every machine holds the new token. Where within a step it dies is the
// model's part, in contrib/model. // R26
func TestAPlaneKilledAtEveryStepRotatesItsGate(t *testing.T) {
	n := min(swarmSize(t), 200)
	p, file := gated(t, n, time.Second)
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { p.Kill() }()
	old := token(t, file)
	s, err := Run(p, 64, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	await(t, client, n, func(m wire.Machine) bool { return m.Presence == wire.Present })

	kills, seen := 0, map[string]bool{}
	kill := func() {
		t.Helper()
		kills++
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for {
		// Asked again each time: who does not know what became of it asks again.
		r, err := client.MaterialRotation(ctx, wire.MaterialGate)
		if err == nil && r.State == wire.RotationIdle {
			r, err = client.SteerRotation(ctx, wire.MaterialGate, wire.RotationRequest{Action: wire.RotationStart})
		}
		if err == nil && r.State != wire.RotationRunning {
			if r.State != wire.RotationDone || r.Version != 2 {
				t.Errorf("it ended as %+v", r)
			}
			break
		}
		if err == nil && !seen[r.Step] {
			seen[r.Step] = true
			kill()
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the rotation did not end: %+v", r)
		}
	}
	if !seen[wire.StepRoll] || !seen[wire.StepProve] {
		t.Errorf("killed in %v only", seen)
	}
	kill()
	t.Logf("killed %d times, in %v", kills, seen)
	await(t, client, n, func(m wire.Machine) bool { return m.Presence == wire.Present })
	for _, m := range s.Machines {
		if st := m.Store.Status(); st.Gate != 2 || st.State != wire.CredentialOK {
			t.Errorf("%s: %+v", m.ID, st)
		}
	}
	if got := knock(t, p, old.Value); got != http.StatusUnauthorized {
		t.Errorf("the retired token is answered with %d", got)
	}
	if got := knock(t, p, token(t, file).Value); got != http.StatusBadRequest {
		t.Errorf("the new token is answered with %d", got)
	}
}
