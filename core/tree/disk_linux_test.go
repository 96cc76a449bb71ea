package tree

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A full disk ends the copy with a word for it, leaves the old content, and
// leaves no half of a file.
func TestAFullDiskLeavesTheOldContent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small disk")
	}
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/disk", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tree", dir+"/disk", "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("no mounts here: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir+"/disk", unix.MNT_DETACH) })
	write(t, dir+"/disk/to", "old", 0o600)
	write(t, dir+"/from", string(make([]byte, 16<<20)), 0o600)
	for lanes := range 2 {
		o := attempt{from: dir + "/from", to: dir + "/disk/to", plain: true, lanes: lanes}.run(t)
		for _, err := range []error{o.sent, o.received} {
			if e := new(Error); !errors.As(err, &e) || e.Code != "disk_full" {
				t.Errorf("%v", err)
			}
		}
		if b, _ := os.ReadFile(dir + "/disk/to"); string(b) != "old" {
			t.Errorf("%q", b)
		}
	}
}
