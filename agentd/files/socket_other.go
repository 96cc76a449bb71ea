//go:build !linux

package files

import "fleet.example/fleet/core/wire"

// Socket is a path by which the UNIX socket at p is reached, until release. In a
// tree that holds the files in there is no way to reach one that no link could
// take the place of.
func (f *Files) Socket(p string) (at string, release func(), err error) {
	if at, err = f.resolve(p); err != nil {
		return "", nil, err
	}
	if f.Confined() {
		return "", nil, refuse(wire.CodeForbidden, "sockets are not reached from within a workspace on this system")
	}
	return at, func() {}, nil
}
