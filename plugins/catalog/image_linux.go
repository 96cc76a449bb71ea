package catalog

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// anonymousImage makes a sealed memory file. It is executed by way of this
// process's descriptor table, which also serves the interpreter of a script.
func anonymousImage(src io.Reader, name string) (*image, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	sum, err := copyHashed(f, src)
	if err == nil {
		err = unix.Fchmod(fd, 0o500)
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	if err == nil {
		err = unix.Access(path, unix.X_OK)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &image{path: path, sha256: sum, file: f}, nil
}
