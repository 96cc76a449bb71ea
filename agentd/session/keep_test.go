package session

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

// What is kept of ended sessions leaves room on a file system that fills up,
// the oldest going first, and never takes the last one's output away.
func TestWhatIsKeptLeavesRoom(t *testing.T) {
	const mib = 1 << 20
	now := time.Now()
	for _, c := range []struct {
		free int64
		left int
	}{{-1, 8}, {1 << 40, 8}, {24 * mib, 8}, {16 * mib, 6}, {8 * mib, 4}, {0, 2}} {
		t.Run(fmt.Sprint(c.free/mib), func(t *testing.T) {
			m := &Manager{Dir: t.TempDir(), Run: t.TempDir()}
			var ids []string
			for i := range 8 {
				id := wire.NewSessionID()
				ids = append(ids, id)
				dir := filepath.Join(m.Dir, id)
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "output"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(filepath.Join(dir, "output"), mib); err != nil {
					t.Fatal(err)
				}
				at := now.Add(-time.Duration(i) * time.Minute)
				if err := os.Chtimes(dir, at, at); err != nil {
					t.Fatal(err)
				}
			}
			m.sweep(now, c.free)
			for i, id := range ids {
				if _, err := os.Stat(filepath.Join(m.Dir, id)); (err == nil) != (i < c.left) {
					t.Errorf("with %d MiB free, the %d newest are to stay: %d: %v", c.free/mib, c.left, i, err)
				}
			}
		})
	}
	if n := free(t.TempDir()); n <= 0 {
		t.Errorf("%d bytes are free", n)
	}
}
