package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fleet.example/fleet/core/wire"
)

// patience bounds every wait for what comes soon.
const patience = 60 * time.Second

type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func open(t fataler, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// follower reads a watch.
type follower struct {
	t    fataler
	r    *Reader
	rest []wire.WatchEvent
	seen []string
}

// next is the next event.
func (f *follower) next() wire.WatchEvent {
	f.t.Helper()
	if len(f.rest) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		b, err := f.r.Next(ctx, nil, 64<<10)
		if err != nil || len(b) == 0 {
			f.t.Fatalf("no event comes: %v; so far: %s", err, f.seen)
		}
		for line := range bytes.Lines(b) {
			var ev wire.WatchEvent
			if err := json.Unmarshal(line, &ev); err != nil {
				f.t.Fatal(err)
			}
			f.rest = append(f.rest, ev)
		}
	}
	ev := f.rest[0]
	f.rest = f.rest[1:]
	f.seen = append(f.seen, describe(ev))
	return ev
}

func describe(ev wire.WatchEvent) string {
	s := ev.Event
	for _, word := range []string{string(ev.From), string(ev.Path), ev.Reason} {
		if word != "" {
			s += " " + word
		}
	}
	if ev.Directory {
		s += "/"
	}
	if ev.Error != nil {
		s += " " + ev.Error.Code
	}
	return s
}

// replica is a tree as somebody knows it who has nothing but the events.
type replica struct {
	entries map[string]bool // path: whether it is a directory
	lost    int             // overflows
}

func (r *replica) apply(ev wire.WatchEvent) {
	path, from := string(ev.Path), string(ev.From)
	switch ev.Event {
	case wire.WatchOverflow:
		r.entries, r.lost = map[string]bool{}, r.lost+1
	case wire.WatchExists, wire.WatchCreated:
		if was, there := r.entries[path]; there && was && !ev.Directory {
			r.remove(path)
		}
		r.entries[path] = ev.Directory
	case wire.WatchRemoved:
		r.remove(path)
	case wire.WatchRenamed:
		moved := map[string]bool{path: ev.Directory}
		for p, dir := range r.entries {
			if rest, below := strings.CutPrefix(p, from+"/"); below {
				moved[path+"/"+rest] = dir
			}
		}
		r.remove(from)
		r.remove(path)
		maps.Copy(r.entries, moved)
	}
}

func (r *replica) remove(path string) {
	for p := range r.entries {
		if p == path || strings.HasPrefix(p, path+"/") {
			delete(r.entries, p)
		}
	}
}

// settle applies what comes until everything has come that was done before.
func (f *follower) settle(known *replica, dir string) {
	f.t.Helper()
	for n := 0; ; n++ {
		name := fmt.Sprint("settled-", len(f.seen), "-", n)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			f.t.Fatal(err)
		}
		for {
			ev := f.next()
			known.apply(ev)
			if ev.Event == wire.WatchCreated && string(ev.Path) == name {
				return
			}
			// One that was found in a listing says nothing of what came before it.
			if _, there := known.entries[name]; there && ev.Event == wire.WatchReady {
				break
			}
		}
	}
}
