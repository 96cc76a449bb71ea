package signed

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/rotation"
)

// states is a store of one state.
type states struct{ s rotation.State }

func (s *states) RotationState(context.Context, string) (rotation.State, error) {
	return s.s.Clone(), nil
}

var t0 = time.Unix(1700000000, 0).UTC()

const (
	placeA = "https://a.example"
	placeB = "https://b.example:8443"
)

func statement(t *testing.T, version int64, url string) *rotation.Signing {
	t.Helper()
	b, err := json.Marshal(wire.Statement{Schema: wire.SchemaStatement, Kind: wire.MaterialURL, Version: version, Planes: []string{placeA, placeB}, URL: url,
		SignedAt: wire.Time{Time: t0}})
	if err != nil {
		t.Fatal(err)
	}
	_, s, err := Read(wire.MaterialURL, rotation.Signed{Statement: string(b), Signature: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

func initDir(t *testing.T) (string, datadir.Plane) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "plane")
	made, err := datadir.Init(t.Context(), datadir.Options{Dir: dir, URL: placeA, Owner: "dana", Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return dir, made.Plane
}

// start is what a plane does when it starts.
func start(t *testing.T, dir string, st *states) *URL {
	t.Helper()
	p, err := datadir.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	u := NewURL(dir, p, st)
	primary, secondary, hold, err := u.Load()
	if err == nil {
		_, err = st.s.Adopt(primary, secondary, t0)
	}
	if err != nil {
		t.Fatal(err)
	}
	hold()
	u.Apply(st.s)
	return u
}

// A plane that starts again at any point of a move accepts what it accepted
// before, and ends where the store says. // R26
func TestAURLIsMovedThroughRestartsAtEveryStep(t *testing.T) {
	for _, back := range []bool{false, true} {
		dir, _ := initDir(t)
		st := &states{rotation.State{Kind: wire.MaterialURL}}
		u := start(t, dir, st)
		judge := func(host string, retiring, refused bool) {
			t.Helper()
			if a, b := u.Judge(host); a != retiring || b != refused {
				t.Errorf("at %s in step %s: retiring %t, refused %t", host, st.s.Run.Step, a, b)
			}
		}
		if v := u.Apply(st.s); !slices.Equal(v, []int64{1}) {
			t.Fatal(v)
		}
		if _, err := st.s.Start(rotation.Begin{Signing: statement(t, 2, placeB)}, t0); err != nil {
			t.Fatal(err)
		}
		u = start(t, dir, st)
		h, err := u.Make(2)
		if err != nil || st.s.Made(h) != nil {
			t.Fatal(err)
		}
		u = start(t, dir, st)
		if v := u.Apply(st.s); !slices.Equal(v, []int64{1}) {
			t.Fatal("it is accepted before an owner was there", v)
		}
		if u.Heard("c.example") || !u.Heard("B.example:8443") || u.Heard("b.example:8443") {
			t.Fatal("it was not heard once")
		}
		if v := u.Apply(st.s); !slices.Equal(v, []int64{1, 2}) {
			t.Fatal(v)
		}
		st.s.Run.Step = wire.StepRoll
		u = start(t, dir, st)
		judge("a.example", true, false)
		judge("a.example:443", true, false)
		judge("b.example:8443", false, false)
		if v, ok := u.Now().Want(0); !ok || v != 2 || u.Current() != placeB {
			t.Fatal(v, u.Current())
		}
		from, to, version := "a.example", "b.example:8443", int64(2)
		if back {
			if _, err := st.s.Abort("person:dana", statement(t, 3, placeA), t0); err != nil {
				t.Fatal(err)
			}
			from, to, version = to, from, 3
			u = start(t, dir, st)
			judge(from, true, false)
		}
		st.s.Run.Step = wire.StepNarrow
		u = start(t, dir, st)
		judge(from, false, true)
		judge(to, false, false)
		u.Present = func(_ context.Context, host string) (bool, error) { _, refused := u.Judge(host); return refused, nil }
		if err := u.Prove(t.Context(), st.s.Retiring()); err != nil {
			t.Fatal(err)
		}
		st.s.Run.ProvedAt = t0
		if u.Only(version) == back {
			if err := u.Erase(version); err != nil {
				t.Fatal(err)
			}
		} else if !back {
			t.Fatal("the URL is in place already")
		}
		// Killed between plane.json and the store's word that it is done.
		u = start(t, dir, st)
		if !u.Only(version) {
			t.Fatal("the wrong URL is in plane.json")
		}
		judge(from, false, true)
		st.s.Advance(rotation.Facts{Erased: true}, t0)
		if st.s.Running() {
			t.Fatalf("%+v", st.s.Run)
		}
		u = start(t, dir, st)
		if !back {
			judge(from, false, true)
		}
		judge(to, false, false)
		p, err := datadir.Load(dir)
		if err != nil || "https://"+to != p.URL || u.Current() != p.URL || !back && !slices.Equal(p.Former, []string{placeA}) {
			t.Fatalf("%+v, %v", p, err)
		}
		if v, ok := u.Now().Want(1); !ok || v != version {
			t.Fatal("a sleeper is not told", v)
		}
	}
}

// A proof is one only if what is kept still works. // R26
func TestAnOutageProvesNothing(t *testing.T) {
	dir, _ := initDir(t)
	st := &states{rotation.State{Kind: wire.MaterialURL}}
	u := start(t, dir, st)
	if _, err := st.s.Start(rotation.Begin{Signing: statement(t, 2, placeB)}, t0); err != nil {
		t.Fatal(err)
	}
	h, err := u.Make(2)
	if err != nil || st.s.Made(h) != nil {
		t.Fatal(err)
	}
	st.s.Run.Step = wire.StepNarrow
	u.Apply(st.s)
	for name, present := range map[string]func(context.Context, string) (bool, error){
		"all refused":  func(context.Context, string) (bool, error) { return true, nil },
		"none refused": func(context.Context, string) (bool, error) { return false, nil },
		"no answer":    func(context.Context, string) (bool, error) { return false, errors.New("no answer") },
	} {
		u.Present = present
		if err := u.Prove(t.Context(), 1); err == nil {
			t.Errorf("%s: proved", name)
		}
	}
}

// A plane that somebody put elsewhere by hand is where it is. // R26
func TestAURLThatWasChangedByHandCounts(t *testing.T) {
	dir, _ := initDir(t)
	st := &states{rotation.State{Kind: wire.MaterialURL}}
	start(t, dir, st)
	if _, err := datadir.Update(dir, func(p *datadir.Plane) { p.URL = placeB }); err != nil {
		t.Fatal(err)
	}
	u := start(t, dir, st)
	if st.s.Version != 2 || u.Current() != placeB {
		t.Fatalf("%+v", st.s)
	}
	// Without a statement nobody is refused, and nobody told.
	if _, refused := u.Judge("a.example"); refused {
		t.Error("it refuses")
	}
	if _, ok := u.Now().Want(0); ok {
		t.Error("it wants")
	}
}
