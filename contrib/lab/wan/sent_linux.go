package wan

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// waitSent returns when the peer has acknowledged all that was written, or after five seconds; see SIOCOUTQ in
// tcp(7).
func waitSent(conn *net.TCPConn, done <-chan struct{}) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	timeout := time.NewTimer(5 * time.Second)
	defer timeout.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		queued, failed := 0, error(nil)
		err := raw.Control(func(fd uintptr) { queued, failed = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
		if err != nil || failed != nil || queued == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			return
		case <-done:
			return
		}
	}
}
