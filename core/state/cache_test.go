package state

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCacheIsPrivateAndOnesOwn(t *testing.T) {
	home := t.TempDir()
	d := Dirs{UID: os.Getuid(), Getenv: func(k string) string {
		if k == "HOME" {
			return home
		}
		return ""
	}}
	dir, err := d.Cache()
	if err != nil || dir != filepath.Join(home, ".cache", "fleet") {
		t.Fatal(dir, err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Fatal(st, err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if dir, err := d.Cache(); err == nil {
		t.Errorf("%s is open to others and was taken", dir)
	}
	// As after sudo with the person's HOME kept: nothing is made there.
	home = t.TempDir()
	d.UID++
	if dir, err := d.Cache(); err == nil {
		t.Error(dir)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 0 {
		t.Error(entries, err)
	}
}
