package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"fleet.example/fleet/core/wire"
)

// names is one look by names, where the system has nothing better: a directory
// that is renamed while it is opened may be missed, and what is renamed is
// removed and created.
type names struct {
	target *Target
	notify *fsnotify.Watcher
	dirs   map[string]bool // by absolute path
	tell   func(wire.WatchEvent) error
	kind   string
}

func beginNames(t *Target) (*names, error) {
	if !t.Real {
		return nil, &Error{Code: wire.CodeForbidden, Msg: "this system watches by name only, which would lead out of the tree that holds " + t.Path}
	}
	n, err := fsnotify.NewWatcher()
	if err == nil {
		if err = n.Add(t.Path); err != nil {
			n.Close()
		}
	}
	if err != nil {
		return nil, hindered(err, t.Path)
	}
	return &names{target: t, notify: n, dirs: map[string]bool{t.Path: true}, kind: wire.WatchExists}, nil
}

func hindered(err error, path string) error {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOSPC):
		return &Error{Code: wire.CodeWatchLimit, Msg: fmt.Sprintf("cannot watch %s: too many files are open, one for each that is watched", path),
			Hint: "raise the limit on open files (kern.maxfilesperproc on darwin), or watch less, as with --shallow"}
	case errors.Is(err, fs.ErrPermission):
		return &Error{Code: wire.CodeForbidden, Msg: fmt.Sprintf("the account may not read %s", path)}
	}
	return &Error{Code: wire.CodeInternal, Msg: fmt.Sprintf("cannot watch %s: %v", path, err)}
}

func (l *names) close() { l.notify.Close() }

func (l *names) run(ctx context.Context, t *teller) error {
	l.tell = t.tell
	err := l.list(l.target.Path)
	if err == nil {
		l.kind = wire.WatchCreated
		err = t.began()
	}
	looks := time.NewTicker(lookAfter)
	defer looks.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-looks.C:
			err = l.target.there()
		case ev, ok := <-l.notify.Events:
			if !ok {
				return errors.New("the system's watch ended")
			}
			err = l.hear(ev)
		case failed := <-l.notify.Errors:
			if errors.Is(failed, fsnotify.ErrEventOverflow) {
				err = overflow{wire.OverflowKernel}
			} else if err = hindered(failed, l.target.Path); failed == nil {
				return errors.New("the system's watch ended")
			}
		}
	}
	return err
}

// list tells of what is in a directory that is watched already, and watches the
// directories in it.
func (l *names) list(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its own directory tells of it
	}
	if err != nil && dir == l.target.Path {
		return hindered(err, dir)
	}
	for _, e := range entries {
		if err := l.found(filepath.Join(dir, e.Name()), e.IsDir()); err != nil {
			return err
		}
	}
	return nil
}

// found tells of an entry, and watches it if it is a directory.
func (l *names) found(at string, dir bool) error {
	if l.kind != wire.WatchExists || l.target.Initial {
		if err := l.say(l.kind, at, dir); err != nil {
			return err
		}
	}
	if !dir || !l.target.deep() || l.dirs[at] {
		return nil
	}
	err := l.notify.Add(at)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return l.tell(wire.WatchEvent{Event: wire.WatchUnwatched, Path: l.relative(at), Directory: true, Reason: wire.UnwatchedForbidden})
	case err != nil:
		return hindered(err, at)
	}
	l.dirs[at] = true
	return l.list(at)
}

func (l *names) relative(at string) wire.Bytes {
	return wire.Bytes(strings.TrimPrefix(strings.TrimPrefix(at, l.target.Path), "/"))
}

func (l *names) say(event, at string, dir bool) error {
	if filepath.Dir(at) == l.target.Path && !l.target.meant(filepath.Base(at)) {
		return nil
	}
	return l.tell(wire.WatchEvent{Event: event, Path: l.relative(at), Directory: dir})
}

func (l *names) hear(ev fsnotify.Event) error {
	at := ev.Name
	if at == l.target.Path {
		switch {
		case ev.Has(fsnotify.Remove), ev.Has(fsnotify.Rename):
			return gone(l.target)
		case ev.Has(fsnotify.Chmod) && l.target.Name == "":
			return l.tell(wire.WatchEvent{Event: wire.WatchAttributes, Directory: true})
		}
		return nil
	}
	switch {
	case ev.Has(fsnotify.Create):
		st, err := os.Lstat(at)
		return l.found(at, err == nil && st.IsDir())
	case ev.Has(fsnotify.Remove), ev.Has(fsnotify.Rename):
		dir := l.dirs[at]
		for d := range l.dirs {
			if d == at || strings.HasPrefix(d, at+"/") {
				l.notify.Remove(d) // it may be gone by itself
				delete(l.dirs, d)
			}
		}
		return l.say(wire.WatchRemoved, at, dir)
	case ev.Has(fsnotify.Write):
		if l.dirs[at] {
			return nil // what is in it is told of
		}
		return l.say(wire.WatchModified, at, false)
	case ev.Has(fsnotify.Chmod):
		return l.say(wire.WatchAttributes, at, l.dirs[at])
	}
	return nil
}
