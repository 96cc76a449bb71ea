//go:build !linux

package shim

import "golang.org/x/sys/unix"

// awaitExit returns when the process has ended but is not reaped: a kqueue
// tells of the exit without taking the status. If it cannot be had, reaping
// follows at once, as os/exec would do it.
func awaitExit(pid int) {
	kq, err := unix.Kqueue()
	if err != nil {
		return
	}
	defer unix.Close(kq)
	change := []unix.Kevent_t{{Flags: unix.EV_ADD | unix.EV_ONESHOT, Filter: unix.EVFILT_PROC, Fflags: unix.NOTE_EXIT}}
	unix.SetKevent(&change[0], pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change[0].Fflags = unix.NOTE_EXIT
	events := make([]unix.Kevent_t, 1)
	for {
		_, err := unix.Kevent(kq, change, events, nil)
		if err != unix.EINTR {
			return
		}
		change = nil
	}
}
