package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"fleet.example/fleet/core/durable"
)

// maxFile bounds a state file, in bytes.
const maxFile = 64 << 20

// ReadJSON reads a private JSON file into v. A missing file leaves v alone and
// is no error. Unknown fields are refused: they are a newer fleet's, and
// writing the file back would drop them.
func ReadJSON(path string, v any) error {
	b, err := durable.ReadPrivate(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read state: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("cannot read state: %s: %w", path, err)
	}
	return nil
}

// lockWait bounds how long an update waits for another process's.
const lockWait = 10 * time.Second

// UpdateJSON reads the file into v, calls change, and writes v back, all under
// a lock that other fleet processes honour. If change returns an error nothing
// is written.
func UpdateJSON(ctx context.Context, path string, v any, change func() error) error {
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if err := ReadJSON(path, v); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("cannot write state: %w", err)
	}
	return nil
}

func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock state: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			f.Close()
			return nil, fmt.Errorf("cannot lock state: %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("cannot lock state: %s is held by another fleet", path)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
