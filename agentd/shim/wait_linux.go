package shim

import (
	"os"

	"golang.org/x/sys/unix"
)

// awaitExit returns when the process has ended but is not reaped, so that its
// number still is nobody else's. The poller waits where the kernel lets it: a
// thread that sits in the kernel for it keeps the runtime looking whether its
// processor is wanted elsewhere, ten thousand times a second, and that on the
// processor on which a short command runs.
func awaitExit(pid int) {
	if fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err == nil {
		f := os.NewFile(uintptr(fd), "pidfd")
		defer f.Close()
		if c, err := f.SyscallConn(); err == nil && c.Read(func(uintptr) bool { return !runs(pid, unix.WNOHANG) }) == nil {
			return
		}
	}
	runs(pid, 0)
}

// runs reports whether a child has not ended, and with no options waits until it
// has.
func runs(pid, options int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if err != unix.EINTR {
			return err == nil && info.Signo == 0
		}
	}
}
