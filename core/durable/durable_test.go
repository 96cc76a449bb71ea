package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWriteFileIsPrivateWhateverTheUmask(t *testing.T) { // R1
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	p := filepath.Join(t.TempDir(), "credential")
	for _, content := range []string{"one", "two"} {
		if err := WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(p)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Fatal(st.Mode(), err)
		}
		if b, err := ReadPrivate(p, 10); err != nil || string(b) != content {
			t.Fatal(string(b), err)
		}
	}
	if e, _ := os.ReadDir(filepath.Dir(p)); len(e) != 1 {
		t.Fatalf("%d files left, want 1", len(e))
	}
}

func TestCreateFileNeverReplaces(t *testing.T) {
	p := filepath.Join(t.TempDir(), "installation")
	if err := CreateFile(p, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CreateFile(p, []byte("second"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("err = %v, want ErrExist", err)
	}
	if b, _ := os.ReadFile(p); string(b) != "first" {
		t.Fatalf("content = %q", b)
	}
	if e, _ := os.ReadDir(filepath.Dir(p)); len(e) != 1 {
		t.Fatalf("%d files left, want 1", len(e))
	}
}

func TestReadPrivateRefusesOpenFilesLinksAndLongOnes(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "f")
	if err := WriteFile(p, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPrivate(p, 4); err == nil {
		t.Error("a longer file was taken")
	}
	if err := os.Symlink(p, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPrivate(filepath.Join(dir, "link"), 10); err == nil {
		t.Error("a symbolic link was followed")
	}
	if err := os.Chmod(p, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPrivate(p, 10); !errors.Is(err, ErrNotPrivate) {
		t.Errorf("err = %v, want ErrNotPrivate", err)
	}
	if _, err := ReadPrivate(dir, 10); err == nil {
		t.Error("a directory was read")
	}
}

func TestSweepRemovesOnlyTemporaries(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"keep", ".credential.fleet-tmp-123"} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if e, _ := os.ReadDir(dir); len(e) != 1 || e[0].Name() != "keep" {
		t.Fatal(e)
	}
}

// TestReadPrivateRefusesWhatBelongsToOthers: a file that another account owns is
// that account's word, whatever its mode; root reads what belongs to the owner
// of the directory.
func TestReadPrivateRefusesWhatBelongsToOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("giving a file to another account needs root")
	}
	dir := t.TempDir()
	p := filepath.Join(dir, "f")
	if err := WriteFile(p, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(p, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPrivate(p, 10); !errors.Is(err, ErrNotPrivate) || !strings.Contains(err.Error(), "another account") {
		t.Errorf("err = %v", err)
	}
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPrivate(p, 10); err != nil {
		t.Errorf("root cannot read a service's file in its own directory: %v", err)
	}
	st, err := os.Stat(p)
	if err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[int]bool{0: true, 12345: true, 54321: false} {
		if ours(p, st, uid) != want {
			t.Errorf("of account %d: %t", uid, !want)
		}
	}
}

// A process that starts sweeps the directory while another one writes: neither
// notices the other.
func TestASweepTakesNothingFromAWriter(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for i := range 3 {
		swept := 0
		put := func(tmp string) error {
			if swept < i {
				swept++
				if err := Sweep(dir); err != nil {
					t.Fatal(err)
				}
			}
			return os.Rename(tmp, path)
		}
		err := write(path, []byte{byte(i)}, 0o600, put)
		if b, _ := os.ReadFile(path); err != nil || len(b) != 1 || b[0] != byte(i) || swept != i {
			t.Errorf("swept %d times: %v, %q", swept, err, b)
		}
	}
}
