package model

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/rotation"
)

type actions = map[string]func(*rapid.T)

func (w *world) some(r *rapid.T) *box {
	return w.boxes[rapid.IntRange(0, len(w.boxes)-1).Draw(r, "machine")]
}

// faults befall every world. A process that crashes does so within so many
// steps.
func (w *world) faults(steps int) actions {
	return actions{
		"plane down or up": func(*rapid.T) { w.plane.setDown(!w.plane.setDown(true)) },
		"crash at a step": func(r *rapid.T) {
			if b := w.some(r); len(b.agents) > 0 {
				p := b.agents[0].process
				p.mu.Lock()
				p.crashIn = rapid.IntRange(1, steps).Draw(r, "step")
				p.mu.Unlock()
				time.Sleep(32 * time.Second)
				if b.reap() {
					w.start(b)
				}
			}
		},
		"power cut": func(r *rapid.T) {
			b := w.some(r)
			images := b.disk.images()
			b.killAll()
			b.disk.cut(images[rapid.IntRange(0, len(images)-1).Draw(r, "survives")])
			w.start(b)
		},
		"disk full or not": func(r *rapid.T) { w.harm(w.some(r), func(d *disk) { d.full = !d.full }) },
	}
}

func (w *world) harm(b *box, f func(*disk)) {
	b.disk.mu.Lock()
	defer b.disk.mu.Unlock()
	f(b.disk)
}

func (w *world) spoil(fates []fate) {
	w.net.mu.Lock()
	w.net.fates = fates
	w.net.mu.Unlock()
}

// heal ends all faults, and starts every machine anew.
func (w *world) heal() {
	w.plane.setDown(false)
	w.net.mu.Lock()
	w.net.fates, w.net.late, w.net.doors = nil, nil, map[string]bool{}
	w.net.mu.Unlock()
	for _, b := range w.boxes {
		w.harm(b, func(d *disk) { d.full, d.unread = false, false })
		b.killAll()
		w.start(b)
	}
}

// rotating is a schedule of rotations of one of the plane's materials.
type rotating struct {
	*world
	r    *rapid.T
	kind string
	// refusals are a person's, who does what cannot be done now.
	refusals []error
	left     map[string]bool
}

func newRotating(r *rapid.T, w *world, kind string, refusals ...error) *rotating {
	return &rotating{w, r, kind, append(refusals, rotation.ErrNone, rotation.ErrNarrowing), map[string]bool{}}
}

func (g *rotating) must(err error) {
	g.r.Helper()
	if err != nil {
		g.r.Fatal(err)
	}
}

func (g *rotating) state() rotation.State {
	g.r.Helper()
	s, err := g.plane.store.RotationState(context.Background(), g.kind)
	g.must(err)
	return s
}

// steer is what a person does.
func (g *rotating) steer(f func(*rotation.State) ([]audit.Event, error)) {
	g.r.Helper()
	_, err := g.plane.store.Steer(context.Background(), g.kind, secret.Digest{}, f)
	if !slices.ContainsFunc(g.refusals, func(refused error) bool { return errors.Is(err, refused) }) && !errors.As(err, new(*rotation.VersionError)) {
		g.must(err)
	}
}

// pass has the engine do what it can, and buries it if it died.
func (g *rotating) pass() {
	g.plane.engine.Pass(context.Background())
	if g.plane.mortal.is {
		g.must(g.plane.kill())
	}
}

// repeat draws from what befalls every rotation and from what is this one's;
// between two passes of the engine there is what before does.
func (g *rotating) repeat(steps int, before, holds func(), own actions) {
	all := g.faults(steps)
	maps.Copy(all, actions{
		"time passes": func(r *rapid.T) {
			time.Sleep(rapid.SampledFrom([]time.Duration{time.Second, 11 * time.Second, 35 * time.Second, 2 * time.Minute}).Draw(r, "for"))
		},
		"the engine goes on": func(r *rapid.T) {
			for range rapid.IntRange(1, 6).Draw(r, "passes") {
				before()
				g.pass()
				time.Sleep(rapid.SampledFrom([]time.Duration{time.Second, 40 * time.Second, 90 * time.Second}).Draw(r, "for"))
			}
		},
		"the engine dies at a step": func(r *rapid.T) {
			g.plane.mortal.in = rapid.IntRange(1, 9).Draw(r, "step")
			g.pass()
			g.plane.mortal.in = 0
		},
		"leave": func(r *rapid.T) {
			b := g.some(r)
			g.left[b.id] = true
			g.steer(func(s *rotation.State) ([]audit.Event, error) {
				return s.Leave("person:dana", []string{b.id}, time.Now())
			})
		},
		"plane killed": func(*rapid.T) { g.must(g.plane.kill()) },
		"hangup":       func(*rapid.T) { g.must(g.plane.engine.Reload(context.Background())) },
		"bad network": func(r *rapid.T) {
			// Not what arrives late: a check of an earlier run of agentd would say that
			// the machine had gone back.
			bad := []fate{deliver, dropRequest, dropAnswer, hang}
			g.spoil(rapid.SliceOfN(rapid.SampledFrom(bad), 1, 8).Draw(r, "fates"))
		},
		"asleep": func(r *rapid.T) { g.some(r).killAll() },
		"awake": func(r *rapid.T) {
			if b := g.some(r); len(b.agents) == 0 {
				g.start(b)
			}
		},
		"": func(*rapid.T) {
			synctest.Wait()
			holds()
		},
	})
	maps.Copy(all, own)
	g.r.Repeat(all)
}

// settle ends all faults, and gives the engine the time to end what is under way.
func (g *rotating) settle(before, holds func()) rotation.State {
	g.heal()
	for range 60 {
		before()
		g.pass()
		time.Sleep(15 * time.Second)
	}
	synctest.Wait()
	holds()
	s := g.state()
	if s.Running() {
		g.r.Fatalf("the rotation does not end: %+v, %s", s.Run, g.plane.engine.Problem())
	}
	return s
}
