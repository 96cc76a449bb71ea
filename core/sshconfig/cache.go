package sshconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fleet.example/fleet/core/durable"
)

const (
	// maxKept bounds how many answers are kept; a few kilobytes each.
	maxKept = 256
	// abandoned is how old a temporary file must be to be nobody's any more.
	abandoned = time.Hour
)

// Cache keeps answers of ssh's in a private directory, by the digest of what
// they depend on. Its methods may be used from several processes at once, and
// do nothing on nil.
type Cache struct {
	dir string
	now func() time.Time
}

// NewCache keeps answers in a directory that is the person's and closed to
// others. Whoever could write there could choose a ProxyCommand.
func NewCache(dir string) *Cache { return &Cache{dir: dir, now: time.Now} }

const cacheHead = "fleet-ssh-config "

func checksum(key, text string) string {
	h := sha256.New()
	io.WriteString(h, key+"\n")
	io.WriteString(h, text)
	return hex.EncodeToString(h.Sum(nil))
}

// get returns what was kept under the key. Anything but a whole, private file
// is as good as none.
func (c *Cache) get(key string) (string, bool) {
	if c == nil || key == "" {
		return "", false
	}
	b, err := durable.ReadPrivate(filepath.Join(c.dir, key), maxAnswer+256)
	if err != nil {
		return "", false
	}
	head, text, ok := strings.Cut(string(b), "\n")
	if !ok || head != cacheHead+checksum(key, text) {
		return "", false
	}
	return text, true
}

// put keeps a text under the key. It need not survive a power cut, so nothing
// is synced: a torn file does not have its checksum.
func (c *Cache) put(key, text string) error {
	if c == nil || key == "" {
		return nil
	}
	f, err := os.CreateTemp(c.dir, ".new-*") // 0600 from the start
	if err != nil {
		return fmt.Errorf("the cache cannot be written: %w", err)
	}
	_, err = fmt.Fprintf(f, "%s%s\n%s", cacheHead, checksum(key, text), text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(c.dir, key))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("the cache cannot be written: %w", err)
	}
	return c.prune()
}

// prune removes the oldest answers beyond the bound, and what crashed writers
// left. Another process may do the same at the same time.
func (c *Cache) prune() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	type kept struct {
		name string
		at   time.Time
	}
	var all []kept
	for _, e := range entries {
		temporary := strings.HasPrefix(e.Name(), ".new-")
		if !temporary && len(entries) <= maxKept {
			continue
		}
		st, err := e.Info()
		if err != nil {
			continue // another process was quicker
		}
		switch {
		case !temporary:
			all = append(all, kept{e.Name(), st.ModTime()})
		case c.now().Sub(st.ModTime()) > abandoned:
			os.Remove(filepath.Join(c.dir, e.Name()))
		}
	}
	if len(all) <= maxKept {
		return nil
	}
	slices.SortFunc(all, func(a, b kept) int { return a.at.Compare(b.at) })
	for _, k := range all[:len(all)-maxKept*3/4] {
		if err := os.Remove(filepath.Join(c.dir, k.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
