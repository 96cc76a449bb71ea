package model

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/store"
)

// usual is the number of schedules of a run that nobody asked for another of.
var usual bool

// parts run at once, each with its share of the schedules.
const parts = 2

// TestMain reads how many schedules a run makes: FLEET_MODEL_SCHEDULES.
func TestMain(m *testing.M) {
	flag.Parse()
	n := 2000
	usual = os.Getenv("FLEET_MODEL_SCHEDULES") == ""
	if testing.Short() {
		n = 200
	}
	if v := os.Getenv("FLEET_MODEL_SCHEDULES"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			fmt.Fprintln(os.Stderr, "FLEET_MODEL_SCHEDULES is no number")
			os.Exit(2)
		}
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	usual = usual && !given
	if !given {
		flag.Set("rapid.checks", strconv.Itoa(n/parts))
	}
	os.Exit(m.Run())
}

// memory is a directory whose fsync costs nothing, where there is one: what a
// kill leaves is the same, and the model makes no power cuts under the plane.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fleet-model-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestNoScheduleLocksOutOrLetsIn(t *testing.T) { // R16, R20-R23, R25
	base := memory(t)
	for i := range parts {
		t.Run(strconv.Itoa(i+1), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) { schedule(t, r, base, newWorld, run) })
		})
	}
}

// schedule is one of them, in a bubble of its own time.
func schedule(t *testing.T, r *rapid.T, base string, make func(string, int) (*world, error), run func(*rapid.T, *world)) {
	dir, err := os.MkdirTemp(base, "")
	if err != nil {
		r.Fatal(err)
	}
	defer os.RemoveAll(dir)
	// What rapid panics with in the bubble goes on outside.
	var thrown any
	synctest.Test(t, func(*testing.T) {
		w, err := make(dir, rapid.IntRange(1, 2).Draw(r, "machines"))
		if err != nil {
			thrown = err
			return
		}
		defer func() {
			thrown = recover()
			for _, b := range w.boxes {
				b.killAll()
			}
			w.plane.under.Wait()
			w.plane.store.Close()
		}()
		run(r, w)
	})
	if thrown != nil {
		panic(thrown)
	}
}

func run(r *rapid.T, w *world) {
	must := func(err error) {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
	}
	for _, b := range w.boxes {
		must(w.install(b, 0))
		w.start(b)
	}
	all := w.faults(16)
	maps.Copy(all, actions{
		"time passes": func(r *rapid.T) {
			time.Sleep(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 11 * time.Second, 32 * time.Second, 70 * time.Second}).Draw(r, "for"))
		},
		"ask": func(r *rapid.T) {
			w.ask(w.some(r))
		},
		"bad network": func(r *rapid.T) {
			f := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, int(fates)-1), func(n int) fate { return fate(n) }), 1, 6).Draw(r, "fates")
			w.spoil(f)
		},
		"what was held arrives": func(r *rapid.T) {
			w.net.mu.Lock()
			n := len(w.net.late)
			w.net.mu.Unlock()
			if n > 0 {
				w.plane.deliver(w.net.release(rapid.IntRange(0, n-1).Draw(r, "message")))
			}
		},
		"plane killed": func(r *rapid.T) {
			if rapid.IntRange(0, 2).Draw(r, "meant") == 0 {
				must(w.plane.kill())
			}
		},
		"restart": func(r *rapid.T) {
			b := w.some(r)
			for _, a := range b.agents {
				a.end(true)
			}
			b.agents = nil
			w.start(b)
		},
		"second agent": func(r *rapid.T) {
			if b := w.some(r); len(b.agents) < 2 {
				w.start(b)
			}
		},
		"no more files": func(r *rapid.T) { w.harm(w.some(r), func(d *disk) { d.unread = !d.unread }) },
		"install": func(r *rapid.T) {
			must(w.install(w.some(r), rapid.IntRange(0, 24).Draw(r, "crash")))
		},
		"delete": func(r *rapid.T) {
			if rapid.IntRange(0, 3).Draw(r, "meant") == 0 {
				w.edit(w.some(r).id, store.Change{Delete: true})
			}
		},
		"": func(r *rapid.T) {
			synctest.Wait()
			rows := w.look()
			for _, b := range w.boxes {
				must(w.holds(rows, b))
			}
			must(w.thief(rows, false))
		},
	})
	r.Repeat(all)
	must(w.thief(w.look(), true))
	settle(r, w)
}

// settle ends all faults. Then every machine gets back in by itself.
func settle(r *rapid.T, w *world) {
	w.heal()
	time.Sleep(5 * time.Minute)
	generations := map[string]int64{}
	for _, b := range w.boxes {
		row := w.row(b.id)
		if row == nil || !row.Credential.Proven {
			continue
		}
		generations[b.id] = row.Credential.Generation
		st := b.agents[0].store.Status()
		switch {
		case st.State != wire.CredentialOK || st.Problem != "" || st.Machine != b.id || st.Generation != row.Credential.Generation:
			r.Fatalf("%s does not get back in: %+v, the plane has generation %d", b.id, st, row.Credential.Generation)
		case !row.Asked.Rotate.IsZero() || !row.Credential.Next.IsZero() || row.Credential.Generation < 2:
			r.Fatalf("%s does not finish its rotation: %+v", b.id, row)
		case time.Since(row.LastCheck) > time.Minute:
			r.Fatalf("%s is silent", b.id)
		}
		if row.Credential.Generation > b.most {
			r.Fatalf("%s has generation %d, and was asked for no more than %d", b.id, row.Credential.Generation, b.most)
		}
	}
	time.Sleep(2 * time.Minute)
	for id, n := range generations {
		if row := w.row(id); row.Credential.Generation != n {
			r.Fatalf("%s rotates though nobody asks", id)
		}
	}
}
