package swarm

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

// swarmSize is how many machines rotate; FLEET_SWARM raises it.
func swarmSize(t *testing.T) int {
	n := 1000
	if testing.Short() {
		n = 100
	}
	if v := os.Getenv("FLEET_SWARM"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestAKilledPlaneLosesNoRotatingMachine: a thousand machines are asked to
// rotate, again and again, while their plane is killed every two seconds. In
// the end every one of them is present, has answered, and holds the generation
// that the plane has; no generation was made that nobody asked for. // R16, R20, R21
func TestAKilledPlaneLosesNoRotatingMachine(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	binary, err := Build(ctx, dir, "planed")
	if err != nil {
		t.Fatal(err)
	}
	n := swarmSize(t)
	p, err := Prepare(ctx, binary, filepath.Join(dir, "data"), n, "--test-floor", "200ms", "--check-interval", "2s")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() { p.Kill() }()
	s, err := Run(p, 64, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()

	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	rotated := func(m wire.Machine) bool {
		return m.Presence == wire.Present && m.Requests.Rotate == nil && !m.Credential.NextPending && m.Credential.Generation > 1
	}
	await(t, client, n, rotated) // a machine that was never answered does not know a lab's pace
	began := time.Now()
	asked := make([]int64, n)
	for range 6 {
		// What the kill cuts short is asked again in the next round.
		within, cancel := context.WithTimeout(ctx, 2*time.Second)
		ask(within, t, p, s, asked)
		<-within.Done()
		cancel()
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("killed 6 times in %v; %d checks answered, %d failed", time.Since(began).Round(time.Millisecond), s.Answered.Load(), s.Failed.Load())
	rows := await(t, client, n, rotated)
	total := int64(0)
	for i, m := range s.Machines {
		row, st := rows[m.ID], m.Store.Status()
		if st.State != wire.CredentialOK || st.Generation != row.Credential.Generation {
			t.Errorf("%s: the plane has generation %d, the machine %+v", m.ID, row.Credential.Generation, st)
		}
		// The first one is rotated away, each request adds one, and one more
		// where a secret had been staged before the request came.
		if most := 2 + 2*asked[i]; row.Credential.Generation > most {
			t.Errorf("%s: generation %d after %d requests", m.ID, row.Credential.Generation, asked[i])
		}
		total += row.Credential.Generation
	}
	t.Logf("%d machines, %.1f generations each", n, float64(total)/float64(n))
	checkMetrics(t, p)
}

// await polls until all machines are as they should be, and returns them.
func await(t *testing.T, client *planeclient.Client, n int, ok func(wire.Machine) bool) map[string]wire.Machine {
	t.Helper()
	for end := time.Now().Add(8 * time.Minute); ; {
		list, err := client.Machines(t.Context(), wire.MachineFilter{})
		if err != nil {
			t.Fatal(err)
		}
		rows, late, last := map[string]wire.Machine{}, 0, wire.Machine{}
		for _, m := range list.Machines {
			rows[m.ID] = m
			if !ok(m) {
				late++
				last = m
			}
		}
		if late == 0 && len(rows) == n {
			return rows
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d machines have not come back and rotated; one is %+v", late, n, last)
		}
		select {
		case <-time.After(time.Second):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// ask asks every machine, as far as time and the plane allow.
func ask(ctx context.Context, t *testing.T, p *Plane, s *Swarm, asked []int64) {
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var g errgroup.Group
	g.SetLimit(8)
	for i, m := range s.Machines {
		g.Go(func() error {
			if ctx.Err() == nil {
				// One whose answer was lost counts too: it may have been taken.
				asked[i]++
				client.AskToRotate(ctx, m.ID, 0, "")
			}
			return nil
		})
	}
	g.Wait()
}

var pending = regexp.MustCompile(`(?m)^fleet_rotations_pending\{state="(requested|staged|stuck)"\} 0$`)

func checkMetrics(t *testing.T, p *Plane) {
	t.Helper()
	resp, err := http.Get("http://" + p.Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || len(pending.FindAll(b, -1)) != 3 {
		t.Fatalf("rotations are still under way, the metrics say: %v", err)
	}
}
