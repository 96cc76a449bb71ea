//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fillName is the file that takes up a full home directory.
const fillName = ".lab-fill"

// FillHome writes a file into the account's home directory until not one more byte fits. Keep Account.HomeBytes
// small for it: the bytes are in memory.
func (h *Host) FillHome(account string) error {
	path, err := h.inHome(account, fillName)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("cannot fill home: %w", err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		n, err := f.Write(make([]byte, size))
		switch {
		case errors.Is(err, unix.ENOSPC) && n == 0:
			size /= 2
		case err != nil && !errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("cannot fill home: %w", err)
		}
	}
	return nil
}

// FreeHome removes what FillHome wrote.
func (h *Host) FreeHome(account string) error {
	path, err := h.inHome(account, fillName)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot free home: %w", err)
	}
	return nil
}

// ReadOnlyHome remounts the account's home directory read-only on the running host, until WritableHome or the next
// boot. It is refused while a process has a file there open for writing.
func (h *Host) ReadOnlyHome(ctx context.Context, account string) error {
	return h.remountHome(ctx, account, "ro")
}

// WritableHome undoes ReadOnlyHome.
func (h *Host) WritableHome(ctx context.Context, account string) error {
	return h.remountHome(ctx, account, "rw")
}

func (h *Host) remountHome(ctx context.Context, account, mode string) error {
	a, err := h.account(account)
	if err != nil {
		return err
	}
	options := "remount,bind,nosuid,nodev," + mode
	if a.NoExec {
		options += ",noexec"
	}
	_, err = h.Exec(ctx, "root", "mount", "-o", options, a.Home)
	return err
}

// Put copies a file of this machine to a path on the host's disk, owned by the account. A relative path starts in the
// account's home directory.
func (h *Host) Put(account, from, to string, mode os.FileMode) error {
	a, err := h.account(account)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(a.Home, to)
	}
	src, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("cannot put file: %w", err)
	}
	defer src.Close()
	dst, err := os.OpenFile(filepath.Join(h.root(), to), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return fmt.Errorf("cannot put file: %w", err)
	}
	_, err = io.Copy(dst, src)
	if err := errors.Join(err, dst.Chmod(mode), dst.Chown(a.UID, a.UID), dst.Close()); err != nil {
		return fmt.Errorf("cannot put file: %w", err)
	}
	return nil
}

func (h *Host) inHome(account, name string) (string, error) {
	a, err := h.account(account)
	if err != nil {
		return "", err
	}
	return filepath.Join(h.root(), a.Home, name), nil
}
