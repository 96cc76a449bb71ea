package shim

import "golang.org/x/sys/unix"

// awaitExit returns when the process has ended but is not reaped, so that its
// number still is nobody else's.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}
