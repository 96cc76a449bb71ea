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

// What ended just now may have a client on its way back, and stays for as long as
// that one tries.
func TestWhatEndedJustNowOutlivesManyOthers(t *testing.T) { // R34
	now := time.Now()
	m := &Manager{Dir: t.TempDir(), Run: t.TempDir()}
	kept := func(age time.Duration) (n int) {
		os.RemoveAll(m.Dir)
		for range keepEnded + 50 {
			dir := filepath.Join(m.Dir, wire.NewSessionID())
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(dir, now.Add(-age), now.Add(-age)); err != nil {
				t.Fatal(err)
			}
		}
		m.sweep(now, -1)
		left, err := os.ReadDir(m.Dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	if n := kept(3 * time.Minute); n != keepEnded+50 {
		t.Errorf("%d are left of those that ended just now", n)
	}
	if n := kept(10 * time.Minute); n != keepEnded {
		t.Errorf("%d are left of those that ended some time ago", n)
	}
}

// A session whose record cannot be read may run in any workspace.
func TestASessionThatCannotBeReadIsInNoKnownWorkspace(t *testing.T) { // R34
	m := &Manager{Dir: t.TempDir(), Run: t.TempDir()}
	id := wire.NewSessionID()
	dir := filepath.Join(m.Dir, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(`{"id":"`+id+`","workspace":"w"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.starting = map[string]bool{id: true}
	if n, err := m.RunningIn(); err != nil || n["w"] != 1 || n["other"] != 0 {
		t.Fatal(n, err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := m.RunningIn(); err == nil {
		t.Error("nothing is known of it, and yet:", n)
	}
	m.starting = nil
	if n, err := m.RunningIn(); err != nil || len(n) != 0 {
		t.Error("it is over:", n, err)
	}
}
