package model

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/api"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/gate"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
)

// mortal makes the engine die at a step.
type mortal struct {
	mu sync.Mutex
	in int // steps until it dies, 0: it does not
	is bool
}

func (m *mortal) dies() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.in > 0 {
		if m.in--; m.in == 0 {
			m.is = true
		}
	}
	return m.is
}

// dyingStore is the store of an engine that may die before and after a commit.
type dyingStore struct {
	rotation.Store
	m *mortal
}

func (s dyingStore) Steer(ctx context.Context, kind string, session secret.Digest, f func(*rotation.State) ([]audit.Event, error)) (rotation.State, error) {
	if s.m.dies() {
		return rotation.State{}, errDead
	}
	st, err := s.Store.Steer(ctx, kind, session, f)
	if s.m.dies() {
		return rotation.State{}, errDead
	}
	return st, err
}

// dyingGate may die before and after each of its steps, and between the two
// files of an erasure.
type dyingGate struct {
	gate.Material
	m    *mortal
	file string
}

func (g dyingGate) Make(version int64) (rotation.Holding, error) {
	if g.m.dies() {
		return rotation.Holding{}, errDead
	}
	h, err := g.Material.Make(version)
	if g.m.dies() {
		return rotation.Holding{}, errDead
	}
	return h, err
}

func (g dyingGate) Prove(ctx context.Context, retired int64) error {
	err := g.Material.Prove(ctx, retired)
	if g.m.dies() {
		return errDead
	}
	return err
}

func (g dyingGate) Erase(keep int64) error {
	if g.m.dies() {
		return errDead
	}
	if g.m.dies() { // between its two steps
		if b, err := os.ReadFile(g.file + ".secondary"); err == nil && strings.HasPrefix(string(b), strconv.FormatInt(keep, 10)+" ") {
			return errors.Join(errDead, os.WriteFile(g.file, b, 0o600))
		}
		return errDead
	}
	err := g.Material.Erase(keep)
	if g.m.dies() {
		return errDead
	}
	return err
}

var gatePolicy = machine.Policy{Interval: 30 * time.Second}

// openGate is what planed does at its start.
func (p *plane) openGate() error {
	p.mortal = mortal{}
	p.gate = gate.New(p.gateFile, "")
	p.engine = &rotation.Engine{Kind: wire.MaterialGate, Store: dyingStore{p.store, &p.mortal}, Replica: "plane", Flat: gatePolicy.Flat(),
		Log: hclog.NewNullLogger(), Now: time.Now,
		Material: dyingGate{gate.Material{Gate: p.gate, Present: func(ctx context.Context, v string) (bool, error) {
			p.mu.Lock()
			h := p.handler
			p.mu.Unlock()
			return api.Present(ctx, h, v)
		}}, &p.mortal, p.gateFile}}
	p.engine.Init()
	return p.engine.Reload(context.Background())
}

// shut counts a check that was turned away at the gate, of a machine that holds
// nothing that would not be.
func (n *network) shut(m message, status int) {
	if m.path != wire.PathCheck || status != http.StatusUnauthorized {
		return
	}
	if _, ok := n.plane.gate.Judge(m.header.Get(wire.HeaderGate)); ok {
		return
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(m.header.Get("Authorization"), "Bearer "), ".")
	n.mu.Lock()
	defer n.mu.Unlock()
	// A machine that died between an answer and what follows from it presents the
	// other value first when it is back.
	if !n.plane.admits(n.disks[id]) {
		n.refused[id]++
	}
}

// admits reports whether a disk holds a token that is accepted.
func (p *plane) admits(d *disk) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range []string{credential.GateFile, credential.GateFile + ".next"} {
		if f := d.now[name]; f != nil {
			if v, err := wire.ParseGate(f.data); err == nil {
				if _, ok := p.gate.Judge(v.Value); ok {
					return true
				}
			}
		}
	}
	return false
}

func newGatedWorld(dir string, boxes int) (*world, error) {
	p, err := newGatedPlane(dir)
	if err != nil {
		return nil, err
	}
	return worldOf(p, boxes), nil
}

// TestNoScheduleShutsAnybodyOutAtTheGate: whatever is killed, lost, full or
// asleep while the gate token rotates, no machine that nobody named with leave is
// ever left without a token that gets it in, and in the end all hold one version
// and the others are refused. // R26
func TestNoScheduleShutsAnybodyOutAtTheGate(t *testing.T) {
	base := memory(t)
	if usual { // one of these is as much work as several of the others
		n := 250
		if testing.Short() {
			n = 25
		}
		flag.Set("rapid.checks", strconv.Itoa(n))
	}
	for i := range parts {
		t.Run(strconv.Itoa(i+1), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) { schedule(t, r, base, newGatedWorld, runGate) })
		})
	}
}

// gateRun is one schedule.
type gateRun struct {
	*rotating
	// values are all that ever were, by version.
	values map[int64]string
}

// see learns the values that lie in the plane's files.
func (g *gateRun) see() {
	for _, path := range []string{g.plane.gateFile, g.plane.gateFile + ".secondary"} {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		g.must(err)
		v, err := wire.ParseGate(string(b))
		g.must(err)
		if was, ok := g.values[v.Version]; ok && was != v.Value {
			g.r.Fatalf("version %d is two values", v.Version)
		}
		g.values[v.Version] = v.Value
	}
}

func (g *gateRun) holds() {
	g.see()
	g.net.mu.Lock()
	defer g.net.mu.Unlock()
	for id, n := range g.net.refused {
		if !g.left[id] {
			g.r.Fatalf("%s was shut out %d times, and nobody left it", id, n)
		}
	}
}

func runGate(r *rapid.T, w *world) {
	g := &gateRun{newRotating(r, w, wire.MaterialGate, rotation.ErrDrill, rotation.ErrRotation), map[int64]string{}}
	for _, b := range w.boxes {
		g.must(w.install(b, 0))
		w.net.disks[b.id] = b.disk
		w.start(b)
	}
	start := func(by string, drill bool) {
		g.steer(func(s *rotation.State) ([]audit.Event, error) {
			return s.Start(rotation.Begin{By: by, Drill: drill, Duration: 5 * time.Minute}, time.Now())
		})
	}
	g.repeat(16, func() {}, g.holds, actions{
		"rotate":     func(*rapid.T) { start("person:dana", false) },
		"two rotate": func(*rapid.T) { start("person:dana", false); start("person:mo", false) },
		"drill":      func(*rapid.T) { start("token:cron", true) },
		"abort": func(*rapid.T) {
			g.steer(func(s *rotation.State) ([]audit.Event, error) { return s.Abort("person:dana", nil, time.Now()) })
		},
	})
	g.settle()
}

// settle ends all faults. Then a rotation that is under way ends, every machine
// holds what the plane has, also one that was left, and nothing else is accepted.
func (g *gateRun) settle() {
	w := g.world
	s := g.rotating.settle(func() {}, g.holds)
	for _, b := range w.boxes {
		st := b.agents[0].store.Status()
		row := w.row(b.id)
		if st.Gate != s.Version || st.Problem != "" || row.Gate != s.Version || time.Since(row.LastCheck) > time.Minute {
			g.r.Fatalf("%s holds version %d and presented %d, the plane has %d: %+v", b.id, st.Gate, row.Gate, s.Version, st)
		}
		if left := files(b.disk); slices.Contains(left, "gate.next") {
			g.r.Fatalf("%s holds two versions: %v", b.id, left)
		}
	}
	for v, value := range g.values {
		if _, ok := w.plane.gate.Judge(value); ok != (v == s.Version) {
			g.r.Fatalf("version %d is accepted: %v; the plane has %d", v, ok, s.Version)
		}
	}
	if _, err := os.Stat(w.plane.gateFile + ".secondary"); !os.IsNotExist(err) {
		g.r.Fatalf("the secondary file stays: %v", err)
	}
}

func files(d *disk) (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, f := range d.now {
		if f != nil {
			names = append(names, name)
		}
	}
	return names
}
