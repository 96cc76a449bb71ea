package catalog

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent asks the kernel to end a plugin that does not watch its pipe.
// It is SIGTERM and not SIGKILL, so that one that does still removes its sockets.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }

// awaitExit waits until the process is dead and leaves it to be reaped.
// False means that it could not.
func awaitExit(pid int) bool {
	for {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
