package tree

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/wire"
)

// inTheWay looks at what has the name now. It is nil where nothing is, or
// something that a file may replace; a regular file is returned.
func inTheWay(dir *os.File, name string) (*unix.Stat_t, error) {
	st, err := statAt(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch kindOf(st) {
	case unix.S_IFREG:
		return st, nil
	case unix.S_IFLNK: // replaced, never followed
		return nil, nil
	}
	return nil, refuse(wire.CodeExists, "%s: a %s is in the way", name, typeName(kindOf(st)))
}

func placeLink(dir *os.File, name, target string, mtime int64) error {
	if _, err := inTheWay(dir, name); err != nil {
		return err
	}
	tmp := randomName()
	if err := symlinkAt(dir, tmp, target); err != nil {
		return err
	}
	setTimeAt(dir, tmp, mtime) // not everywhere does a link have one
	if err := renameAt(dir, tmp, name); err != nil {
		removeAt(dir, tmp)
		return err
	}
	return nil
}

func placeSmall(d *inDir, name string, f smallFrame) (err error) {
	dir := d.fd
	var old *unix.Stat_t
	if !d.fresh {
		if old, err = inTheWay(dir, name); err != nil {
			return err
		}
	}
	tmp := randomName()
	file, err := openAt(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.Write(f.content); err == nil {
		err = place(dir, file, tmp, name, f.mode, f.mtime, old)
	}
	if err != nil {
		file.Close()
		removeAt(dir, tmp)
	}
	return err
}

// place gives a temporary file, which it closes, its mode, time and name. What
// it replaces lends it mode, owner and attributes, and only then is there
// content at stake, for which the new one is flushed first.
func place(dir, file *os.File, tmp, name string, mode uint32, mtime int64, old *unix.Stat_t) error {
	if old != nil {
		mode = permOf(old)
		if err := own(file, old); err != nil {
			return err
		}
		if was, st, err := openRegularAt(dir, name); err == nil {
			if st.Ino == old.Ino {
				durable.CopyAttributes(was, file)
			}
			was.Close()
		}
	}
	if mode != 0o600 || old != nil {
		if err := file.Chmod(durable.Mode(mode)); err != nil { // after the owner: a change takes setuid away
			return err
		}
	}
	if err := setTimeAt(dir, tmp, mtime); err != nil {
		return err
	}
	if old != nil {
		if err := file.Sync(); err != nil {
			return err
		}
	}
	if err := file.Close(); err != nil {
		return err
	}
	return renameAt(dir, tmp, name)
}

// own gives a file the owner and group of the one that it replaces. An account
// that may not would make the file its own, which is not what a copy is for.
func own(file *os.File, old *unix.Stat_t) error {
	now, err := statFile(file)
	if err != nil || now.Uid == old.Uid && now.Gid == old.Gid {
		return err
	}
	uid := -1
	if now.Uid != old.Uid {
		uid = int(old.Uid)
	}
	if err := file.Chown(uid, int(old.Gid)); err != nil {
		return refuse(wire.CodeForbidden, "what is there belongs to uid %d and gid %d, and a new file cannot be given to them", old.Uid, old.Gid)
	}
	return nil
}
