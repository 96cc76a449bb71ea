package mux

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"fleet.example/fleet/core/fault"
)

// Executable finds fleet-host.
func Executable() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find fleet's own directory: %w", err)
	}
	return HostProgram(self)
}

// HostProgram finds fleet-host beside an executable, or where a package puts it.
func HostProgram(self string) (string, error) {
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	places := []string{filepath.Join(filepath.Dir(self), "fleet-host"), "/usr/lib/fleet/fleet-host"}
	for _, p := range places {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fault.New(fault.Failure, "no_fleet_host", "cannot find fleet-host: neither %s nor %s is there", places[0], places[1]).
		WithHint("install fleet's programs into one directory")
}

// BuildOf tells which fleet-host a program is. One that is not there is older
// than any other.
func BuildOf(program string) Build {
	st, err := os.Stat(program)
	if err != nil {
		return Build{}
	}
	return Build{Program: st.ModTime().UnixNano()}
}

// detach gives the command a process group of its own.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
