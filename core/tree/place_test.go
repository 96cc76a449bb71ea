package tree

import (
	"os"
	"strings"
	"testing"

	"fleet.example/fleet/core/wire"
)

// A destination is what cp(1) takes it for.
func TestWhereACopyGoes(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{os.MkdirAll(dir+"/d/sub", 0o700), os.WriteFile(dir+"/f", nil, 0o600), os.Symlink("d", dir+"/to-d"),
		os.Symlink("f", dir+"/to-f"), os.Symlink("none", dir+"/dangling"), os.Symlink("loop", dir+"/loop")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct{ at, base, as, path, name, code string }{
		{at: "d", base: "x", path: "d/x", name: "x"},
		{at: "d/", base: "x", path: "d/x", name: "x"},
		{at: "to-d", base: "x", path: "to-d/x", name: "x"},
		{at: "d", base: ".", path: "d", name: ""},
		{at: "d", base: "..", path: "d", name: ""},
		{at: "d", base: "", path: "d", name: ""},
		{at: "d", base: "a/b", code: wire.CodeBadRequest},
		{at: "d/sub", as: wire.TreeNamed, base: "x", path: "d/sub", name: "sub"},
		{at: "d/sub", as: wire.TreeInside, base: "x", path: "d/sub/x", name: "x"},
		{at: "f", as: wire.TreeInside, base: "x", code: wire.CodeNotADir},
		{at: "f", base: "x", path: "f", name: "f"},
		{at: "to-f", base: "x", path: "f", name: "f"},
		{at: "dangling", base: "x", path: "none", name: "none"},
		{at: "loop", base: "x", code: wire.CodeBadRequest},
		{at: "new", base: "x", path: "new", name: "new"},
		{at: "new/", base: "x", path: "new/", name: "new"},
		{at: "none/new", base: "x", code: wire.CodeNotFound},
		{at: "f/new", base: "x", code: wire.CodeNotADir},
		{at: "none/..", base: "x", code: wire.CodeNotFound},
	} {
		d, err := OpenDestination(Local{}, dir+"/"+x.at, x.base, x.as)
		if err != nil {
			if got := told(err, "").Code; got != x.code || x.code == "" {
				t.Errorf("%+v: %s: %v", x, got, err)
			}
			continue
		}
		if got := strings.TrimPrefix(d.Path(), dir+"/"); got != x.path || d.name != x.name || x.code != "" {
			t.Errorf("%+v: %q, %q", x, got, d.name)
		}
		d.Close()
	}
}

// A file is not made under a name that says that it is a directory.
func TestASlashNamesADirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/from", "x", 0o600)
	o := attempt{from: dir + "/from", to: dir + "/new/", plain: true}.run(t)
	if list, _ := os.ReadDir(dir); len(list) != 1 || o.received == nil {
		t.Errorf("%+v, %v", o, list)
	}
}

// What a root confines stays within, both ways: no path and no link that is
// named leads out of it (R33).
func TestARootConfinesACopy(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/root/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/secret", "mine", 0o600)
	for name, to := range map[string]string{"out": "..", "file": "../secret", "absolute": dir, "deep": "sub/../../secret"} {
		if err := os.Symlink(to, dir+"/root/"+name); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir + "/root")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, at := range []string{"..", "../secret", "out/secret", "file", "absolute/secret", "deep", "sub/../../secret", dir + "/secret"} {
		if s, err := OpenSource(root, at, false); err == nil {
			s.Close()
			t.Errorf("%s can be read", at)
		}
	}
	for _, at := range []string{"..", "../new", "out", "out/new", "file", "absolute/new", "deep", dir + "/new", "sub/../../new"} {
		if d, err := OpenDestination(root, at, "new", ""); err == nil {
			d.Close()
			t.Errorf("%s can be written: %q", at, d.Path())
		}
	}
	d, err := OpenDestination(root, "sub", "new", "")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
}
