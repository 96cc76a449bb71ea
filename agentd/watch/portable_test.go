package watch

import (
	"context"
	"errors"
	"maps"
	"os"
	"testing"

	"fleet.example/fleet/core/wire"
)

// TestByNames: the look for systems without inotify tells of what appears and
// vanishes, in new directories too, and of the end. // R35
func TestByNames(t *testing.T) {
	dir := t.TempDir() + "/d"
	do := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	do(os.MkdirAll(dir+"/a/b", 0o700))
	target := Target{Dir: open(t, dir), Path: dir, Real: true, Initial: true}
	defer target.Dir.Close()
	l, err := beginNames(&target)
	if err != nil {
		t.Fatal(err)
	}
	w := &watch{target: target, events: newEvents("x")}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.run(ctx, l, false)
	}()
	defer func() { cancel(); <-ended }()
	n, _ := w.events.attach(0)
	f := &follower{t: t, r: &Reader{watch: w, number: n}}
	known := &replica{entries: map[string]bool{}}
	f.settle(known, dir)
	do(os.MkdirAll(dir+"/x/y/z", 0o700), os.WriteFile(dir+"/x/y/f", []byte("f"), 0o600), os.Rename(dir+"/a", dir+"/x/a"), os.Remove(dir+"/x/y/z"))
	want := map[string]bool{"x": true, "x/y": true, "x/y/f": false, "x/a": true, "x/a/b": true}
	for {
		f.settle(known, dir)
		got := maps.Clone(known.entries)
		for path := range got {
			if _, there := want[path]; !there && len(path) > 7 && path[:7] == "settled" {
				delete(got, path)
			}
		}
		if maps.Equal(got, want) {
			break // or more comes: by names there is no order between directories
		}
	}
	do(os.RemoveAll(dir))
	for ev := f.next(); ev.Event != wire.WatchEnded; ev = f.next() {
	}
}

// TestByNamesOnlyWhatNothingConfines: a name may lead out of a tree. // R33
func TestByNamesOnlyWhatNothingConfines(t *testing.T) {
	dir := t.TempDir()
	var refused *Error
	if _, err := beginNames(&Target{Path: dir}); !errors.As(err, &refused) || refused.Code != wire.CodeForbidden {
		t.Fatal(err)
	}
}
