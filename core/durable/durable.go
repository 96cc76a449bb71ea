// Package durable writes small files so that a crash at any instruction leaves
// the old content or the new, never a torn one, and so that a file is never
// readable by others for even an instant.
//
// Order: create a temporary file in the same directory with the final mode,
// write, fsync it, rename over the name, fsync the directory. The rename is
// the only step that changes what the name shows. Before it, a crash leaves a
// temporary file that Sweep removes; after it, only the directory's fsync is
// left, and without it a power cut may bring the old content back whole.
//
// It knows nothing of what the files say.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// tempMark is part of every temporary name and of no other file's.
const tempMark = ".fleet-tmp-"

// WriteFile replaces the file at path with data. The mode is in force before
// the first byte is written, whatever the umask.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, func(tmp string) error { return os.Rename(tmp, path) })
}

// CreateFile is WriteFile for a name that must not exist yet: it returns an
// error for which errors.Is(err, fs.ErrExist) holds and changes nothing if it
// does, even when two processes race.
func CreateFile(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, func(tmp string) error {
		if err := os.Link(tmp, path); err != nil {
			return err
		}
		if err := os.Remove(tmp); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil // swept
	})
}

// write writes anew what another process's Sweep took for left over.
func write(path string, data []byte, mode fs.FileMode, put func(tmp string) error) error {
	for try := 1; ; try++ {
		made, err := writeOnce(path, data, mode, put)
		if !made || try == 3 || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

func writeOnce(path string, data []byte, mode fs.FileMode, put func(tmp string) error) (made bool, err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+tempMark+"*") // 0600 from the start
	if err != nil {
		return false, err
	}
	tmp := f.Name()
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(tmp)
		}
	}()
	if mode != 0o600 {
		if err = f.Chmod(mode); err != nil {
			return true, err
		}
	}
	if _, err = f.Write(data); err != nil {
		return true, err
	}
	if err = f.Sync(); err != nil {
		return true, err
	}
	if err = f.Close(); err != nil {
		return true, err
	}
	if err = put(tmp); err != nil {
		return true, err
	}
	return false, SyncDir(dir)
}

// Rename renames within one file system and makes it durable in both directories.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if d := filepath.Dir(from); d != filepath.Dir(to) {
		if err := SyncDir(d); err != nil {
			return err
		}
	}
	return SyncDir(filepath.Dir(to))
}

// Remove removes the file and makes that durable. A missing file is no error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the directory's entries durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Sweep removes temporary files that a crash left in dir. Only the directory's
// owner may call it, and only while nobody writes there.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), tempMark) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// SweepFile removes temporary files that a crash left of one file, in a
// directory that may be others', too. Only who writes the file may call it.
func SweepFile(path string) error {
	dir, mark := filepath.Dir(path), "."+filepath.Base(path)+tempMark
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), mark) {
			if err := Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// ErrNotPrivate is in the chain of a refusal to read a secret that others can reach.
var ErrNotPrivate = errors.New("accessible by others")

// ours reports whether what stands in a file can only be the word of the account
// uid, or of root.
func ours(path string, st fs.FileInfo, uid int) bool {
	owner := ownerOf(st)
	if owner == uid || owner == 0 {
		return true
	}
	dir, err := os.Stat(filepath.Dir(path))
	return uid == 0 && err == nil && ownerOf(dir) == owner
}

func ownerOf(st fs.FileInfo) int {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(sys.Uid)
	}
	return -1
}

// ReadPrivate reads a file of at most max bytes that must be a regular file
// (no symbolic link at its end), closed to group and others, and this account's
// or root's. To root it may also be of whoever owns its directory, who could
// replace it anyway.
func ReadPrivate(path string, max int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|oNoFollow, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has mode %04o: %w", path, st.Mode().Perm(), ErrNotPrivate)
	case !ours(path, st, os.Geteuid()):
		return nil, fmt.Errorf("%s belongs to another account: %w", path, ErrNotPrivate)
	}
	// Room for a last read, which shows its end.
	buf := bytes.NewBuffer(make([]byte, 0, min(st.Size(), max)+bytes.MinRead))
	if _, err := buf.ReadFrom(io.LimitReader(f, max+1)); err != nil {
		return nil, err
	}
	b := buf.Bytes()
	if int64(len(b)) > max {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, max)
	}
	return b, nil
}
