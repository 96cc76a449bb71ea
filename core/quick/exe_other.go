//go:build !linux

package quick

import "path/filepath"

// resolved is the file to which a program's name leads.
func resolved(exe string) string {
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		return real
	}
	return exe
}
