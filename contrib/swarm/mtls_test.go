package swarm

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

// TestMachinesClimbToMutualTLSAndComeBack: a thousand machines under load are
// taken to the rung of mutual TLS, renew their certificates there, replace
// their keys, and are taken back, and none of them is ever not present. Then
// once more, with a plane that is killed on the way. // R9, R20, R27
func TestMachinesClimbToMutualTLSAndComeBack(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	binary, err := Build(ctx, dir, "planed")
	if err != nil {
		t.Fatal(err)
	}
	n := swarmSize(t)
	p, err := Prepare(ctx, binary, filepath.Join(dir, "data"), n, "--test-floor", "2s", "--check-interval", "15s", "--certificate-life", "60s")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() { p.Kill() }()
	s, err := Run(p, 64, 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	settled := func(m wire.Machine) bool {
		return m.Presence == wire.Present && m.Requests.Rotate == nil && !m.Credential.NextPending && m.Credential.Generation > 1
	}
	is := func(kind string) func(wire.Machine) bool {
		return func(m wire.Machine) bool { return settled(m) && m.Credential.Kind == kind }
	}
	await(t, client, n, settled)
	s.Mark()
	watch := watchPresence(t, client)

	askKind(t, client, s, wire.KindMTLS)
	up := await(t, client, n, is(wire.KindMTLS))
	askKind(t, client, s, "")
	await(t, client, n, func(m wire.Machine) bool {
		return is(wire.KindMTLS)(m) && m.Credential.Generation == up[m.ID].Credential.Generation+1
	})
	began := time.Now()
	await(t, client, n, func(m wire.Machine) bool {
		// A life is over, and still nobody's certificate has expired.
		return is(wire.KindMTLS)(m) && m.Credential.ExpiresAt.After(began.Add(61*time.Second))
	})
	askKind(t, client, s, wire.KindBearer)
	await(t, client, n, is(wire.KindBearer))
	watch()
	t.Logf("%d machines went up and down: widest gap between two checks %v; %d checks answered, %d not", n, s.Widest(), s.Answered.Load(), s.Failed.Load())

	// The other way round, and the plane dies meanwhile.
	for _, kind := range []string{wire.KindMTLS, wire.KindBearer, wire.KindMTLS} {
		within, cancel := context.WithTimeout(ctx, 4*time.Second)
		askKind(t, client, s, kind)
		<-within.Done()
		cancel()
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	rows := await(t, client, n, is(wire.KindMTLS))
	for _, m := range s.Machines {
		if h := m.Certs.Current(); h == nil || !time.Now().Before(h.Expires) {
			t.Errorf("%s is at %+v and holds no certificate", m.ID, rows[m.ID].Credential)
		}
	}
	checkMetrics(t, p)
}

// watchPresence looks at all machines until it is called again; none may be
// anything but present.
func watchPresence(t *testing.T, client *planeclient.Client) func() {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			list, err := client.Machines(ctx, wire.MachineFilter{Presence: wire.Absent})
			if err == nil && len(list.Machines) > 0 {
				t.Errorf("%d machines are absent, one is %+v", len(list.Machines), list.Machines[0])
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	return func() { stop(); <-done }
}

func askKind(t *testing.T, client *planeclient.Client, s *Swarm, kind string) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for _, m := range s.Machines {
		g.Go(func() error {
			_, err := client.AskToRotate(t.Context(), m.ID, 0, kind)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}
