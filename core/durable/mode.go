package durable

import "io/fs"

// special are the bits of chmod(2) above the nine, which package fs has elsewhere.
var special = [...]struct {
	mode fs.FileMode
	bit  uint32
}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}}

// Permissions are the twelve bits of chmod(2) of a mode.
func Permissions(m fs.FileMode) uint32 {
	p := uint32(m.Perm())
	for _, s := range special {
		if m&s.mode != 0 {
			p |= s.bit
		}
	}
	return p
}

// Mode is the inverse of Permissions.
func Mode(p uint32) fs.FileMode {
	m := fs.FileMode(p & 0o777)
	for _, s := range special {
		if p&s.bit != 0 {
			m |= s.mode
		}
	}
	return m
}
