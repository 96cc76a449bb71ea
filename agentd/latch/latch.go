// Package latch keeps the mark of an explicit stop (R29). It survives reboot,
// login, install, update and rollback; only an explicit start removes it. The
// service's unit looks at the same file, so that nothing starts agentd again.
//
// It knows nothing of what agentd does about it.
package latch

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/place"
)

// Set leaves the latch. It is durable when Set returns.
func Set(data string) error {
	line := "stopped by a person at " + time.Now().UTC().Format(time.RFC3339) + "\n"
	if err := durable.WriteFile(filepath.Join(data, place.LatchFile), []byte(line), 0o600); err != nil {
		// A full disk must not keep a person from stopping: an empty file needs no block.
		f, err2 := os.OpenFile(filepath.Join(data, place.LatchFile), os.O_CREATE|os.O_WRONLY, 0o600)
		if err2 != nil {
			return fmt.Errorf("cannot leave latch: %w", err)
		}
		f.Close()
		durable.SyncDir(data)
	}
	return nil
}

// Clear removes the latch.
func Clear(data string) error {
	if err := durable.Remove(filepath.Join(data, place.LatchFile)); err != nil {
		return fmt.Errorf("cannot remove latch: %w", err)
	}
	return nil
}

// Present reports whether the latch is there. If that cannot be told it says
// no: an unreadable directory is no person's wish.
func Present(data string) bool {
	_, err := os.Lstat(filepath.Join(data, place.LatchFile))
	return err == nil
}
