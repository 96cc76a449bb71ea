package tree

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func mtimeOf(st *unix.Stat_t) int64 { return st.Mtim.Nano() }
func ctimeOf(st *unix.Stat_t) int64 { return st.Ctim.Nano() }

const (
	seekData = unix.SEEK_DATA
	seekHole = unix.SEEK_HOLE
)

// copyAttributes gives a file what else the one that it replaces has: access
// lists, labels and what users set. What the account may not set, or the file
// system does not keep, is left out.
func copyAttributes(from, to *os.File) {
	names := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(int(from.Fd()), names)
	if err != nil {
		return
	}
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name == "" || name == "security.capability" { // the right of the old content, not of any
			continue
		}
		if n, err := unix.Fgetxattr(int(from.Fd()), name, value); err == nil {
			unix.Fsetxattr(int(to.Fd()), name, value[:n], 0)
		}
	}
}

func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
