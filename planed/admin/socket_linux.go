package admin

import (
	"fmt"
	"os"
	"path/filepath"
)

// maxPath is what a socket's address takes.
const maxPath = 107

// short returns a path for the socket that fits a socket's address, however
// long the directory's is. It is good until done is called.
func short(dir, name string) (path string, done func(), err error) {
	if p := filepath.Join(dir, name); len(p) <= maxPath {
		return p, func() {}, nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), func() { d.Close() }, nil
}
