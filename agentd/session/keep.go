package session

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/agentd/shim"
	"fleet.example/fleet/core/wire"
)

// keepShare is which part of the space that would be free without them ended
// sessions may take: one in so many.
const keepShare = 4

// Sweep removes what is kept of ended sessions beyond the bounds of number,
// age and size, the oldest first; on a file system that fills up the bound of
// size is lower. Sessions that live, or of which that cannot be told, are never
// touched.
func (m *Manager) Sweep(now time.Time) { m.sweep(now, free(m.Dir)) }

// free is how many bytes the account may still write, or -1 if that cannot be
// told.
func free(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return -1
	}
	return int64(uint64(st.Bavail) * uint64(st.Bsize))
}

// mayKeep is how many bytes ended sessions may take, of which they take some;
// never more than most.
func mayKeep(taken, free, most int64) int64 {
	if free < 0 {
		return most
	}
	return min(most, (free+taken)/keepShare)
}

// A session that ended just now may have a client that is on its way back to it:
// it is kept for longer than one tries to come back, however many end meanwhile,
// within bounds of its own.
const (
	freshAge   = 5 * time.Minute
	keepFresh  = 10 * keepEnded
	freshBytes = 4 * keepBytes
)

func (m *Manager) sweep(now time.Time, free int64) {
	ids, err := m.ids()
	if err != nil {
		m.Log.Warn("cannot sweep sessions", "error", err)
		return
	}
	m.sweepFailed()
	type ended struct {
		id   string
		at   time.Time
		size int64
	}
	var all []ended
	for _, id := range ids {
		m.mu.Lock()
		starting := m.starting[id]
		m.mu.Unlock()
		dir := filepath.Join(m.Dir, id)
		if starting || shim.Look(dir) != shim.Gone {
			continue
		}
		e := ended{id: id, size: usage(dir)}
		if x, err := shim.ReadExit(dir); err == nil {
			e.at = x.At.Time
		} else if st, err := os.Stat(dir); err == nil {
			e.at = st.ModTime()
		}
		all = append(all, e)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].at.After(all[j].at) })
	var size, taken int64
	for _, e := range all {
		taken += e.size
	}
	bound, freshBound := mayKeep(taken, free, keepBytes), mayKeep(taken, free, freshBytes)
	for i, e := range all {
		size += e.size
		age := now.Sub(e.at)
		fits := i < keepEnded && size <= bound || age < freshAge && i < keepFresh && size <= freshBound
		if age < keepAge && (fits || i == 0) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(m.Dir, e.id)); err != nil {
			m.Log.Warn("cannot remove session", "session", e.id, "error", err)
		}
		os.Remove(filepath.Join(m.Run, e.id+".sock"))
	}
}

// sweepFailed removes what a crash left of starts that went wrong.
func (m *Manager) sweepFailed() {
	left, err := filepath.Glob(filepath.Join(m.Dir, "s_*"+failedSuffix))
	if err != nil {
		return
	}
	for _, dir := range left {
		id := strings.TrimSuffix(filepath.Base(dir), failedSuffix)
		m.mu.Lock()
		starting := m.starting[id]
		m.mu.Unlock()
		if !starting && shim.Look(dir) == shim.Gone {
			os.RemoveAll(dir)
		}
	}
}

func usage(dir string) (n int64) {
	filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				n += st.Size()
			}
		}
		return nil
	})
	return n
}

// shimCheck remembers the shim's bytes as they were when agentd first looked.
type shimCheck struct {
	mu    sync.Mutex
	known bool
	sum   [sha256.Size]byte
	size  int64
	mtime time.Time
}

// Unusable tells what keeps this machine from starting a session, as the
// blocker session_unusable, or nil. It reads the disk.
func (m *Manager) Unusable() *wire.Finding {
	f := &wire.Finding{Code: wire.CodeSessionUnusable, Severity: wire.SeverityBlock, Remedy: "install the agent again: fleet update"}
	if err := m.checkShim(); err != nil {
		f.Detail = err.Error()
		return f
	}
	if e := m.lastErr.Load(); e != nil {
		f.Detail = *e
		f.Remedy = "see the agent's log, and the account's process limit"
		return f
	}
	return nil
}

func (m *Manager) checkShim() error {
	c := &m.shimSeen
	c.mu.Lock()
	defer c.mu.Unlock()
	st, err := os.Stat(m.Shim)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("agentd-shim is missing")
	case err != nil:
		return fmt.Errorf("cannot look at agentd-shim: %w", err)
	case !st.Mode().IsRegular():
		return errors.New("agentd-shim is not a regular file")
	case unix.Access(m.Shim, unix.X_OK) != nil:
		return errors.New("agentd-shim is not executable")
	}
	if c.known && st.Size() == c.size && st.ModTime().Equal(c.mtime) {
		return nil
	}
	file, err := os.Open(m.Shim)
	if err != nil {
		return fmt.Errorf("cannot read agentd-shim: %w", err)
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return fmt.Errorf("cannot read agentd-shim: %w", err)
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	if c.known && sum != c.sum {
		return errors.New("agentd-shim was altered")
	}
	c.known, c.sum, c.size, c.mtime = true, sum, st.Size(), st.ModTime()
	return nil
}

// sweepGap is the least time between two sweeps: a sweep looks at every session.
const sweepGap = 10 * time.Second

// SweepSoon sweeps in the background, one at a time and not often; Close waits
// for it.
func (m *Manager) SweepSoon() {
	now := time.Now().UnixNano()
	last := m.swept.Load()
	if now-last < int64(sweepGap) || !m.swept.CompareAndSwap(last, now) || !m.sweeping.CompareAndSwap(false, true) {
		return
	}
	m.background.Go(func() {
		defer m.sweeping.Store(false)
		m.Sweep(time.Now())
	})
}

// Close lets go of the shims, which finish their sessions, and waits for what
// runs in the background. No session may be started after it.
func (m *Manager) Close() {
	m.spares.close()
	m.background.Wait()
}
