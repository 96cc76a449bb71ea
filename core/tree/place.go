package tree

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// Files is where files are: the account's, by package os, or an *os.Root. Only
// what the caller named is looked up by it, with the symbolic links in it;
// everything below is reached from an open directory.
type Files interface {
	Lstat(name string) (fs.FileInfo, error)
	Stat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Readlink(name string) (string, error)
}

// Local is all that this process may reach.
type Local struct{}

// Lstat is os.Lstat.
func (Local) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// Stat is os.Stat.
func (Local) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// OpenFile is os.OpenFile.
func (Local) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}

// Readlink is os.Readlink.
func (Local) Readlink(name string) (string, error) { return os.Readlink(name) }

// Source is what is copied: an open file or directory, or a symbolic link.
type Source struct {
	path string
	file *os.File // nil for a link
	st   *unix.Stat_t
	link string
}

// Size is a file's, in bytes; -1 for anything else.
func (s *Source) Size() int64 {
	if s.file == nil || kindOf(s.st) == unix.S_IFDIR {
		return -1
	}
	return s.st.Size
}

// Close closes it.
func (s *Source) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// OpenSource opens what is at a path. Without recursive it is a file, and a
// symbolic link to one is followed; with it a link is copied as one, unless a
// slash follows it.
func OpenSource(t Files, at string, recursive bool) (*Source, error) {
	look := t.Stat
	if recursive {
		look = t.Lstat
	}
	st, err := look(at)
	if err != nil {
		return nil, told(err, at)
	}
	s := &Source{path: at}
	switch m := st.Mode(); {
	case m.IsDir() && !recursive:
		e := refuse(wire.CodeNotAFile, "%s is a directory", at)
		e.Hint = "-r copies it with everything in it"
		return nil, e
	case m.IsDir():
		s.file, err = t.OpenFile(at, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	case m&fs.ModeSymlink != 0:
		s.link, err = t.Readlink(at)
		s.st = &unix.Stat_t{Mode: unix.S_IFLNK, Mtim: unix.NsecToTimespec(st.ModTime().UnixNano())}
		if err != nil {
			return nil, told(err, at)
		}
		return s, nil
	case m.IsRegular():
		s.file, err = t.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	default:
		return nil, refuse(wire.CodeNotAFile, "%s is a %s, not a file", at, modeName(m))
	}
	if err != nil {
		return nil, told(err, at)
	}
	s.st, err = statFile(s.file)
	if err == nil && (kindOf(s.st) == unix.S_IFDIR) != st.IsDir() {
		err = errNotRegular
	}
	if err == nil && kindOf(s.st) != unix.S_IFDIR && kindOf(s.st) != unix.S_IFREG {
		err = errNotRegular
	}
	if err != nil {
		s.file.Close()
		return nil, told(err, at)
	}
	return s, nil
}

func modeName(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return typeName(unix.S_IFIFO)
	case m&fs.ModeSocket != 0:
		return typeName(unix.S_IFSOCK)
	}
	return typeName(0)
}

// Destination is where a copy goes: one name in an open directory, or, where
// name is empty, the open directory itself.
type Destination struct {
	path    string // of what the entry becomes, for words
	dir     *os.File
	name    string
	dirOnly bool // a slash follows the name
	as      string
}

// Close closes the directory.
func (d *Destination) Close() error { return d.dir.Close() }

// Within reports whether the destination lies in what the source is: a copy of
// a directory into itself would have no end.
func (d *Destination) Within(s *Source) bool {
	if s.file == nil || kindOf(s.st) != unix.S_IFDIR {
		return false
	}
	at := d.dir
	defer func() {
		if at != d.dir {
			at.Close()
		}
	}()
	for last := (version{}); ; {
		st, err := statFile(at)
		if err != nil {
			return false
		}
		v := version{dev: uint64(st.Dev), ino: st.Ino}
		if v.dev == uint64(s.st.Dev) && v.ino == s.st.Ino {
			return true
		}
		if v == last { // the root is its own parent
			return false
		}
		last = v
		up, err := openDirAt(at, "..")
		if err != nil {
			return false
		}
		if at != d.dir {
			at.Close()
		}
		at = up
	}
}

// As is one of wire.TreeInside and wire.TreeNamed.
func (d *Destination) As() string { return d.as }

// Path is what the copy's entry becomes, in words.
func (d *Destination) Path() string { return d.path }

// OpenDestination opens where a copy of something called base goes. A directory
// takes it in under that name; a base that is no name, as of `dir/.`, goes into
// the directory itself. A symbolic link is followed, to a file too. Whatever is
// not there is the copy's own name. as is "", or what was found of the copy's
// first attempt, which may have made what is there now.
func OpenDestination(t Files, at, base, as string) (*Destination, error) {
	st, err := t.Stat(at)
	switch {
	case err == nil && st.IsDir() && as != wire.TreeNamed:
		dir, err := openDirectory(t, at)
		if err != nil {
			return nil, err
		}
		d := &Destination{path: strings.TrimRight(at, "/") + "/" + base, dir: dir, name: base, as: wire.TreeInside}
		if base == "" || base == "." || base == ".." || base == "/" {
			d.name, d.path = "", at
		} else if err := checkName(1, base); err != nil {
			dir.Close()
			return nil, refuse(wire.CodeBadRequest, "%q is not the name of a file", base)
		}
		return d, nil
	case as == wire.TreeInside:
		return nil, refuse(wire.CodeNotADir, "%s is no directory any more", at)
	case err == nil, errors.Is(err, fs.ErrNotExist):
	default:
		return nil, told(err, at)
	}
	at, err = target(t, at)
	if err != nil {
		return nil, told(err, at)
	}
	name, parent := path.Base(strings.TrimRight(at, "/")), "."
	if i := strings.LastIndexByte(strings.TrimRight(at, "/"), '/'); i >= 0 {
		parent = at[:i+1]
	}
	if checkName(1, name) != nil {
		return nil, refuse(wire.CodeNotFound, "%s: no such directory", at)
	}
	dir, err := openDirectory(t, parent)
	if err != nil {
		return nil, err
	}
	return &Destination{path: at, dir: dir, name: name, dirOnly: strings.HasSuffix(at, "/"), as: wire.TreeNamed}, nil
}

func openDirectory(t Files, at string) (*os.File, error) {
	dir, err := t.OpenFile(at, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, told(err, at)
	}
	return dir, nil
}

// target follows the symbolic links at a path's end.
func target(t Files, at string) (string, error) {
	for range 40 { // as many as linux follows
		st, err := t.Lstat(strings.TrimRight(at, "/"))
		if errors.Is(err, fs.ErrNotExist) || err == nil && st.Mode()&fs.ModeSymlink == 0 {
			return at, nil
		}
		if err != nil {
			return at, err
		}
		to, err := t.Readlink(strings.TrimRight(at, "/"))
		if err != nil {
			return at, err
		}
		if !strings.HasPrefix(to, "/") {
			dir := "."
			if i := strings.LastIndexByte(strings.TrimRight(at, "/"), '/'); i >= 0 {
				dir = at[:i+1]
			}
			to = strings.TrimRight(dir, "/") + "/" + to
		}
		at = to
	}
	return at, unix.ELOOP
}
