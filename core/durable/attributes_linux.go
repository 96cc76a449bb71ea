package durable

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// CopyAttributes gives a file what else the one that it is to replace has: access
// lists, labels and what users set. What the account may not set, or the file
// system does not keep, is left out.
func CopyAttributes(from, to *os.File) {
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
