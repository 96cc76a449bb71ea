package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// pair is two ends of a connection.
func pair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	t.Cleanup(func() { ends[0].Close(); ends[1].Close() })
	return ends[0], ends[1]
}

// outcome is what both ends of a copy have to say.
type outcome struct {
	result   Result
	sent     error
	received error
	problems []Problem // as the receiver's caller hears them
}

type attempt struct {
	from, to, base string
	as             string
	again, plain   bool
	lanes          int
	sum            Sum
	cut            int64 // after so many bytes from the sender; 0: not at all
}

// run copies.
func (a attempt) run(t testing.TB) (o outcome) {
	t.Helper()
	src, err := OpenSource(Local{}, a.from, !a.plain)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := OpenDestination(Local{}, a.to, a.base, a.as)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	left := &atomic.Int64{}
	left.Store(a.cut)
	ends := func() (net.Conn, net.Conn) {
		x, y := pair(t)
		if a.cut > 0 {
			x = &cutConn{x, left}
		}
		return x, y
	}
	x, y := ends()
	var mu sync.Mutex
	s := NewSender(ctx, x, src, SendOptions{Sum: a.sum, Again: a.again})
	r := NewReceiver(ctx, y, dst, ReceiveOptions{Sum: a.sum, Recursive: !a.plain, Again: a.again, Trouble: func(p Problem) {
		mu.Lock()
		defer mu.Unlock()
		o.problems = append(o.problems, p)
	}})
	for range a.lanes {
		x, y := ends()
		if err := errors.Join(s.AddLane(x), r.AddLane(y)); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, o.sent = s.Run() })
	o.result, o.received = r.Run()
	wg.Wait()
	return o
}

// cutConn ends after so many bytes were written to it and the others that share
// the count.
type cutConn struct {
	net.Conn
	left *atomic.Int64
}

func (c *cutConn) Write(p []byte) (int, error) {
	left := c.left.Add(-int64(len(p)))
	if left >= 0 {
		return c.Conn.Write(p)
	}
	n := 0
	if some := left + int64(len(p)); some > 0 {
		n, _ = c.Conn.Write(p[:some])
	}
	c.Conn.Close()
	return n, errors.New("cut")
}

// entry is what a tree has under a path.
type entry struct {
	mode    fs.FileMode
	mtime   int64
	content string // or a link's target
}

// look describes a tree, without the directory that it is.
func look(t testing.TB, root string) map[string]entry {
	t.Helper()
	all := map[string]entry{}
	var walk func(dir, at string)
	walk = func(dir, at string) {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			p := dir + "/" + d.Name()
			st, err := os.Lstat(p)
			if err != nil {
				t.Fatal(err)
			}
			e := entry{mode: st.Mode(), mtime: st.ModTime().UnixNano()}
			switch {
			case st.Mode().IsRegular():
				b, err := os.ReadFile(p)
				if err != nil {
					t.Fatal(err)
				}
				e.content = string(b)
			case st.Mode()&fs.ModeSymlink != 0:
				e.content, _ = os.Readlink(p)
			case st.IsDir():
				walk(p, at+"/"+d.Name())
			}
			all[at+"/"+d.Name()] = e
		}
	}
	walk(root, "")
	return all
}

// difference compares trees and tells one.
func difference(t testing.TB, from, to string) string {
	t.Helper()
	a, b := look(t, from), look(t, to)
	for p, e := range a {
		if got, ok := b[p]; !ok {
			return fmt.Sprintf("%q is missing", p)
		} else if got != e {
			return fmt.Sprintf("%q is %v, %d, %d bytes, not %v, %d, %d bytes", p, got.mode, got.mtime, len(got.content), e.mode, e.mtime, len(e.content))
		}
	}
	for p := range b {
		if _, ok := a[p]; !ok {
			return fmt.Sprintf("%q is there and should not be", p)
		}
	}
	return ""
}

// grow makes a random tree.
func grow(t *rapid.T, dir string, depth int) {
	names := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string {
		b := rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "name")
		for i, c := range b {
			if c == 0 || c == '/' {
				b[i] = '\n'
			}
		}
		if s := string(b); s != "." && s != ".." {
			return s
		}
		return "dots"
	}), 0, 6, rapid.ID[string]).Draw(t, "names")
	for _, n := range names {
		p := dir + "/" + n
		mode := fs.FileMode(rapid.IntRange(0, 0o777).Draw(t, "mode")) | 0o400
		mtime := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "time"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
		case kind == 0 && depth > 0:
			must(t, os.Mkdir(p, 0o700))
			grow(t, p, depth-1)
			must(t, os.Chmod(p, mode|0o500))
		case kind == 1:
			must(t, os.Symlink(rapid.StringMatching(`(\.\./)?[a-z/]{1,10}`).Draw(t, "target"), p))
			ts := []unix.Timespec{unix.NsecToTimespec(mtime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, unix.AT_SYMLINK_NOFOLLOW))
			continue
		case kind == 2: // with holes
			f, err := os.Create(p)
			must(t, err)
			for range rapid.IntRange(0, 3).Draw(t, "pieces") {
				_, err := f.WriteAt(noise(t), rapid.Int64Range(0, 3<<20).Draw(t, "at"))
				must(t, err)
			}
			must(t, errors.Join(f.Truncate(rapid.Int64Range(0, 4<<20).Draw(t, "size")), f.Close(), os.Chmod(p, mode)))
		default:
			must(t, errors.Join(os.WriteFile(p, noise(t), 0o600), os.Chmod(p, mode)))
		}
		must(t, os.Chtimes(p, time.Time{}, mtime))
	}
}

func noise(t *rapid.T) []byte {
	size := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 3*BlockSize), rapid.Just(MaxSmall), rapid.Just(MaxSmall+1), rapid.Just(BlockSize)).Draw(t, "size")
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(size)}).Read(b)
	return b
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func scratch(t *rapid.T) (dir string, clean func()) {
	dir, err := os.MkdirTemp("", "tree")
	must(t, err)
	return dir, func() {
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				os.Chmod(p, 0o700)
			}
			return nil
		})
		os.RemoveAll(dir)
	}
}

// What arrives is what was there, whatever that is, and however often the
// connection is cut on the way.
func TestEveryTreeArrives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, clean := scratch(rt)
		defer clean()
		must(rt, os.MkdirAll(dir+"/from", 0o700))
		grow(rt, dir+"/from", 3)
		a := attempt{from: dir + "/from", to: dir + "/to", sum: Sum(rapid.Bool().Draw(rt, "sum")), lanes: rapid.IntRange(0, 3).Draw(rt, "lanes")}
		for range rapid.IntRange(0, 3).Draw(rt, "cuts") {
			a.cut = rapid.Int64Range(1, 1<<20).Draw(rt, "cut")
			a.run(t)
			a.again, a.as = true, "named"
		}
		a.cut = 0
		o := a.run(t)
		if o.sent != nil || o.received != nil || len(o.problems) != 0 {
			rt.Fatalf("%v, %v, %v", o.sent, o.received, o.problems)
		}
		want := look(t, dir+"/from")
		if d := difference(t, dir+"/from", dir+"/to"); d != "" {
			rt.Error(d)
		}
		var files, dirs, links, bytes int64
		for _, e := range want {
			switch {
			case e.mode.IsRegular():
				files++
				bytes += int64(len(e.content))
			case e.mode.IsDir():
				dirs++
			default:
				links++
			}
		}
		if o.result.Files != files || o.result.Directories != dirs+1 || o.result.Links != links || o.result.Bytes != bytes {
			rt.Errorf("%+v is said of %d files, %d directories, %d links, %d bytes", o.result, files, dirs, links, bytes)
		}
	})
}

// A second copy over the first one changes what it must, and keeps modes.
func TestWhatIsThereKeepsItsMode(t *testing.T) {
	dir := t.TempDir()
	for _, x := range []struct{ name, content string }{{"small", "new"}, {"large", string(make([]byte, 1<<20))}} {
		write(t, dir+"/"+x.name, x.content, 0o644)
		write(t, dir+"/there-"+x.name, "old", 0o600)
		o := attempt{from: dir + "/" + x.name, to: dir + "/there-" + x.name, plain: true}.run(t)
		st, err := os.Stat(dir + "/there-" + x.name)
		if err != nil || o.received != nil || o.sent != nil || st.Mode() != 0o600 || st.Size() != int64(len(x.content)) {
			t.Errorf("%+v: %v %v", o, st, err)
		}
	}
	// A link that the caller names is followed; the name stays a link.
	if err := os.Symlink("there-small", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/small", "newer", 0o644)
	attempt{from: dir + "/small", to: dir + "/link", plain: true}.run(t)
	if b, _ := os.ReadFile(dir + "/there-small"); string(b) != "newer" {
		t.Errorf("%q", b)
	}
	if to, err := os.Readlink(dir + "/link"); err != nil || to != "there-small" {
		t.Errorf("%q, %v", to, err)
	}
	if left, _ := filepath.Glob(dir + "/" + tempName + "*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

func write(t testing.TB, path, content string, mode fs.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// Nothing that cannot be copied is opened, waited for or passed over in silence.
func TestWhatIsNoFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/from", 0o700), unix.Mkfifo(dir+"/from/pipe", 0o600)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/from/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write(t, dir+"/from/file", "x", 0o600)
	if os.Geteuid() == 0 {
		if err := unix.Mknod(dir+"/from/device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil {
			t.Logf("no devices here: %v", err)
		}
	}
	o := attempt{from: dir + "/from", to: dir + "/to"}.run(t)
	list, _ := os.ReadDir(dir + "/from")
	if o.received != nil || o.result.Files != 1 || len(o.problems) != len(list)-1 {
		t.Errorf("%+v", o)
	}
	for _, name := range []string{"pipe", "socket"} {
		if _, err := OpenSource(Local{}, dir+"/from/"+name, true); err == nil {
			t.Errorf("%s can be copied", name)
		}
	}
	// In the way of a copy they stay as they are.
	write(t, dir+"/pipe", "x", 0o600)
	o = attempt{from: dir + "/pipe", to: dir + "/from", base: "pipe", plain: true}.run(t)
	if len(o.problems) != 1 || o.result.Files != 0 {
		t.Errorf("%+v", o)
	}
}

// A file that is written to while it is read is not taken for one.
func TestAFileThatChangesIsDropped(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/from", string(make([]byte, 8<<20)), 0o600)
	write(t, dir+"/to", "old", 0o600)
	src, err := OpenSource(Local{}, dir+"/from", false)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := OpenDestination(Local{}, dir+"/to", "from", "")
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	x, y := pair(t)
	var problems []Problem
	var once sync.Once
	changing := &writes{Conn: x, each: func() {
		once.Do(func() { write(t, dir+"/from", "shorter", 0o600) })
	}}
	s := NewSender(context.Background(), changing, src, SendOptions{})
	r := NewReceiver(context.Background(), y, dst, ReceiveOptions{Trouble: func(p Problem) { problems = append(problems, p) }})
	var wg sync.WaitGroup
	wg.Go(func() { s.Run() })
	result, err := r.Run()
	wg.Wait()
	if b, _ := os.ReadFile(dir + "/to"); string(b) != "old" || err != nil || result.Files != 0 || len(problems) != 1 || problems[0].Code != "changed" {
		t.Errorf("%q, %v, %+v, %v", b, err, result, problems)
	}
	if left, _ := filepath.Glob(dir + "/" + tempName + "*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

type writes struct {
	net.Conn
	each func()
}

func (w *writes) Write(p []byte) (int, error) {
	w.each()
	return w.Conn.Write(p)
}

// What a cut attempt brought is not sent again, and what it brought wrong is.
func TestALargeFileGoesOn(t *testing.T) {
	t.Run("sha256", func(t *testing.T) { goesOn(t, SHA256) })
	t.Run("xxh64", func(t *testing.T) { goesOn(t, XXH64) })
}

func goesOn(t *testing.T, sum Sum) {
	dir := t.TempDir()
	content := make([]byte, 10<<20+5)
	rand.NewChaCha8([32]byte{1}).Read(content)
	write(t, dir+"/from", string(content), 0o600)
	a := attempt{from: dir + "/from", to: dir + "/to", plain: true, cut: 6 << 20, sum: sum}
	if o := a.run(t); o.received == nil || o.sent == nil {
		t.Fatalf("%+v", o)
	}
	left, _ := filepath.Glob(dir + "/" + tempName + "*")
	if len(left) != 1 {
		t.Fatalf("%v are left", left)
	}
	f, err := os.OpenFile(left[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt([]byte("damage"), 3*BlockSize+17)
	f.Close()
	a.cut = 0
	o := a.run(t)
	if b, err := os.ReadFile(dir + "/to"); err != nil || !bytes.Equal(b, content) || o.received != nil {
		t.Errorf("%v, %+v", err, o)
	}
	if o.result.Kept < 3<<20 || o.result.Kept%BlockSize != 0 {
		t.Errorf("%d bytes were kept of %d", o.result.Kept, len(content))
	}
	if left, _ := filepath.Glob(dir + "/" + tempName + "*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// A hole stays one.
func TestHolesStay(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(dir + "/from")
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 34
	_, err = f.WriteAt([]byte("in the middle"), size/2+12345)
	if err := errors.Join(err, f.Truncate(size), f.Close()); err != nil {
		t.Skipf("no large files here: %v", err)
	}
	used := func(name string) int64 {
		var st unix.Stat_t
		if err := unix.Stat(dir+name, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if used("/from") > 1<<20 {
		t.Skip("this file system keeps no holes")
	}
	o := attempt{from: dir + "/from", to: dir + "/to", plain: true}.run(t)
	if o.received != nil || o.result.Bytes != size || used("/to") > used("/from") {
		t.Errorf("%+v, %d bytes are used, %d in the source", o, used("/to"), used("/from"))
	}
	b := make([]byte, 13)
	if g, err := os.Open(dir + "/to"); err != nil {
		t.Error(err)
	} else {
		g.ReadAt(b, size/2+12345)
		g.Close()
	}
	if string(b) != "in the middle" {
		t.Errorf("%q", b)
	}
}

func TestManyEntriesArrive(t *testing.T) {
	dir := t.TempDir()
	const n = 20_000
	if err := os.Mkdir(dir+"/from", 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		write(t, fmt.Sprintf("%s/from/%06d", dir, i), "", 0o600)
	}
	o := attempt{from: dir + "/from", to: dir + "/to"}.run(t)
	if o.received != nil || o.result.Files != n {
		t.Errorf("%+v", o)
	}
}
