package shim

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func tryLock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err != unix.EINTR {
			return err
		}
	}
}

// takeLock takes the lock for good. A Look of somebody else holds it, shared,
// for an instant, so a refusal is worth a few more tries.
func takeLock(f *os.File) error {
	for try := 0; ; try++ {
		err := tryLock(f, unix.LOCK_EX)
		if err == nil || !wouldBlock(err) || try == 100 {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func wouldBlock(err error) bool {
	return errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EAGAIN)
}
