package admin

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxPath is what a socket's address takes.
const maxPath = 107

// short returns a path for the socket that fits a socket's address, however
// long the directory's is. It is good until done is called.
func short(dir, name string) (path string, done func(), err error) {
	if p := filepath.Join(dir, name); len(p) <= maxPath {
		return p, func() {}, nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), func() { d.Close() }, nil
}

func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || inner != nil {
		return -1, fmt.Errorf("cannot tell who connects: %v %v", err, inner)
	}
	return int(cred.Uid), nil
}
