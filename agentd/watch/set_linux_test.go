package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// TestAReaderWhoStopsMakesAnOverflow and no memory: what is not read fills bounded
// queues, the first of them the kernel's, and it is said that changes were lost.
// What was told before is told all the same, and after it everything again. // R35
func TestAReaderWhoStopsMakesAnOverflow(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/a", nil, 0o600), os.WriteFile(dir+"/b", nil, 0o600))
	s := set(t)
	f := watched(t, s, Target{Path: dir, Initial: true})
	w := f.r.watch
	const more = maxUnsent/lineCost + maxQueue/noticeCost + 1<<15 // than all queues take
	for range more / 2 {                                          // two names, or the kernel would count one change only
		must(t, os.Chmod(dir+"/a", 0o600), os.Chmod(dir+"/b", 0o600))
	}
	w.events.mu.Lock()
	held := w.events.unsent + w.events.kept
	w.events.mu.Unlock()
	if held > maxUnsent+maxKept+64<<10 {
		t.Errorf("%d bytes of events are held", held)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 96<<20 {
		t.Errorf("%d MiB are held", m.HeapAlloc>>20)
	}
	must(t, os.Remove(dir+"/b"), os.WriteFile(dir+"/c", nil, 0o600))
	for {
		if ev := f.next(); ev.Event == wire.WatchOverflow {
			if ev.Reason != wire.OverflowReader {
				t.Errorf("the reason is %s", ev.Reason)
			}
			break
		}
	}
	known := &replica{entries: map[string]bool{}}
	for {
		ev := f.next()
		known.apply(ev)
		if ev.Event == wire.WatchReady {
			break
		}
	}
	if _, b := known.entries["b"]; b || len(known.entries) != 2 {
		t.Errorf("%v", known.entries)
	}
}

// TestAWatchGoesOnForAReaderWhoComesBack: nothing twice, nothing missed; and where
// it cannot, an overflow says so. // R35
func TestAWatchGoesOnForAReaderWhoComesBack(t *testing.T) {
	dir := t.TempDir()
	s := set(t)
	f := watched(t, s, Target{Path: dir})
	must(t, os.Mkdir(dir+"/a", 0o700), os.Mkdir(dir+"/b", 0o700), os.Mkdir(dir+"/c", 0o700))
	token := f.next().Token
	f.want("created b/") // of which nobody hears that it arrived
	f.r.Close()
	must(t, os.Mkdir(dir+"/d", 0o700))
	again := func(target Target, from string) *follower {
		t.Helper()
		target.Dir = open(t, target.Path)
		r, err := s.Open(target, from)
		must(t, err)
		return &follower{t: t, r: r}
	}
	two := again(Target{Path: dir}, token)
	two.want("created b/", "created c/", "created d/")
	// One who comes back before it is known that the other has gone takes over.
	three := again(Target{Path: dir}, token)
	if _, err := two.r.Next(t.Context(), nil, 1); !errors.Is(err, errTaken) {
		t.Error(err)
	}
	two.r.Close()
	three.want("created b/", "created c/", "created d/")
	s.Leave() // as an agent does that ends
	if _, err := three.r.Next(t.Context(), nil, 1); !errors.Is(err, errTaken) {
		t.Error(err)
	}
	last := again(Target{Path: dir}, token)
	last.want("created b/")
	for _, from := range []string{"x", "x.1", ".", token[:len(token)-1] + "900", token + "0000000000000000000000", "\x00.-1"} {
		again(Target{Path: dir}, from).want("overflow resume", "ready")
	}
	for _, other := range []Target{{Path: dir, Shallow: true}, {Path: dir, Name: "a"}, {Path: dir + "/a"}} {
		again(other, token).want("overflow resume", "ready")
	}
	all := again(Target{Path: dir, Initial: true}, token)
	all.want("overflow resume")
	known := &replica{entries: map[string]bool{}}
	for ev := all.next(); ev.Event != wire.WatchReady; ev = all.next() {
		known.apply(ev)
	}
	if len(known.entries) != 4 {
		t.Errorf("%v", known.entries)
	}
}

// TestWhatWasSentLongAgoIsNotKept: a token of it is answered with an overflow.
func TestWhatWasSentLongAgoIsNotKept(t *testing.T) {
	e := newEvents("x")
	reader, _ := e.attach(0)
	name := strings.Repeat("n", 1000)
	for i := range 3 * maxKept / len(name) {
		if _, err := e.append(t.Context(), wire.WatchEvent{Event: wire.WatchCreated, Path: wire.Bytes(name)}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.take(t.Context(), reader, nil, 1); err != nil {
			t.Fatal(i, err)
		}
	}
	if e.kept > maxKept || e.unsent != 0 || len(e.lines)*len(name) > maxKept {
		t.Errorf("%d bytes and %d lines are kept, %d unsent", e.kept, len(e.lines), e.unsent)
	}
	if _, ok := e.attach(1); ok {
		t.Error("the second event is still there")
	}
	last := e.next - 1
	if _, ok := e.attach(last - 10); !ok {
		t.Error("the last ten are gone")
	}
	if _, ok := e.attach(last + 1); ok {
		t.Error("a token of the future is taken")
	}
}

// TestAChangeThatRepeatsIsSaidOnceWhileNobodyReads.
func TestAChangeThatRepeatsIsSaidOnceWhileNobodyReads(t *testing.T) {
	e := newEvents("x")
	say := func(event, path string) {
		e.append(t.Context(), wire.WatchEvent{Event: event, Path: wire.Bytes(path)})
	}
	for range 3 {
		say(wire.WatchModified, "a")
	}
	say(wire.WatchModified, "b")
	say(wire.WatchModified, "a")
	say(wire.WatchCreated, "a")
	say(wire.WatchCreated, "a")
	if len(e.lines) != 5 {
		t.Fatalf("%q", e.lines)
	}
	reader, _ := e.attach(0)
	e.append(t.Context(), wire.WatchEvent{Event: wire.WatchModified, Path: "a"})
	e.take(t.Context(), reader, nil, 1<<20)
	say(wire.WatchModified, "a") // another change, since the one before was read
	if len(e.lines) != 7 {
		t.Errorf("%q", e.lines)
	}
}

// TestTheEndOfWhatIsWatchedIsSaid: removed or moved away, whatever is open. // R35
func TestTheEndOfWhatIsWatchedIsSaid(t *testing.T) {
	for name, end := range map[string]func(dir string) error{
		"removed": os.Remove,
		"moved":   func(dir string) error { return os.Rename(dir, dir+"-moved") },
	} {
		dir := t.TempDir() + "/d"
		must(t, os.Mkdir(dir, 0o700))
		f := watched(t, set(t), Target{Path: dir})
		must(t, end(dir))
		var ev wire.WatchEvent
		for ev = f.next(); ev.Event == wire.WatchAttributes; ev = f.next() {
		}
		if ev.Event != wire.WatchEnded || ev.Error.Code != wire.CodeWatchGone {
			t.Errorf("%s: %s", name, describe(ev))
		}
		if b, err := f.r.Next(t.Context(), nil, 1); err != nil || len(b) != 0 {
			t.Errorf("%s: after the end: %q, %v", name, b, err)
		}
		f.r.Close()
	}
}

// TestOneFileIsWatchedByItsName: what takes its place is told of, its neighbours
// are not. // R35
func TestOneFileIsWatchedByItsName(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/f", nil, 0o600), os.Mkdir(dir+"/d", 0o700))
	f := watched(t, set(t), Target{Path: dir, Name: "f"})
	must(t, os.WriteFile(dir+"/g", []byte("x"), 0o600), os.Mkdir(dir+"/d/e", 0o700), os.Rename(dir+"/g", dir+"/f"), os.Chmod(dir, 0o711), os.Chmod(dir+"/f", 0o640),
		os.Rename(dir+"/f", dir+"/h"), os.Rename(dir+"/h", dir+"/i"), os.Mkdir(dir+"/f", 0o700), os.Mkdir(dir+"/f/x", 0o700), os.RemoveAll(dir+"/f"))
	f.want("created f", "attributes f", "removed f", "created f/", "removed f/")
}

// TestShallowIsTheDirectoryAlone.
func TestShallowIsTheDirectoryAlone(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/d/e", 0o700))
	f := watched(t, set(t), Target{Path: dir, Shallow: true})
	must(t, os.WriteFile(dir+"/d/x", nil, 0o600), os.Mkdir(dir+"/n", 0o700), os.Mkdir(dir+"/n/o", 0o700), os.Remove(dir+"/n/o"), os.Rename(dir+"/n", dir+"/m"))
	f.want("created n/", "renamed n m/")
}

// TestNoLinkLeadsOut: a link is an entry like others; what is made of a directory
// while it is opened is not followed. // R33, R35
func TestNoLinkLeadsOut(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	must(t, os.Symlink(out, dir+"/l"), os.Mkdir(out+"/secret", 0o700))
	swaps := 0
	f := watched(t, set(t), Target{Path: dir, Initial: true, between: func(string) {
		if swaps++; swaps%2 == 1 { // whatever is being opened becomes a link, and then something else
			os.Remove(dir + "/n")
			os.Symlink(out, dir+"/n")
		} else {
			os.Remove(dir + "/n")
			os.Mkdir(dir+"/n", 0o700)
		}
	}})
	known := &replica{entries: map[string]bool{}}
	for range 50 {
		os.RemoveAll(dir + "/n")
		os.Mkdir(dir+"/n", 0o700)
	}
	must(t, os.WriteFile(out+"/secret/x", nil, 0o600))
	f.settle(known, dir)
	for _, line := range f.seen {
		if strings.Contains(line, "secret") || strings.Contains(line, "/x") {
			t.Errorf("told: %s", line)
		}
	}
}

// TestWatchesAreBounded: those that nobody reads make room first.
func TestWatchesAreBounded(t *testing.T) {
	dir := t.TempDir()
	s := set(t)
	var all []*follower
	for range maxWatches {
		all = append(all, watched(t, s, Target{Path: dir}))
	}
	var refused *Error
	if _, err := s.Open(Target{Dir: open(t, dir), Path: dir}, ""); !errors.As(err, &refused) || refused.Code != wire.CodeBusy {
		t.Fatal(err)
	}
	all[3].r.Close()
	all[5].r.Close()
	watched(t, s, Target{Path: dir})
	watched(t, s, Target{Path: dir})
	if _, err := s.Open(Target{Dir: open(t, dir), Path: dir}, ""); !errors.As(err, &refused) {
		t.Fatal(err)
	}
	s.Close()
	if _, err := s.Open(Target{Dir: open(t, dir), Path: dir}, ""); err == nil {
		t.Error("a closed set opens a watch")
	}
	for _, f := range all { // each ends
		for {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			b, err := f.r.Next(ctx, nil, 1)
			cancel()
			if err != nil && !errors.Is(err, errTaken) {
				t.Fatal(err)
			}
			if len(b) == 0 {
				break
			}
		}
	}
}

// TestLimitsAreNamedWithTheRemedy, as the kernel's errors are read.
func TestLimitsAreNamedWithTheRemedy(t *testing.T) {
	for err, words := range map[error]string{unix.ENOSPC: "fs.inotify.max_user_watches", unix.EMFILE: "fs.inotify.max_user_instances"} {
		var e *Error
		if !errors.As(limited(err, "/p"), &e) || e.Code != wire.CodeWatchLimit || !strings.Contains(e.Msg, words) || !strings.Contains(e.Hint, words) {
			t.Errorf("%v: %+v", err, e)
		}
	}
	var e *Error
	if !errors.As(limited(fmt.Errorf("x: %w", unix.EACCES), "/p"), &e) || e.Code != wire.CodeForbidden {
		t.Error(e)
	}
}
