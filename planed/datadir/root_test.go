package datadir

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/planed/ca"
)

// copyDir is a directory as it was left by a crash.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func authority(t *testing.T, dir string) *ca.Server {
	t.Helper()
	p, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Authority(dir, p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// At every point at which the coming of a root may be cut short the authority is
// whole: it presents what somebody verifies who trusts either root, or, once the
// new one is in place, that one; and what is done again ends it. // R26, R27
func TestANewRootIsCutShortAnywhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plane")
	if _, err := Init(t.Context(), Options{Dir: dir, URL: "https://a.example", Owner: "dana", Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	old := authority(t, dir).Root
	now := time.Now()
	root, err := NewRoot(dir, filepath.Join(dir, "root.next.key"), now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewRoot(dir, filepath.Join(dir, "another.key"), now); err == nil || !strings.Contains(err.Error(), "already") {
		t.Error("a second one was made:", err)
	}
	verifies := func(dir string, trust ...*x509.Certificate) {
		t.Helper()
		a := authority(t, dir)
		for _, r := range trust {
			if err := a.Try(now, r); err != nil {
				t.Errorf("for who trusts %s alone: %v", ca.Pin(r), err)
			}
		}
		if _, err := ca.DecodeCert(ca.EncodeCert(a.Root)); err != nil {
			t.Error(err)
		}
	}
	verifies(dir, old, root)
	if got := authority(t, dir); !got.Root.Equal(old) || len(got.Trusted()) != 2 {
		t.Fatalf("%d roots are trusted", len(got.Trusted()))
	}

	// Before the root itself is written, nothing is on its way.
	cut := copyDir(t, dir)
	durable.Remove(filepath.Join(cut, nextRoot))
	verifies(cut, old)
	if got := authority(t, cut); len(got.Trusted()) != 1 {
		t.Error("a root is trusted that is not there")
	}

	// Taken back: before, between and after the two files.
	for n := range 3 {
		cut := copyDir(t, dir)
		for _, name := range []string{nextRoot, nextIntermediate}[:n] {
			durable.Remove(filepath.Join(cut, name))
		}
		verifies(cut, old)
		if err := DropNextRoot(cut); err != nil {
			t.Fatal(err)
		}
		verifies(cut, old)
		if got := authority(t, cut); !got.Root.Equal(old) || len(got.Trusted()) != 1 || len(got.Cross) != 0 {
			t.Errorf("cut after %d: %d trusted, %d cross", n, len(got.Trusted()), len(got.Cross))
		}
	}

	// In place: after plane.json, and after each of the names that follow.
	done := copyDir(t, dir)
	at := func(dir, name string) string { return filepath.Join(dir, name) }
	steps := []func(){
		func() {
			if _, err := Update(done, func(p *Plane) { p.CAPin = ca.Pin(root) }); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			b, err := os.ReadFile(at(done, FileIntermediate))
			if err == nil {
				err = os.WriteFile(at(done, formerIntermediate), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		func() { os.Rename(at(done, nextIntermediate), at(done, FileIntermediate)) },
		func() { os.Rename(at(done, nextRoot), at(done, FileRootCert)) },
	}
	for n, step := range steps {
		step()
		for _, mend := range []func(string) error{UseNextRoot, DropNextRoot} {
			cut := copyDir(t, done)
			verifies(cut, root, old)
			if got := authority(t, cut); !got.Root.Equal(root) || len(got.Trusted()) != 1 {
				t.Fatalf("after step %d: %d trusted", n, len(got.Trusted()))
			}
			if err := mend(cut); err != nil {
				t.Fatal(n, err)
			}
			verifies(cut, root, old)
			got := authority(t, cut)
			if next, err := NextRoot(cut); err != nil || next != nil || !got.Root.Equal(root) || len(got.Cross) != 1 {
				t.Fatalf("after step %d: %v, %v, %d cross", n, next, err, len(got.Cross))
			}
			if b, err := os.ReadFile(at(cut, FileRootCert)); err != nil || string(b) != string(ca.EncodeCert(root)) {
				t.Errorf("after step %d: root.pem holds another: %v", n, err)
			}
		}
	}
}
