package audit

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAFullDiskTearsNoLine: what a full disk took of a line is no line, now and
// after a restart, and everything is there once there is space again.
func TestAFullDiskTearsNoLine(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=32k"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(mount, syscall.MNT_DETACH) })
	ballast := filepath.Join(mount, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 28<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(mount, "audit.jsonl")
	all := chain(24) // more than half of the disk
	s, err := OpenSink(file, Genesis)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx, &source{entries: all, changed: make(chan struct{})}); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	until := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(15 * time.Second); !f(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	read := func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	until("the disk never was full", func() bool { return s.Err() != nil })
	if got := read(); got == "" || !strings.HasSuffix(got, "\n") {
		t.Errorf("a torn line stands there: %.60q", got[strings.LastIndex(got, "\n")+1:])
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	until("the rest is not written", func() bool { return strings.Count(read(), "\n") == len(all) })
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if last, _, err := lastEntry(f); err != nil || last != Head(all[len(all)-1]) {
		t.Errorf("%+v, %v", last, err)
	}
}
