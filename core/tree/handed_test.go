package tree

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// again is the descriptor as another process gets it.
func again(t *testing.T, f *os.File) *os.File {
	t.Helper()
	if f == nil {
		return nil
	}
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "again")
}

// A source and a destination that were handed over are the same ones.
func TestAPlaceIsHandedOver(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "content", 0o640)
	if err := os.MkdirAll(dir+"/tree/sub", 0o750); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/tree/sub/x\xff", "x", 0o600)
	if err := os.Symlink("sub", dir+"/tree/link"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "tree", "tree/link"} {
		src, err := OpenSource(Local{}, dir+"/"+name, true)
		if err != nil {
			t.Fatal(err)
		}
		dst, err := OpenDestination(Local{}, dir+"/to", "base", "")
		if err != nil {
			t.Fatal(err)
		}
		h, f := src.Hand()
		handedSrc, err := TakeSource(h, again(t, f))
		if err != nil {
			t.Fatal(err)
		}
		h, f = dst.Hand()
		handedDst, err := TakeDestination(h, again(t, f))
		if err != nil {
			t.Fatal(err)
		}
		src.Close()
		dst.Close()
		x, y := pair(t)
		var wg sync.WaitGroup
		wg.Go(func() { NewSender(context.Background(), x, handedSrc, SendOptions{}).Run() })
		_, err = NewReceiver(context.Background(), y, handedDst, ReceiveOptions{Recursive: true}).Run()
		wg.Wait()
		handedSrc.Close()
		handedDst.Close()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if st, err := os.Lstat(dir + "/" + name); err != nil {
			t.Error(err)
		} else if st.IsDir() {
			if d := cmp.Diff(look(t, dir+"/"+name), look(t, dir+"/to"), cmp.AllowUnexported(entry{})); d != "" {
				t.Error(d)
			}
		} else if got, err := os.Lstat(dir + "/to"); err != nil || got.Mode() != st.Mode() || got.Size() != st.Size() || !got.ModTime().Equal(st.ModTime()) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if err := os.RemoveAll(dir + "/to"); err != nil {
			t.Fatal(err)
		}
	}
}

// What is handed over is looked at as what was opened is.
func TestWhatIsHandedOverIsLookedAt(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "content", 0o640)
	open := func(name string) *os.File {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if _, err := TakeSource(Handed{}, open(os.DevNull)); err == nil {
		t.Error("a device is a source")
	}
	if _, err := TakeDestination(Handed{Name: []byte("x")}, open(dir+"/file")); err == nil {
		t.Error("a file is a directory")
	}
	if _, err := TakeDestination(Handed{Name: []byte("../x")}, open(dir)); err == nil {
		t.Error("a path is a name")
	}
}
