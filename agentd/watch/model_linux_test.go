package watch

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func onDisk(t interface{ Fatal(...any) }, dir string) map[string]bool {
	all := map[string]bool{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && p != dir {
			all[strings.TrimPrefix(p, dir+"/")] = d.IsDir()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// deed is something that somebody does to the tree, or tries to.
type deed struct{ what, a, b string }

func (d deed) do(dir, outside string) {
	a, b := filepath.Join(dir, d.a), filepath.Join(dir, d.b)
	switch d.what {
	case "mkdir":
		os.Mkdir(a, 0o700)
	case "mkdir -p":
		os.MkdirAll(a+"/x/y", 0o700)
	case "write":
		os.WriteFile(a, []byte(d.b), 0o600)
	case "append":
		if f, err := os.OpenFile(a, os.O_WRONLY|os.O_APPEND, 0); err == nil {
			f.WriteString("more")
			f.Close()
		}
	case "symlink":
		os.Symlink("x", a)
	case "link":
		os.Link(a, b)
	case "rm":
		os.Remove(a)
	case "rm -r":
		os.RemoveAll(a)
	case "mv":
		unix.Rename(a, b)
	case "exchange":
		unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	case "mv out":
		unix.Rename(a, filepath.Join(outside, filepath.Base(d.b)))
	case "mv in":
		unix.Rename(filepath.Join(outside, filepath.Base(d.a)), b)
	case "replace": // and something of the same name again
		unix.Rename(a, b)
		os.Mkdir(a, 0o700)
	}
}

var deeds = rapid.Custom(func(t *rapid.T) deed {
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z\xff"}), 1, 4).Draw(t, "path"), "/")
	})
	what := rapid.SampledFrom([]string{"mkdir", "mkdir", "mkdir -p", "write", "append", "symlink", "link", "rm", "rm -r", "mv", "mv", "mv", "exchange", "mv out", "mv in", "replace"})
	return deed{what.Draw(t, "what"), path.Draw(t, "a"), path.Draw(t, "b")}
})

// TestWhoAppliesTheEventsHasTheTree: whatever is done to a tree and when - before
// the watch began, while a directory is opened, watched or listed, faster than
// anybody looks - whoever applies the events to what they knew has what is on disk,
// or was told to look again and has it then. // R35
func TestWhoAppliesTheEventsHasTheTree(t *testing.T) {
	base := t.TempDir()
	runs := 0
	lost := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		dir, outside := fmt.Sprintf("%s/%d/in", base, runs), fmt.Sprintf("%s/%d/out", base, runs)
		for _, d := range []string{dir, outside} {
			if err := os.MkdirAll(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		defer os.RemoveAll(filepath.Dir(dir))
		for _, d := range rapid.SliceOfN(deeds, 0, 6).Draw(t, "before") {
			d.do(dir, outside)
		}
		meanwhile := rapid.SliceOfN(rapid.SliceOfN(deeds, 0, 3), 0, 12).Draw(t, "meanwhile")
		var mu sync.Mutex
		log := []string{}
		do := func(list []deed, when string) {
			for _, d := range list {
				log = append(log, fmt.Sprintf("%s: %s %q %q", when, d.what, d.a, d.b))
				d.do(dir, outside)
			}
		}
		s := &Set{}
		defer s.Close()
		r, err := s.Open(Target{Dir: open(t, dir), Path: dir, Initial: true, between: func(step string) {
			mu.Lock()
			defer mu.Unlock()
			if len(meanwhile) > 0 {
				do(meanwhile[0], step)
				meanwhile = meanwhile[1:]
			}
		}}, "")
		if err != nil {
			t.Fatal(err)
		}
		known := &replica{entries: map[string]bool{}}
		events := &follower{t: t, r: r}
		for _, list := range rapid.SliceOfN(rapid.SliceOfN(deeds, 1, 8), 1, 4).Draw(t, "after") {
			mu.Lock()
			do(list, "then")
			mu.Unlock()
			if rapid.Bool().Draw(t, "wait") {
				events.settle(known, dir)
			}
		}
		mu.Lock()
		meanwhile = nil
		mu.Unlock()
		events.settle(known, dir)
		lost += known.lost
		if want := onDisk(t, dir); !maps.Equal(want, known.entries) {
			t.Fatalf("on disk: %q\nknown: %q\nevents:\n%s\ndeeds:\n%s", slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(known.entries)), strings.Join(events.seen, "\n"), strings.Join(log, "\n"))
		}
	})
	t.Logf("%d trees, %d overflows", runs, lost)
}
