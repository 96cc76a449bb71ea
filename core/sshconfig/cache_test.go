package sshconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// world is a home directory with a configuration file and a cache.
type world struct {
	*testing.T
	home string
	r    Resolver
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t, t.TempDir(), Resolver{Getenv: os.Getenv, Cache: testCache(t)}}
	t.Setenv("HOME", w.home)
	return w
}

func (w *world) write(name, text string) string {
	w.Helper()
	path := filepath.Join(w.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
	return path
}

func (w *world) ask(dest string, f Flags) *Config {
	w.Helper()
	if f.ConfigFile == "" {
		f.ConfigFile = filepath.Join(w.home, "config")
	}
	c, err := w.r.Inspect(w.Context(), dest, f)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func cached(c *Config) bool { return c.Origin() == "from the cache" }

// keep asks until the answer is kept.
func (w *world) keep(dest string, f Flags) {
	w.Helper()
	w.ask(dest, f)
	if c := w.ask(dest, f); !cached(c) {
		w.Fatal("not kept: ", c.Origin())
	}
}

func TestAKeptAnswerIsNotUsedOnceAnythingChanged(t *testing.T) {
	needSSH(t)
	for what, change := range map[string]func(w *world){
		"the file": func(w *world) { w.write("config", "Include conf.d/*.conf\nInclude later\nUser second\n") },
		"the file, same length and times": func(w *world) {
			path := filepath.Join(w.home, "config")
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			w.write("config", "Include conf.d/*.conf\nInclude later\nUser secon\n")
			if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
				t.Fatal(err)
			}
		},
		"an included file":                      func(w *world) { w.write(".ssh/conf.d/one.conf", "User second\n") },
		"a new file that fits the wildcard":     func(w *world) { w.write(".ssh/conf.d/00.conf", "User second\n") },
		"a file that was named and not there":   func(w *world) { w.write(".ssh/later", "Port 99\n") },
		"an included file that is gone":         func(w *world) { os.Remove(filepath.Join(w.home, ".ssh/conf.d/one.conf")) },
		"an included file, replaced by rename":  func(w *world) { w.rename("new", ".ssh/conf.d/one.conf", "User second\n") },
		"the directory, replaced by a link":     func(w *world) { w.relink() },
		"a file that only Match final looks at": func(w *world) { w.write(".ssh/conf.d/two.conf", "Match final all\n  User second\n") },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.write("config", "Include conf.d/*.conf\nInclude later\nUser first\n")
			w.write(".ssh/conf.d/one.conf", "IdentityFile /k/one\n")
			w.keep("box", Flags{})
			change(w)
			c := w.ask("box", Flags{})
			if cached(c) {
				t.Fatal("the old answer was used")
			}
			fresh := Resolver{Getenv: os.Getenv}
			want, err := fresh.Inspect(t.Context(), "box", Flags{ConfigFile: filepath.Join(w.home, "config")})
			if err != nil || want.User != c.User || want.Port != c.Port || fmt.Sprint(want.IdentityFiles) != fmt.Sprint(c.IdentityFiles) {
				t.Errorf("%+v\nwant %+v, %v", c, want, err)
			}
		})
	}
}

func (w *world) rename(from, to, text string) {
	if err := os.Rename(w.write(from, text), filepath.Join(w.home, to)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) relink() {
	w.write("other/one.conf", "User second\n")
	dir := filepath.Join(w.home, ".ssh/conf.d")
	if err := errors.Join(os.RemoveAll(dir), os.Symlink(filepath.Join(w.home, "other"), dir)); err != nil {
		w.Fatal(err)
	}
}

// A mode that ssh refuses is refused, though the answer from before is there.
func TestAFileThatSSHRefusesByItsModeIsNotAnsweredFromTheCache(t *testing.T) {
	needSSH(t)
	w := newWorld(t)
	w.write("config", "Include more\n")
	more := w.write(".ssh/more", "User u\n")
	w.keep("box", Flags{})
	if err := os.Chmod(more, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := w.r.Inspect(t.Context(), "box", Flags{ConfigFile: filepath.Join(w.home, "config")})
	if err == nil || !strings.Contains(err.Error(), "Bad owner or permissions") {
		t.Fatal(err)
	}
}

func TestAnswersDifferByArgumentsAndEnvironment(t *testing.T) {
	needSSH(t)
	w := newWorld(t)
	w.write("config", "Match user a\n  Port 1\nInclude more\n")
	w.write(".ssh/more", "IdentityFile /k/first\n")
	for _, f := range []Flags{{}, {User: "a"}, {Port: 5}, {Options: []string{"User=a"}}, {Jump: "hop"}, {Jump: "none"}} {
		if c := w.ask("box", f); cached(c) {
			t.Errorf("%+v was answered with another's answer", f)
		}
	}
	if c := w.ask("other", Flags{}); cached(c) || c.HostName != "other" {
		t.Error(c.Origin())
	}
	w.keep("box", Flags{})
	elsewhere := t.TempDir()
	t.Setenv("HOME", elsewhere)
	if c := w.ask("box", Flags{}); cached(c) || c.IdentityFileSet {
		t.Error("another HOME's Include was used", c.IdentityFiles)
	}
}

func TestWhatIsNotCertainIsNotKept(t *testing.T) {
	needSSH(t)
	for what, c := range map[string]struct {
		config string
		words  string
	}{
		"a program":               {"Match exec true\n  User x\n", "runs a program"},
		"a variable":              {"IdentityFile ${HOME}/x\n", "environment"},
		"canonical names":         {"CanonicalizeHostname yes\n", "canonicalised"},
		"wildcards in directory":  {"Include */x\n", "wildcards in a directory"},
		"another's home":          {"Include ~root/none\n", "another account"},
		"an escape":               {"Include a\\ b\n", "not read with certainty"},
		"a secret":                {"SetEnv TOKEN=abc\n", "secret"},
		"a quoted Match exec":     {"\"Match\" \"exec\" true\n  User x\n", "runs a program"},
		"a quoted Include":        {"\"Include\" more\n", "not read with certainty"},
		"an Include after equals": {"=Include more\n", "not read with certainty"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.write("config", c.config)
			for range 2 {
				if got := w.ask("box", Flags{}); cached(got) || !strings.Contains(got.Origin(), c.words) {
					t.Errorf("%s, want %q", got.Origin(), c.words)
				}
			}
		})
	}
}

func TestNothingIsKeptWhileAFileIsYoung(t *testing.T) {
	needSSH(t)
	w := newWorld(t)
	w.write("config", "User u\n")
	w.r.Cache.now = time.Now
	for range 2 {
		if c := w.ask("box", Flags{}); cached(c) || !strings.Contains(c.Origin(), "a moment ago") {
			t.Error(c.Origin())
		}
	}
}

// ssh is played by a program that changes the file under the one who asks, as
// an editor might at that moment. A script is not trusted to be ssh, so the
// view is made by hand.
func TestAFileThatChangesMeanwhileIsNotKept(t *testing.T) {
	w := newWorld(t)
	w.write("config", "User u\n")
	f := Flags{ConfigFile: filepath.Join(w.home, "config")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before := w.r.look(self, f, f.Args())
	if before.key == "" {
		t.Fatal(before.why)
	}
	read := &filesRead{names: []string{f.ConfigFile}}
	if why := w.r.keep(before, w.r.look(self, f, f.Args()), read, nil, "user u\n"); why != "" {
		t.Fatal(why)
	}
	w.write("config", "User v\n")
	w.write("config", "User u\n") // and back: only the times tell
	if why := w.r.keep(before, w.r.look(self, f, f.Args()), read, nil, "user v\n"); !strings.Contains(why, "meanwhile") {
		t.Error(why)
	}
	now := w.r.look(self, f, f.Args())
	for what, files := range map[string]*filesRead{
		"a file more": {names: []string{f.ConfigFile, self}},
		"a file less": {},
		"a program":   {names: []string{f.ConfigFile}, ran: true},
		"gone":        {names: []string{f.ConfigFile, "/nonexistent"}},
	} {
		if why := w.r.keep(now, now, files, nil, "user v\n"); why == "" {
			t.Errorf("%s: kept", what)
		}
	}
	if why := w.r.keep(now, now, nil, errors.New("no"), "x"); why != "no" {
		t.Error(why)
	}
}

func TestAPipeIsNotOpened(t *testing.T) {
	needSSH(t)
	w := newWorld(t)
	pipe := filepath.Join(w.home, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	v := w.r.look(mustSSH(t), Flags{ConfigFile: pipe}, nil)
	if v.key != "" || !strings.Contains(v.why, "no regular file") {
		t.Error(v.why)
	}
}

func mustSSH(t testing.TB) string {
	needSSH(t)
	p, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAScriptByTheNameOfSSHIsAskedEveryTime(t *testing.T) {
	real := mustSSH(t)
	w := newWorld(t)
	w.write("config", "User u\n")
	bin := filepath.Dir(w.write("bin/ssh", "#!/bin/sh\nexec "+real+" \"$@\"\n"))
	if err := os.Chmod(filepath.Join(bin, "ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for range 2 {
		if c := w.ask("box", Flags{}); cached(c) || !strings.Contains(c.Origin(), "script") {
			t.Error(c.Origin())
		}
	}
}

func TestTornAndForeignFilesAreNoAnswers(t *testing.T) {
	c := testCache(t)
	if err := c.put("k", "user u\n"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.dir, "k")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := c.get("k"); !ok || got != "user u\n" {
		t.Fatal(got, ok)
	}
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, ok := c.get("k"); ok {
			t.Fatalf("%d bytes of it were taken for %q", n, got)
		}
	}
	flipped := append([]byte(nil), whole...)
	flipped[len(flipped)-2] ^= 1
	if err := os.WriteFile(path, flipped, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.get("k"); ok {
		t.Error("an altered answer was taken")
	}
	// One answer under another's name.
	if err := os.WriteFile(filepath.Join(c.dir, "other"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.get("other"); ok {
		t.Error("an answer was taken for another question's")
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.get("k"); ok {
		t.Error("a file that others can read was taken")
	}
}

func TestTheCacheIsPrivateAndBounded(t *testing.T) {
	c := testCache(t)
	left := filepath.Join(c.dir, ".new-left")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	for i := range maxKept + 50 {
		if err := c.put(fmt.Sprintf("k%04d", i), "user u\n"); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil || len(entries) > maxKept || len(entries) < maxKept/2 {
		t.Fatal(len(entries), err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Fatal(e.Name(), st.Mode(), err)
		}
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Error("what a crashed writer left is still there")
	}
	if _, ok := c.get(fmt.Sprintf("k%04d", maxKept+49)); !ok {
		t.Error("the newest answer is gone")
	}
}

func TestWritersAndReadersDoNotMeet(t *testing.T) {
	c := testCache(t)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				key := fmt.Sprint("k", i%5)
				if err := c.put(key, strings.Repeat(key, 1000+w)); err != nil {
					t.Error(err)
				}
				if got, ok := c.get(key); ok && strings.Trim(got, key) != "" {
					t.Errorf("%s holds %.20q", key, got)
				}
			}
		})
	}
	wg.Wait()
}

func TestWithoutAWritableCacheEverythingWorks(t *testing.T) {
	needSSH(t)
	w := newWorld(t)
	w.write("config", "User u\n")
	w.r.Cache = NewCache(filepath.Join(w.home, "is-not-there"))
	w.r.Cache.now = func() time.Time { return time.Now().Add(time.Minute) }
	for range 2 {
		if c := w.ask("box", Flags{}); c.User != "u" || !strings.Contains(c.Origin(), "cannot be written") {
			t.Error(c.User, c.Origin())
		}
	}
}

func TestAskingEndsWithItsContext(t *testing.T) {
	needSSH(t)
	w := newWorld(t)
	w.write("config", "Match exec \"sleep 61.25\"\n  User u\n")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := w.r.Inspect(ctx, "box", Flags{ConfigFile: filepath.Join(w.home, "config")})
	if err == nil || time.Since(start) > 15*time.Second {
		t.Error(err, time.Since(start))
	}
	// The program that ssh started is gone with it.
	if out, _ := exec.CommandContext(t.Context(), "pgrep", "-f", "sleep 61.25").Output(); len(out) > 0 {
		t.Errorf("left behind: %s", out)
	}
}

func TestIncludeNames(t *testing.T) {
	for line, want := range map[string]string{
		`Include a`:          "[a] true",
		"\tInclude\t a  b\t": "[a b] true",
		`include=a`:          "[a] true",
		`Include = a`:        "[a] true",
		`INCLUDE "a b" c`:    "[a b c] true",
		`Include a # b`:      "[a] true",
		`Include a#b`:        "[a#b] true",
		`Include "a`:         "[] false",
		`Include "a"b`:       "[] false",
		`Include a"b"`:       "[] false",
		`Include ""`:         "[] false",
		`Include a\ b`:       "[] false",
		`Include 'a'`:        "[] false",
		`Includes a`:         "[] false",
		`"Include" a`:        "[] false",
		`Include`:            "[] false",
		"Include a\r":        "[a] true",
	} {
		names, ok := includeNames(line)
		if !ok {
			names = nil
		}
		if got := fmt.Sprint(names, ok); got != want {
			t.Errorf("%q: %s, want %s", line, got, want)
		}
	}
}

func TestUnvis(t *testing.T) {
	for in, want := range map[string]string{`/a/b`: "/a/b", `/a\040b`: "/a b", `/\303\274`: "/ü", `/a\\b`: `/a\b`, `/a\`: `/a\`, `\777`: `\777`, `\12`: `\12`} {
		if got := unvis(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	needSSH(b)
	dir := b.TempDir()
	file := filepath.Join(dir, "config")
	var text strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, "Host host-%d\n  HostName 192.0.2.%d\n  User u%d\n  IdentityFile ~/.ssh/k%d\n", i, i, i, i)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		r    Resolver
	}{
		{"cold", Resolver{Getenv: os.Getenv}},
		{"cached", Resolver{Getenv: os.Getenv, Cache: testCache(b)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := Flags{ConfigFile: file}
			if _, err := c.r.Resolve(b.Context(), "host-50", f); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := c.r.Resolve(b.Context(), "host-50", f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
