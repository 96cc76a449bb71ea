package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

func in(t *testing.T) (*Files, string) {
	dir := t.TempDir()
	return &Files{Tree: Everything{}, Home: dir, Umask: 0o027}, dir
}

func code(err error) string {
	if e := new(Error); errors.As(err, &e) {
		return e.Code
	}
	if err != nil {
		return "other: " + err.Error()
	}
	return ""
}

func content(path, body string) Content { return Content{Path: path, Body: strings.NewReader(body)} }

func put(t *testing.T, path, body string, mode uint32) {
	t.Helper()
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("%s holds %q, %v; want %q", path, b, err, want)
	}
}

// nothingLeft says that only the named entries are in dir.
func nothingLeft(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("in %s are %v, %v; want %v", dir, got, err, want)
	}
}

func TestAWriteKeepsWhatTheOldFileHad(t *testing.T) {
	f, dir := in(t)
	put(t, dir+"/run.sh", "old", 0o4751)
	i, err := f.Write(content("run.sh", "new"))
	if err != nil || i.Mode != "4751" || i.Size != 3 {
		t.Fatal(i, err)
	}
	holds(t, dir+"/run.sh", "new")
	if i, err = f.Write(Content{Path: "run.sh", Body: strings.NewReader("x"), Mode: "600"}); err != nil || i.Mode != "0600" {
		t.Error(i, err)
	}
	if i, err = f.Write(content("fresh", "x")); err != nil || i.Mode != "0640" {
		t.Errorf("a new file has %+v, %v; want the account's umask to count", i, err)
	}
	nothingLeft(t, dir, "fresh", "run.sh")
}

func TestAWriteThroughALinkKeepsTheLink(t *testing.T) {
	f, dir := in(t)
	os.Mkdir(dir+"/etc", 0o755)
	put(t, dir+"/etc/real", "old", 0o644)
	for link, to := range map[string]string{"absolute": dir + "/etc/real", "relative": "etc/real", "second": "relative"} {
		if err := os.Symlink(to, dir+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"absolute", "relative", "second"} {
		if _, err := f.Write(content(link, "through "+link)); err != nil {
			t.Fatal(err)
		}
		holds(t, dir+"/etc/real", "through "+link)
		if st, err := os.Lstat(dir + "/" + link); err != nil || st.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no link any more: %v", link, err)
		}
	}
	os.Symlink("loop", dir+"/loop")
	if _, err := f.Write(content("loop", "x")); code(err) != wire.CodeBadRequest {
		t.Error(err)
	}
	os.Symlink("etc/made", dir+"/dangling")
	if _, err := f.Write(content("dangling", "made")); err != nil {
		t.Error(err)
	}
	holds(t, dir+"/etc/made", "made")
}

func TestWhatIsNoFileIsNeitherReadNorWritten(t *testing.T) {
	f, dir := in(t)
	os.Mkdir(dir+"/d", 0o755)
	if err := syscall.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"d", "fifo", "/dev/zero", "/dev/tty"} {
		if _, err := os.Stat(p); strings.HasPrefix(p, "/") && err != nil {
			continue // a sandbox without it
		}
		if _, _, err := f.Open(p); code(err) != wire.CodeNotAFile {
			t.Errorf("reading %s: %v", p, err)
		}
		if _, err := f.Write(content(p, "x")); code(err) != wire.CodeNotAFile {
			t.Errorf("writing %s: %v", p, err)
		}
	}
	if _, err := f.Write(content("new/", "x")); code(err) != wire.CodeNotAFile {
		t.Error(err)
	}
	for p, want := range map[string]string{"none": wire.CodeNotFound, "fifo/x": wire.CodeNotADir, "none/x": wire.CodeNotFound, "a\x00b": wire.CodeBadRequest,
		strings.Repeat("x", 5000): wire.CodeBadRequest, strings.Repeat("x", 300): wire.CodeBadRequest} {
		if _, _, err := f.Open(p); code(err) != want {
			t.Errorf("reading %.20q: %v, want %s", p, err, want)
		}
	}
	if _, err := f.Write(content("none/x", "y")); code(err) != wire.CodeNotFound {
		t.Error(err)
	}
	nothingLeft(t, dir, "d", "fifo")
}

// cut is a body that ends in the middle.
type cut struct{ io.Reader }

func (c cut) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func TestWhatDoesNotArriveWholeChangesNothing(t *testing.T) {
	f, dir := in(t)
	put(t, dir+"/x", "old", 0o644)
	for name, c := range map[string]Content{
		"cut short":      {Path: "x", Body: cut{strings.NewReader("new, but not a")}},
		"damaged":        {Path: "x", Body: strings.NewReader("new"), Sum: func() string { return strings.Repeat("0", 64) }},
		"a mode":         {Path: "x", Body: strings.NewReader("new"), Mode: "0888"},
		"a large mode":   {Path: "x", Body: strings.NewReader("new"), Mode: "17777"},
		"a way":          {Path: "x", Body: strings.NewReader("new"), OnConflict: "overwrite"},
		"fail":           {Path: "x", Body: strings.NewReader("new"), OnConflict: wire.ConflictFail},
		"another's etag": {Path: "x", Body: strings.NewReader("new"), Match: "abc"},
		"none there":     {Path: "y", Body: strings.NewReader("new"), Match: "*"},
		"no JSON sent":   {Path: "x", Body: strings.NewReader("{"), OnConflict: wire.ConflictMergeJSON},
		"no JSON there":  {Path: "x", Body: strings.NewReader("{}"), OnConflict: wire.ConflictMergeJSON},
		"an array":       {Path: "y", Body: strings.NewReader("[]"), OnConflict: wire.ConflictMergeJSON},
		"merge cut":      {Path: "y", Body: cut{strings.NewReader("{}")}, OnConflict: wire.ConflictMergeJSON},
	} {
		if i, err := f.Write(c); err == nil {
			t.Errorf("%s was taken: %+v", name, i)
		}
		holds(t, dir+"/x", "old")
		nothingLeft(t, dir, "x")
	}
	sum := sha256.Sum256([]byte("new"))
	if _, err := f.Write(Content{Path: "x", Body: strings.NewReader("new"), Sum: func() string { return hex.EncodeToString(sum[:]) }}); err != nil {
		t.Error(err)
	}
	holds(t, dir+"/x", "new")
}

func TestMergeTakesTheMembersThatAreWritten(t *testing.T) {
	f, dir := in(t)
	merge := func(body string) error {
		_, err := f.Write(Content{Path: "settings.json", Body: strings.NewReader(body), OnConflict: wire.ConflictMergeJSON})
		return err
	}
	source := "{\"a\":1,\t\"b\": {\"deep\": true}}"
	if err := merge(source); err != nil {
		t.Fatal(err)
	}
	holds(t, dir+"/settings.json", source) // as it was sent
	if err := merge(`{"c":12345678901234567890.10, "b": "<gone>", "é": null}`); err != nil {
		t.Fatal(err)
	}
	holds(t, dir+"/settings.json", "{\n  \"a\": 1,\n  \"b\": \"<gone>\",\n  \"c\": 12345678901234567890.10,\n  \"é\": null\n}\n")
	if err := os.Chmod(dir+"/settings.json", 0); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		if err := merge(`{"d":1}`); code(err) != wire.CodeForbidden {
			t.Errorf("an unreadable one: %v", err)
		}
	}
}

// Of many who merge into one file at once, none is lost.
func TestMergesAtOnceAreAllKept(t *testing.T) {
	f, dir := in(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			_, err := f.Write(Content{Path: "x", Body: strings.NewReader(fmt.Sprintf(`{"k%d":%d}`, i, i)), OnConflict: wire.ConflictMergeJSON})
			if err != nil && code(err) != wire.CodeConflict {
				t.Error(err)
			}
			if err != nil {
				t.Logf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(dir + "/x")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if !bytes.Contains(b, fmt.Appendf(nil, `"k%d"`, i)) {
			t.Errorf("k%d is lost: %s", i, b)
		}
	}
	nothingLeft(t, dir, "x")
	if len(f.names) != 0 {
		t.Errorf("%d locks are left", len(f.names))
	}
}

// Of many who make one file, one succeeds.
func TestOnlyOneMakesAFile(t *testing.T) {
	f, dir := in(t)
	var wg sync.WaitGroup
	var made sync.Map
	for i := range 16 {
		wg.Go(func() {
			_, err := f.Write(Content{Path: "lock", Body: strings.NewReader(fmt.Sprint(i)), OnConflict: wire.ConflictFail})
			if err == nil {
				made.Store(i, true)
			} else if code(err) != wire.CodeExists {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	made.Range(func(k, _ any) bool { n++; holds(t, dir+"/lock", fmt.Sprint(k)); return true })
	if n != 1 {
		t.Errorf("%d made it", n)
	}
	nothingLeft(t, dir, "lock")
}

func TestAnETagIsOfOneContent(t *testing.T) {
	f, dir := in(t)
	i, err := f.Write(content("x", "one"))
	if err != nil {
		t.Fatal(err)
	}
	j, err := f.Write(Content{Path: "x", Body: strings.NewReader("two"), Match: i.ETag})
	if err != nil || j.ETag == i.ETag {
		t.Fatal(j, err)
	}
	if _, err := f.Write(Content{Path: "x", Body: strings.NewReader("three"), Match: i.ETag}); code(err) != wire.CodePrecondition {
		t.Error(err)
	}
	if err := f.Remove("x", i.ETag, false); code(err) != wire.CodePrecondition {
		t.Error(err)
	}
	holds(t, dir+"/x", "two")
	if err := f.Remove("x", j.ETag, false); err != nil {
		t.Error(err)
	}
	nothingLeft(t, dir)
}

func TestAReaderLearnsOfAChange(t *testing.T) {
	f, dir := in(t)
	put(t, dir+"/x", "content", 0o644)
	file, i, err := f.Open("x")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := f.Unchanged(file, i); err != nil {
		t.Error(err)
	}
	put(t, dir+"/x", "more content", 0o644)
	if err := f.Unchanged(file, i); code(err) != wire.CodeChanged {
		t.Error(err)
	}
}

func TestListingHasEveryName(t *testing.T) {
	f, dir := in(t)
	want := map[string]string{"plain": wire.FileRegular, "with\nnewline": wire.FileRegular, "\xff\xfe": wire.FileRegular, "dir": wire.FileDirectory, "link": wire.FileSymlink, "fifo": wire.FileFIFO}
	for n, k := range want {
		switch k {
		case wire.FileDirectory:
			os.Mkdir(dir+"/"+n, 0o755)
		case wire.FileSymlink:
			os.Symlink("nowhere", dir+"/"+n)
		case wire.FileFIFO:
			syscall.Mkfifo(dir+"/"+n, 0o600)
		default:
			put(t, dir+"/"+n, "x", 0o644)
		}
	}
	got := map[string]string{}
	if err := f.List("", func(i *wire.FileInfo) error {
		got[string(i.Name)] = i.Type
		if string(i.Path) != dir+"/"+string(i.Name) || i.Type == wire.FileSymlink && i.Target != "nowhere" {
			t.Errorf("%+v", i)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q", got)
	}
	enough := errors.New("enough")
	if err := f.List(dir, func(*wire.FileInfo) error { return enough }); err != enough {
		t.Error(err)
	}
	if err := f.List("plain", nil); code(err) != wire.CodeNotADir {
		t.Error(err)
	}
}

func TestRemovingKeepsWhatItMust(t *testing.T) {
	f, dir := in(t)
	os.MkdirAll(dir+"/a/b", 0o755)
	put(t, dir+"/a/b/c", "x", 0o644)
	os.Symlink(dir+"/a", dir+"/link")
	for p, want := range map[string]string{"": wire.CodeForbidden, "~": wire.CodeForbidden, "/": wire.CodeForbidden, filepath.Dir(dir): wire.CodeForbidden,
		"a/../../" + filepath.Base(dir): wire.CodeForbidden, "a/.": wire.CodeBadRequest, "none": wire.CodeNotFound} {
		if err := f.Remove(p, "", true); code(err) != want {
			t.Errorf("%q: %v, want %s", p, err, want)
		}
	}
	if err := f.Remove("a", "", false); code(err) != wire.CodeNotEmpty {
		t.Error(err)
	}
	if err := f.Remove("link", "", true); err != nil {
		t.Error(err)
	}
	holds(t, dir+"/a/b/c", "x")
	if err := f.Remove("a/", "", true); err != nil {
		t.Error(err)
	}
	nothingLeft(t, dir)
}

// In an os.Root nothing leads out, whoever makes links meanwhile.
func TestARootIsNotLeft(t *testing.T) { // R33
	outside := t.TempDir()
	put(t, outside+"/secret", "secret", 0o644)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	f := &Files{Tree: root, Home: "."}
	os.Symlink(outside, dir+"/out")
	os.Symlink(outside+"/secret", dir+"/file")
	os.Symlink("../"+filepath.Base(outside)+"/secret", dir+"/up")
	paths := []string{"out/secret", "file", "up", "../" + filepath.Base(outside) + "/secret", outside + "/secret", "/etc/passwd", "a/../../x"}
	try := func() {
		for _, p := range paths {
			if file, _, err := f.Open(p); err == nil {
				file.Close()
				t.Errorf("%s was read", p)
			}
			if _, err := f.Write(content(p, "owned")); err == nil {
				t.Errorf("%s was written", p)
			}
			f.Remove(p, "", true) // a link itself may be
		}
		holds(t, outside+"/secret", "secret")
		nothingLeft(t, outside, "secret")
	}
	try()
	// Another process turns a directory into a link out, and back, all the time.
	os.Mkdir(dir+"/real", 0o755)
	put(t, dir+"/real/secret", "inside", 0o644)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Symlink(outside, dir+"/tmp")
			os.Rename(dir+"/tmp", dir+"/swap")
			os.Remove(dir + "/swap")
			os.Rename(dir+"/real", dir+"/swap")
			os.Rename(dir+"/swap", dir+"/real")
		}
	})
	inside, refused := 0, 0
	for n, deadline := 0, time.Now().Add(time.Minute); n < 2000 || inside == 0 || refused == 0; n++ {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was raced: %d reads inside, %d refused", inside, refused)
		}
		file, _, err := f.Open("swap/secret")
		switch {
		case err == nil:
			b, _ := io.ReadAll(file)
			file.Close()
			if string(b) == "secret" {
				t.Fatal("the outside was read")
			}
			inside++
		case code(err) != wire.CodeNotFound:
			refused++
		}
		f.Write(content("swap/new", "x"))
	}
	close(stop)
	wg.Wait()
	holds(t, outside+"/secret", "secret")
	nothingLeft(t, outside, "secret")
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":[1,2]}}`), []byte(`{"b":null,"d":"x"}`))
	f.Add([]byte(`{"a":1,"a":2}`), []byte("{\"\\u0061\":3}"))
	f.Fuzz(func(t *testing.T, there, over []byte) {
		a, err := object(there)
		if err != nil {
			return
		}
		b, err := object(over)
		if err != nil {
			return
		}
		out, err := object(join(a, b))
		if err != nil {
			t.Fatalf("merged into no object: %v", err)
		}
		got := map[string]bool{}
		for _, m := range out {
			got[m.key] = true
		}
		for _, m := range append(a, b...) {
			if !got[m.key] {
				t.Fatalf("%q is lost", m.key)
			}
		}
		if len(got) != len(out) {
			t.Fatal("a key stands twice")
		}
	})
}

// One entry has one lock, by whatever name a writer comes to it.
func TestEverySpellingOfANameTakesTheSameLock(t *testing.T) {
	f, dir := in(t)
	if err := os.Symlink(dir, dir+"/again"); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir + "/./j", dir + "//j", dir + "/j/", dir + "/again/j", dir + "/again/../" + filepath.Base(dir) + "/j"} {
		if f.entry(at) != f.entry(dir+"/j") {
			t.Errorf("%s has a lock of its own", at)
		}
	}
	if f.entry(dir+"/k") == f.entry(dir+"/j") {
		t.Error("two names have one lock")
	}
}

// What is removed is what the path leads to, and no link before ".." hides the
// home directory.
func TestAPathThroughALinkRemovesNoHome(t *testing.T) {
	f, dir := in(t)
	if err := os.Mkdir(dir+"/x", 0o700); err != nil {
		t.Fatal(err)
	}
	f.Home = dir + "/home"
	if err := os.Mkdir(f.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, f.Home+"/kept", "x", 0o600)
	elsewhere := t.TempDir()
	if err := os.Symlink(dir+"/x", elsewhere+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(elsewhere+"/link/../home", "", true); err == nil {
		t.Error("the home directory was removed")
	}
	holds(t, f.Home+"/kept", "x")
}
