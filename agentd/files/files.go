// Package files is the account's files as the agent serves them: what they are,
// what is in them, and new content for them.
//
// What it holds to:
//   - A file's name shows its old content or its new, whole, whatever is cut,
//     killed or full in between: content goes to a temporary file beside it,
//     is compared with the sender's checksum and flushed, takes over the old
//     one's mode, owner and attributes, and is renamed. The rename is the only
//     step that changes what the name shows; a crash before it leaves a
//     temporary file, which no name leads to.
//   - Between two writers that come through this process, none is lost unseen:
//     what a write requires of the file is looked at again, under a lock for
//     the name, just before the rename. Another program's write in that instant
//     may be replaced.
//   - Nothing waits on what it opens: only regular files and directories are
//     opened, looked at first, and without blocking.
//   - A reader is told when the file changed under it.
//
// A Tree may be an *os.Root: then no path, link or race leads out of it. The
// package knows nothing of HTTP and tokens.
package files

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/wire"
)

// Tree is where files are. *os.Root is one, and Everything is another.
type Tree interface {
	Lstat(name string) (fs.FileInfo, error)
	Stat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Readlink(name string) (string, error)
	Link(from, to string) error
	Rename(from, to string) error
	Remove(name string) error
	RemoveAll(name string) error
}

// Everything is all that the account may reach.
type Everything struct{}

func (Everything) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }
func (Everything) Stat(name string) (fs.FileInfo, error)  { return os.Stat(name) }
func (Everything) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
func (Everything) Readlink(name string) (string, error) { return os.Readlink(name) }
func (Everything) Link(from, to string) error           { return os.Link(from, to) }
func (Everything) Rename(from, to string) error         { return os.Rename(from, to) }
func (Everything) Remove(name string) error             { return os.Remove(name) }
func (Everything) RemoveAll(name string) error          { return os.RemoveAll(name) }

// Files serves one tree. Its methods may be used from several goroutines.
type Files struct {
	Tree  Tree
	Home  string // where relative paths begin
	Umask fs.FileMode

	whole *Files // whose part this is, and whose locks count

	mu    sync.Mutex
	names map[string]*name // that somebody writes to now
}

// name is the lock of a name.
type name struct {
	sync.Mutex
	users int
}

// entry is what a path names, whatever its spelling: the directory and the last
// name. Where there is no directory, nothing is to be guarded.
func (f *Files) entry(at string) string {
	at = strings.TrimRight(at, "/")
	if st, err := f.Tree.Stat(directory(at)); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			return fmt.Sprintf("%d:%d/%s", sys.Dev, sys.Ino, path.Base(at))
		}
	}
	return path.Clean(at)
}

// lock takes the lock of the entry that a path names.
func (f *Files) lock(at string) (unlock func()) {
	at = f.entry(at)
	if f.whole != nil {
		f = f.whole
	}
	f.mu.Lock()
	if f.names == nil {
		f.names = map[string]*name{}
	}
	n := f.names[at]
	if n == nil {
		n = &name{}
		f.names[at] = n
	}
	n.users++
	f.mu.Unlock()
	n.Lock()
	return func() {
		n.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		if n.users--; n.users == 0 {
			delete(f.names, at)
		}
	}
}

// Error is a refusal with a code of package wire.
type Error struct {
	Code, Msg, Hint string
}

func (e *Error) Error() string { return e.Msg }

func refuse(code, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// maxPath is longer than what any system takes: PATH_MAX is 4096 on linux.
const maxPath = 4096

// resolve makes an absolute path of what a person wrote. It takes no symbolic
// link and no `..` out: that is the system's part.
func (f *Files) resolve(p string) (string, error) {
	switch {
	case strings.ContainsRune(p, 0):
		return "", refuse(wire.CodeBadRequest, "a path has no zero byte")
	case len(p) > maxPath:
		return "", refuse(wire.CodeBadRequest, "the path is longer than %d bytes", maxPath)
	case p == "" || p == "~":
		return f.Home, nil
	case strings.HasPrefix(p, "~/"):
		return f.Home + p[1:], nil
	case !strings.HasPrefix(p, "/"):
		return f.Home + "/" + p, nil
	}
	return p, nil
}

// Stat tells what the path is; with follow, what a symbolic link leads to.
func (f *Files) Stat(p string, follow bool) (*wire.FileInfo, error) {
	at, err := f.resolve(p)
	if err != nil {
		return nil, err
	}
	look := f.Tree.Lstat
	if follow {
		look = f.Tree.Stat
	}
	st, err := look(at)
	if err != nil {
		return nil, told(err, at)
	}
	return f.describe(at, st), nil
}

func (f *Files) describe(at string, st fs.FileInfo) *wire.FileInfo {
	i := &wire.FileInfo{Name: wire.Bytes(path.Base(at)), Path: wire.Bytes(at), Type: kind(st.Mode()), Size: st.Size(),
		Mode: fmt.Sprintf("%04o", durable.Permissions(st.Mode())), ModifiedAt: wire.Time{Time: st.ModTime()}, ETag: etag(st)}
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		i.UID, i.GID = int(s.Uid), int(s.Gid)
	}
	if i.Type == wire.FileSymlink {
		if to, err := f.Tree.Readlink(at); err == nil {
			i.Target = wire.Bytes(to)
		}
	}
	return i
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return wire.FileRegular
	case m.IsDir():
		return wire.FileDirectory
	case m&fs.ModeSymlink != 0:
		return wire.FileSymlink
	case m&fs.ModeNamedPipe != 0:
		return wire.FileFIFO
	case m&fs.ModeSocket != 0:
		return wire.FileSocket
	}
	return wire.FileDevice
}

// etag changes when the name leads to another file, or the file's content or
// attributes change: ctime is set by the system and by it alone.
func etag(st fs.FileInfo) string {
	s, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	sec, nsec := changed(s)
	var b []byte
	for _, n := range []int64{int64(s.Dev), int64(s.Ino), st.Size(), st.ModTime().UnixNano(), sec, nsec} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:12])
}

// Open opens a regular file for reading. The caller closes it.
func (f *Files) Open(p string) (*os.File, *wire.FileInfo, error) {
	at, err := f.resolve(p)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Tree.Stat(at) // to open a device may be to do something to it
	if err == nil {
		err = regular(st, at)
	}
	if err != nil {
		return nil, nil, told(err, at)
	}
	file, err := f.Tree.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, told(err, at)
	}
	if st, err = file.Stat(); err == nil {
		err = regular(st, at)
	}
	if err != nil {
		file.Close()
		return nil, nil, told(err, at)
	}
	return file, f.describe(at, st), nil
}

// Unchanged looks at a file that was read. What changed since it was opened is
// a refusal.
func (f *Files) Unchanged(file *os.File, before *wire.FileInfo) error {
	st, err := file.Stat()
	if err != nil {
		return told(err, string(before.Path))
	}
	if etag(st) != before.ETag {
		return refuse(wire.CodeChanged, "%s changed while it was read", before.Path)
	}
	return nil
}

func regular(st fs.FileInfo, at string) error {
	if !st.Mode().IsRegular() {
		return refuse(wire.CodeNotAFile, "%s is a %s, not a file", at, kind(st.Mode()))
	}
	return nil
}

// listAtOnce is how many entries are read at a time: a directory may have
// millions.
const listAtOnce = 512

// List gives the entries of a directory to each, in the directory's order. An
// entry that vanished meanwhile is left out. It ends with the first error of
// each, which it returns.
func (f *Files) List(p string, each func(*wire.FileInfo) error) error {
	at, err := f.resolve(p)
	if err != nil {
		return err
	}
	st, err := f.Tree.Stat(at)
	if err != nil {
		return told(err, at)
	}
	if !st.IsDir() {
		return refuse(wire.CodeNotADir, "%s is a %s, not a directory", at, kind(st.Mode()))
	}
	dir, err := f.Tree.OpenFile(at, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return told(err, at)
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(listAtOnce)
		for _, e := range entries {
			st, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return told(err, at)
			}
			if err := each(f.describe(strings.TrimRight(at, "/")+"/"+e.Name(), st)); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return told(err, at)
		}
	}
}

// aboveHome reports whether the directory is the home directory or one in which
// it lies, by whatever name.
func (f *Files) aboveHome(at string) bool {
	clean, home := path.Clean(at), path.Clean(f.Home)
	if clean == "/" || clean == home || strings.HasPrefix(home, clean+"/") {
		return true
	}
	st, err := f.Tree.Lstat(strings.TrimRight(at, "/")) // as it is removed: a name before ".." may be a link
	if err != nil || !st.IsDir() {
		return false
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	for {
		if above, err := os.Stat(home); err == nil && os.SameFile(st, above) {
			return true
		}
		up := path.Dir(home)
		if up == home || home == "." {
			return false
		}
		home = up
	}
}

// Remove removes a file, a symbolic link or an empty directory; with all, a
// directory with everything in it. etag, unless it is "", says which file is
// meant.
func (f *Files) Remove(p, tag string, all bool) error {
	at, err := f.resolve(p)
	if err != nil {
		return err
	}
	if f.aboveHome(at) {
		return refuse(wire.CodeForbidden, "%s is not removed: the account's home directory is in it", at)
	}
	if base := path.Base(at); base == "." || base == ".." {
		return refuse(wire.CodeBadRequest, "%s names no entry of a directory", at)
	}
	unlock := f.lock(at)
	defer unlock()
	st, err := f.Tree.Lstat(strings.TrimRight(at, "/"))
	if err != nil {
		return told(err, at)
	}
	if tag != "" && etag(st) != tag {
		return stale(at)
	}
	remove := f.Tree.Remove
	if all {
		remove = f.Tree.RemoveAll
	}
	return told(remove(strings.TrimRight(at, "/")), at)
}

func stale(at string) error {
	return refuse(wire.CodePrecondition, "%s is not, or no longer, the file that was meant", at)
}

// told gives an error of the system its code and words.
func told(err error, at string) error {
	if err == nil {
		return nil
	}
	if e := new(Error); errors.As(err, &e) {
		return e
	}
	var why error = err
	if e := new(fs.PathError); errors.As(err, &e) {
		why = e.Err
	} else if e := new(os.LinkError); errors.As(err, &e) {
		why = e.Err
	}
	code, words := wire.CodeInternal, why.Error()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = wire.CodeNotFound
	case errors.Is(err, unix.ENOTEMPTY): // fs.ErrExist to package errors
		code, words = wire.CodeNotEmpty, "the directory is not empty"
	case errors.Is(err, fs.ErrExist):
		code = wire.CodeExists
	case errors.Is(err, unix.EROFS):
		code = wire.CodeForbidden
	case errors.Is(err, fs.ErrPermission):
		code = wire.CodeForbidden
	case errors.Is(err, unix.ENOTDIR):
		code = wire.CodeNotADir
	case errors.Is(err, unix.EISDIR):
		code = wire.CodeNotAFile
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EINVAL):
		code = wire.CodeBadRequest
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = wire.CodeDiskFull
	case strings.Contains(words, "escapes from parent"): // os.Root has no value for it
		code, words = wire.CodeForbidden, "the path leads out of what this token is for"
	}
	return refuse(code, "%s: %s", at, words)
}
