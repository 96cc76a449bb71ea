package peer

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// UID returns the account of the process that connected (SO_PEERCRED).
func UID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("cannot tell whose connection this is: %w", err)
	}
	var cred *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) { cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err == nil {
		err = inner
	}
	if err != nil {
		return -1, fmt.Errorf("cannot tell whose connection this is: %w", err)
	}
	return int(cred.Uid), nil
}
