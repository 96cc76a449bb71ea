//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// initPath is what is the init of a host without systemd, below its root: busybox goes by its name.
const initPath = "usr/lib/fleetlab/busybox"

// writeInit makes busybox the host's first process, and takes away what would say that systemd is there.
func (h *Host) writeInit() error {
	busybox, err := findTool("busybox")
	if err != nil {
		return fmt.Errorf("%w (package busybox-static)", err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	if err := h.replace(initPath, string(data), 0o755); err != nil {
		return err
	}
	sshd, err := findTool("sshd")
	if err != nil {
		return err
	}
	rc := "#!/bin/sh\nmkdir -p /run/sshd /run/lock\nchmod 755 /run/sshd\n"
	if err := h.replace("etc/fleetlab-rc", rc, 0o755); err != nil {
		return err
	}
	if err := h.replace("etc/inittab", "::sysinit:/etc/fleetlab-rc\n::respawn:"+sshd+" -D -e\n", 0o644); err != nil {
		return err
	}
	for _, name := range []string{"systemctl", "loginctl", "journalctl", "systemd-run", "busctl"} {
		for _, dir := range []string{"bin", "usr/bin"} {
			if err := os.Remove(filepath.Join(h.root(), dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
