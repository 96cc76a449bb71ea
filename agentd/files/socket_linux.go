package files

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// Socket is a path by which the UNIX socket at p is reached, until release. In a
// tree that holds the files in it leads to the very socket that was found there:
// connect(2) would follow a link that takes its place.
func (f *Files) Socket(p string) (at string, release func(), err error) {
	if at, err = f.resolve(p); err != nil {
		return "", nil, err
	}
	if !f.Confined() {
		return at, func() {}, nil
	}
	found, err := f.Tree.OpenFile(at, unix.O_PATH, 0)
	if err != nil {
		return "", nil, told(err, at)
	}
	if st, err := found.Stat(); err != nil || st.Mode().Type() != os.ModeSocket {
		found.Close()
		return "", nil, refuse(wire.CodeNotAFile, "%s is not a socket", at)
	}
	return "/proc/self/fd/" + strconv.Itoa(int(found.Fd())), func() { found.Close() }, nil
}
