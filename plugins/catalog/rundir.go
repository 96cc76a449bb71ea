package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"fleet.example/fleet/plugins/sdk"
)

// longestBase is the longest base directory for which every socket's path below
// it fits into sun_path, which holds 103 bytes on darwin.
const longestBase = 40

// runDir is the directory of one launch. Its lock is held as long as the host
// lives; a free lock means that the launch is lost.
type runDir struct {
	path string
	held *os.File
}

const runLock = "host"

// newRunDir makes a launch's directory and sweeps those of lost launches.
func (c *Catalog) newRunDir() (*runDir, error) {
	path, err := c.makeRunDir()
	if errors.Is(err, fs.ErrNotExist) { // whoever shares the base took it away, being empty
		path, err = c.makeRunDir()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a directory for the plugin's sockets: %w", err)
	}
	// The lock gets its name once it is held: another launch that sweeps at this
	// moment would take a free one for a lost launch's.
	making := filepath.Join(path, runLock+".new")
	f, err := os.OpenFile(making, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			err = os.Rename(making, filepath.Join(path, runLock))
		}
		if err != nil {
			f.Close()
		}
	}
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return &runDir{path: path, held: f}, nil
}

func (c *Catalog) makeRunDir() (string, error) {
	base, err := c.runBase()
	if err != nil {
		return "", err
	}
	sweepRunDirs(base)
	return os.MkdirTemp(base, sdk.RunDirPrefix)
}

func (d *runDir) remove() error {
	return errors.Join(os.RemoveAll(d.path), d.held.Close())
}

// FitsRunBase reports whether a directory's path is short enough to be RunBase.
func FitsRunBase(dir string) bool { return dir != "" && len(dir) <= longestBase }

// runBase is a private directory with a short enough path.
func (c *Catalog) runBase() (string, error) {
	base := c.RunBase
	if !FitsRunBase(base) {
		base = filepath.Join("/tmp", "fleet-"+strconv.Itoa(os.Geteuid()))
	}
	if err := os.Mkdir(base, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	st, err := os.Lstat(base)
	if err != nil {
		return "", err
	}
	if !st.IsDir() || st.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s is not a directory closed to others", base)
	}
	return base, onlyOursDir(base)
}

// onlyOursDir is stricter than onlyOurs: not even root's directory will do.
func onlyOursDir(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || sys.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("%s belongs to somebody else", dir)
	}
	return nil
}

// sweepRunDirs removes what lost launches left. A launch that is just being
// made has no lock file yet and is left alone.
func sweepRunDirs(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return // newRunDir says what is wrong
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), sdk.RunDirPrefix) {
			continue
		}
		dir := filepath.Join(base, e.Name())
		f, err := os.OpenFile(filepath.Join(dir, runLock), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		f.Close()
	}
}
