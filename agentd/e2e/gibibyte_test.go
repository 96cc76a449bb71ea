package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/wire"
)

// streamEnv makes this program a command that writes so many bytes of the
// stream.
const streamEnv = "FLEET_TEST_STREAM"

// stream is bytes of which each is known and no two parts are alike.
func stream() *rand.ChaCha8 { return rand.NewChaCha8([32]byte{5}) }

func writeStream(size string) error {
	var left int64
	if _, err := fmt.Sscan(size, &left); err != nil {
		return err
	}
	s, buf := stream(), make([]byte, 64<<10)
	for left > 0 {
		s.Read(buf)
		n, err := os.Stdout.Write(buf[:min(left, int64(len(buf)))])
		if left -= int64(n); err != nil {
			return err
		}
	}
	return nil
}

// comparing takes the stream's bytes, notes where they differ, and kills the
// agent at places.
type comparing struct {
	want  *rand.ChaCha8
	buf   []byte
	at    int64
	wrong int64 // the first byte that is not the stream's, or -1
	kills []int64
	kill  func()
}

func (c *comparing) Write(p []byte) (int, error) {
	if cap(c.buf) < len(p) {
		c.buf = make([]byte, len(p))
	}
	want := c.buf[:len(p)]
	c.want.Read(want)
	if c.wrong < 0 && !bytes.Equal(p, want) {
		for i := range p {
			if p[i] != want[i] {
				c.wrong = c.at + int64(i)
				break
			}
		}
	}
	c.at += int64(len(p))
	if len(c.kills) > 0 && c.at >= c.kills[0] {
		c.kills = c.kills[1:]
		c.kill()
	}
	return len(p), nil
}

// However often the connection is cut and the agent killed, at whatever byte, a
// client that comes back by itself and one that is told from where get a
// gibibyte of output as it was written.
func TestAGibibyteComesWholeThroughRandomCuts(t *testing.T) { // R34
	size, cuts, kills := int64(1<<30+12_345), 60, 8
	if testing.Short() {
		size, cuts, kills = 64<<20, 20, 3
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	m, _, _ := installed(t)
	m.start()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	way := &cutting{machine: m}
	for range cuts {
		// Some in the middle of an answer's head, some of a frame, all before the end.
		n := draw.Int64N([]int64{500, 100_000, size / int64(cuts)}[draw.IntN(3)])
		way.cuts = append(way.cuts, n+1)
	}
	got := &comparing{want: stream(), wrong: -1}
	for range kills {
		got.kills = append(got.kills, draw.Int64N(size*9/10))
	}
	slices.Sort(got.kills)
	got.kill = func() { m.kill(); m.start() }
	s, err := m.client().Create(ctx, wire.SessionRequest{Argv: []string{exe}, Env: map[string]string{streamEnv: fmt.Sprint(size)},
		Spool: &wire.SpoolPolicy{Policy: wire.SpoolBlock}})
	if err != nil {
		t.Fatal(err)
	}
	c := agentclient.New(way)
	t.Cleanup(c.Close)
	lost, notices := 0, 0
	a := agentclient.Attachment{Stdout: got, Lost: func(from, to int64) { t.Errorf("%d to %d are lost", from, to) },
		Notice: func(string) { notices++ }}
	for got.at < size/2 { // each time from where the last one ended
		a.Patience = -1
		exit, at, err := c.Attach(ctx, s.ID, got.at, a)
		if ctx.Err() != nil || exit != nil || err == nil {
			t.Fatalf("at %d of %d: %+v, %v (seed %d)", got.at, size, exit, err, seed)
		}
		if at != got.at {
			t.Fatalf("it says %d, and %d came (seed %d)", at, got.at, seed)
		}
		if lost++; len(way.cuts) <= cuts/3 {
			break // the rest is for who comes back by itself
		}
	}
	a.Patience = 0
	var exit any
	for {
		e, _, err := c.Attach(ctx, s.ID, got.at, a)
		if err == nil {
			exit = *e
			if e.Code != 0 || e.Gone {
				t.Errorf("%+v (seed %d)", *e, seed)
			}
			break
		}
		// A first connection that is cut is no connection that was lost.
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("at %d of %d: %v (seed %d)", got.at, size, err, seed)
		}
	}
	if got.wrong >= 0 || got.at != size {
		t.Errorf("%d bytes of %d came, the first wrong one at %d (seed %d)", got.at, size, got.wrong, seed)
	}
	if len(got.kills) > 0 || lost == 0 {
		t.Errorf("%d kills and %d cuts were not made, %d attachments were cut (seed %d)", len(got.kills), len(way.cuts), lost, seed)
	}
	t.Logf("%d attachments were cut, %d cuts were left, %d notices, %+v", lost, len(way.cuts), notices, exit)
}
