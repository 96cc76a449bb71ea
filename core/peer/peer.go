// Package peer tells whose process is at the other end of a UNIX socket: the
// second lock of sockets that only one account may use, beside their file mode.
// It knows nothing of what is said over them.
package peer

import (
	"net"
	"os"
)

// Own reports whether the process at the other end is of this account, or root.
// A connection that does not tell is nobody's.
func Own(c *net.UnixConn) bool {
	uid, err := UID(c)
	return err == nil && (uid == os.Getuid() || uid == 0)
}
