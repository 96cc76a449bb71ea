package tree

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// What follows does one thing to one name of an open directory. No symbolic
// link is followed, and no name is a path (see checkName).

func retry(do func() error) error {
	for {
		if err := do(); err != unix.EINTR {
			return err
		}
	}
}

func openAt(dir *os.File, name string, flags int, perm uint32) (*os.File, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func openDirAt(dir *os.File, name string) (*os.File, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// openRegularAt opens a file for reading that has been looked at.
func openRegularAt(dir *os.File, name string) (*os.File, *unix.Stat_t, error) {
	file, err := openAt(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := statFile(file)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, st, nil
}

// readSmallAt reads a file that fits the buffer with a byte to spare. It takes
// as few system calls as that can be done with: most of what a copy of many
// small files costs are these, and an os.File makes three more.
func readSmallAt(dir *os.File, name string, buf []byte) (content []byte, st *unix.Stat_t, err error) {
	var fd int
	err = retry(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd)
	var before, after unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &before) }); err != nil {
		return nil, nil, err
	}
	if kindOf(&before) != unix.S_IFREG {
		return nil, nil, errNotRegular
	}
	n := 0
	for {
		var more int
		if err := retry(func() (err error) { more, err = unix.Read(fd, buf[n:]); return err }); err != nil {
			return nil, nil, err
		}
		if n += more; more == 0 || n == len(buf) || int64(n) == before.Size {
			break
		}
	}
	// Had it grown, or had anything been written, this would not be the same.
	if err := retry(func() error { return unix.Fstat(fd, &after) }); err != nil {
		return nil, nil, err
	}
	if versionOf(&after) != versionOf(&before) || int64(n) != before.Size {
		return nil, nil, errChanged
	}
	return buf[:n], &before, nil
}

var errChanged = errors.New("changed while it was read")

var errNotRegular = errors.New("is not a file any more")

func statAt(dir *os.File, name string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return &st, err
}

func statFile(f *os.File) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(int(f.Fd()), &st) })
	return &st, err
}

func mkdirAt(dir *os.File, name string, perm uint32) error {
	return retry(func() error { return unix.Mkdirat(int(dir.Fd()), name, perm) })
}

func symlinkAt(dir *os.File, name, target string) error {
	return retry(func() error { return unix.Symlinkat(target, int(dir.Fd()), name) })
}

func readlinkAt(dir *os.File, name string) (string, error) {
	b := make([]byte, maxTarget+1)
	var n int
	err := retry(func() (err error) { n, err = unix.Readlinkat(int(dir.Fd()), name, b); return err })
	if err == nil && n > maxTarget {
		err = unix.ENAMETOOLONG
	}
	return string(b[:max(n, 0)]), err
}

func renameAt(dir *os.File, from, to string) error {
	return retry(func() error { return unix.Renameat(int(dir.Fd()), from, int(dir.Fd()), to) })
}

func removeAt(dir *os.File, name string) error {
	return retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, 0) })
}

// setTimeAt sets when a name's own content was modified.
func setTimeAt(dir *os.File, name string, mtime int64) error {
	ts := []unix.Timespec{unix.NsecToTimespec(time.Now().UnixNano()), unix.NsecToTimespec(mtime)}
	return retry(func() error { return unix.UtimesNanoAt(int(dir.Fd()), name, ts, unix.AT_SYMLINK_NOFOLLOW) })
}

func kindOf(st *unix.Stat_t) uint32 { return uint32(st.Mode) & unix.S_IFMT }

func permOf(st *unix.Stat_t) uint32 { return uint32(st.Mode) & 0o7777 }

// typeName is a word for what is no file, directory or link.
func typeName(kind uint32) string {
	switch kind {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFIFO:
		return "FIFO"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// version changes when the file, its content or its attributes do: ctime is
// set by the system alone.
type version struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64
}

func versionOf(st *unix.Stat_t) version {
	return version{uint64(st.Dev), uint64(st.Ino), st.Size, mtimeOf(st), ctimeOf(st)}
}
