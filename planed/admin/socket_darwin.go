package admin

import (
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const maxPath = 103

func short(dir, name string) (path string, done func(), err error) {
	p := filepath.Join(dir, name)
	if len(p) > maxPath {
		return "", nil, fmt.Errorf("the path %s is longer than the %d bytes a socket's may have", p, maxPath)
	}
	return p, func() {}, nil
}

func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Xucred
	var inner error
	err = raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	})
	if err != nil || inner != nil {
		return -1, fmt.Errorf("cannot tell who connects: %v %v", err, inner)
	}
	return int(cred.Uid), nil
}
