package watch

import (
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// watched opens a watch and reads it up to where it begins.
func watched(t *testing.T, s *Set, target Target) *follower {
	t.Helper()
	target.Dir, target.Real = open(t, target.Path), true
	r, err := s.Open(target, "")
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, r: r}
	for f.next().Event != wire.WatchReady {
	}
	f.seen = nil
	return f
}

func set(t *testing.T) *Set {
	s := &Set{}
	t.Cleanup(s.Close)
	return s
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// want reads as many events as there are words for.
func (f *follower) want(words ...string) {
	f.t.Helper()
	var got []string
	for range words {
		got = append(got, describe(f.next()))
	}
	if !slices.Equal(got, words) {
		f.t.Fatalf("got  %q\nwant %q", got, words)
	}
}

// gate holds a watch up while it begins to watch a new directory, so that what is
// done meanwhile waits in the kernel.
type gate struct {
	closed   atomic.Bool
	here, on chan struct{}
}

func (g *gate) between(string) {
	if g.closed.CompareAndSwap(true, false) {
		g.here <- struct{}{}
		<-g.on
	}
}

// hold makes the watch wait, does what is to be done, and lets it go on.
func (g *gate) hold(t *testing.T, dir string, do func()) {
	t.Helper()
	g.closed.Store(true)
	must(t, os.Mkdir(dir+"/held", 0o700))
	<-g.here
	do()
	g.on <- struct{}{}
}

func newGate() *gate { return &gate{here: make(chan struct{}), on: make(chan struct{})} }

// TestRenamesArePaired: by the kernel's cookie, for files and for directories with
// all that is below them; what leaves the tree is removed, and what comes in is
// created with all that is in it. // R35
func TestRenamesArePaired(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	must(t, os.MkdirAll(dir+"/a/deep", 0o700), os.Mkdir(dir+"/b", 0o700), os.WriteFile(dir+"/f", nil, 0o600), os.MkdirAll(out+"/new/sub", 0o700))
	g := newGate()
	f := watched(t, set(t), Target{Path: dir, between: g.between})
	g.hold(t, dir, func() {
		must(t, os.Rename(dir+"/f", dir+"/a/g"), os.Rename(dir+"/a", dir+"/b/a"), os.WriteFile(dir+"/b/a/deep/x", nil, 0o600), os.Rename(dir+"/b/a/g", dir+"/f"))
	})
	f.want("created held/", "renamed f a/g", "renamed a b/a/", "created b/a/deep/x", "written b/a/deep/x", "renamed b/a/g f")
	must(t, os.Rename(dir+"/b/a", out+"/a"))
	f.want("removed b/a/")
	must(t, os.WriteFile(out+"/a/unheard", nil, 0o600), os.Rename(out+"/new", dir+"/new"))
	f.want("created new/", "created new/sub/")
	must(t, os.Mkdir(dir+"/new/sub/x", 0o700))
	f.want("created new/sub/x/")
}

// TestNamesThatChangePlacesAreBothThere. // R35
func TestNamesThatChangePlacesAreBothThere(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/a", nil, 0o600), os.WriteFile(dir+"/b", nil, 0o600), os.Mkdir(dir+"/d", 0o700), os.Mkdir(dir+"/e", 0o700))
	g := newGate()
	f := watched(t, set(t), Target{Path: dir, between: g.between})
	swap := func(a, b string) error {
		return unix.Renameat2(unix.AT_FDCWD, dir+a, unix.AT_FDCWD, dir+b, unix.RENAME_EXCHANGE)
	}
	g.hold(t, dir, func() { must(t, swap("/a", "/b"), swap("/d", "/e")) })
	f.want("created held/", "renamed a b", "renamed b a", "created b", "overflow changed", "ready")
}

// TestAChangeOfEachKind is one event of its kind, with a name of any bytes. // R35
func TestAChangeOfEachKind(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/d", 0o700))
	f := watched(t, set(t), Target{Path: dir})
	name := dir + "/d/\xff\n\"\\"
	must(t, os.WriteFile(name, []byte("x"), 0o600))
	f.want("created d/\xff\n\"\\", "modified d/\xff\n\"\\", "written d/\xff\n\"\\")
	must(t, os.Chmod(name, 0o644))
	f.want("attributes d/\xff\n\"\\")
	must(t, os.Chmod(dir+"/d", 0o755))
	f.want("attributes d/")
	must(t, os.Chmod(dir, 0o755))
	f.want("attributes/")
	must(t, os.Symlink("nowhere", dir+"/l"), os.Link(name, dir+"/h"), unix.Mkfifo(dir+"/p", 0o600))
	f.want("created l", "created h", "created p")
	must(t, os.Remove(name))
	f.want("removed d/\xff\n\"\\")
	must(t, os.Remove(dir+"/d"))
	f.want("removed d/")
}

// FuzzNotices: what is read from the kernel is cut at its bounds.
func FuzzNotices(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0x40, 0, 0, 0, 0, 16, 0, 0, 0, 'n', 'a', 'm', 'e', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := &queue{bindings: map[binding]int{}}
		q.parse(b)
		bytes := 0
		for _, n := range q.list {
			bytes += noticeCost + len(n.name)
		}
		if bytes != q.bytes || len(q.list)*unix.SizeofInotifyEvent > len(b) {
			t.Fatalf("%d bytes are counted as %d of %d notices", len(b), q.bytes, len(q.list))
		}
		for {
			n, ok, _ := q.next()
			if !ok {
				break
			}
			if n.structural() && q.moving(n.wd, n.name) && !slices.ContainsFunc(q.list[q.head:], func(m notice) bool { return m.wd == n.wd && m.name == n.name }) {
				t.Fatalf("%+v is waited for and does not come", n)
			}
		}
		if q.bytes != 0 || len(q.bindings) != 0 {
			t.Fatalf("%d bytes, %v are left", q.bytes, q.bindings)
		}
		for rest := b; len(rest) > 0; {
			var e entry
			before := len(rest)
			if e, rest = parseEntry(rest); len(rest) >= before || len(e.name) > before {
				t.Fatalf("%q is longer than it was", rest)
			}
		}
	})
}
