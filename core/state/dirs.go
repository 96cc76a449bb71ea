// Package state is what an operator's fleet remembers between two commands:
// which planes it knows and the session at each, which SSH destination reaches
// which machine, and the last audit head it saw. All of it is the person's,
// none of it is a machine's; every file is private and replaced whole.
//
// It knows nothing of how a plane or a machine is spoken to.
package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Dirs are the directories of one person. State and Runtime are made, with
// mode 0700, by the functions that return them.
type Dirs struct {
	Getenv func(string) string
	UID    int
}

// DirsOf returns the directories of the calling process's user.
func DirsOf(getenv func(string) string) Dirs { return Dirs{Getenv: getenv, UID: os.Getuid()} }

func (d Dirs) home() string { return d.Getenv("HOME") }

func (d Dirs) xdg(variable, below string) (string, error) {
	if v := d.Getenv(variable); filepath.IsAbs(v) {
		return v, nil
	}
	if h := d.home(); filepath.IsAbs(h) {
		return filepath.Join(h, below), nil
	}
	return "", fmt.Errorf("neither %s nor HOME names a directory", variable)
}

// ConfigFiles are the configuration files, the strongest first.
func (d Dirs) ConfigFiles() []string {
	var files []string
	if c, err := d.xdg("XDG_CONFIG_HOME", ".config"); err == nil {
		files = append(files, filepath.Join(c, "fleet", "config.toml"))
	}
	return append(files, "/etc/fleet/config.toml")
}

// Data is the directory of a person's own plugins and artifacts. It is not made.
func (d Dirs) Data() (string, error) {
	h, err := d.xdg("XDG_DATA_HOME", ".local/share")
	if err != nil {
		return "", err
	}
	return filepath.Join(h, "fleet"), nil
}

// State is the state directory.
func (d Dirs) State() (string, error) {
	h, err := d.xdg("XDG_STATE_HOME", ".local/state")
	if err != nil {
		return "", err
	}
	return d.private(filepath.Join(h, "fleet"))
}

// Cache is the directory of what can be made again. In a home directory of
// somebody else's, as after sudo, there is none: a directory made there would
// be in that person's way.
func (d Dirs) Cache() (string, error) {
	h, err := d.xdg("XDG_CACHE_HOME", ".cache")
	if err != nil {
		return "", err
	}
	for above := h; ; above = filepath.Dir(above) {
		st, err := os.Stat(above)
		if errors.Is(err, fs.ErrNotExist) && above != "/" {
			continue
		}
		if err != nil {
			return "", err
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != d.UID {
			return "", fmt.Errorf("%s belongs to uid %d", above, sys.Uid)
		}
		break
	}
	return d.private(filepath.Join(h, "fleet"))
}

// Runtime is the directory for sockets: $XDG_RUNTIME_DIR/fleet, else below
// /run/user/UID if that is ours, else /tmp/fleet-UID.
func (d Dirs) Runtime() (string, error) {
	if v := d.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(v) && d.owned(v) == nil {
		return d.private(filepath.Join(v, "fleet"))
	}
	uid := strconv.Itoa(d.UID)
	if run := filepath.Join("/run/user", uid); d.owned(run) == nil {
		return d.private(filepath.Join(run, "fleet"))
	}
	return d.private("/tmp/fleet-" + uid)
}

// private makes the directory if it is missing, and refuses one that is a
// symbolic link, another's, or open to others.
func (d Dirs) private(dir string) (string, error) {
	// It is nearly always there, and is asked for several times in a command.
	if err := d.owned(dir); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", fmt.Errorf("cannot make %s: %w", filepath.Dir(dir), err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("cannot make %s: %w", dir, err)
	}
	if err := d.owned(dir); err != nil {
		return "", err
	}
	return dir, nil
}

func (d Dirs) owned(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case ok && int(sys.Uid) != d.UID:
		return fmt.Errorf("%s belongs to uid %d", dir, sys.Uid)
	case st.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s has mode %04o and is open to others; chmod 700 it", dir, st.Mode().Perm())
	}
	return nil
}
