package files

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Confined is a Tree of some directories and nothing else. A name is that of
// something in one of them, by its absolute path; no `..`, link or race leads
// out of the one that it begins with.
type Confined struct{ roots []confinedRoot }

type confinedRoot struct {
	dir  string
	root *os.Root
}

// Confine opens the directories, the first of which must be there; of the
// others those that are. A directory that is a symbolic link is none. The caller
// closes what is returned.
func Confine(dirs ...string) (*Confined, error) {
	c := &Confined{}
	for i, dir := range dirs {
		root, err := openRoot(dir)
		if err == nil {
			c.roots = append(c.roots, confinedRoot{dir, root})
			continue
		}
		if i == 0 || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			c.Close()
			return nil, told(err, dir)
		}
	}
	return c, nil
}

// openRoot opens a directory that is what stands at its name.
func openRoot(dir string) (*os.Root, error) {
	named, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	notDir := &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	if !named.IsDir() {
		return nil, notDir
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if opened, err := root.Stat("."); err != nil || !os.SameFile(named, opened) {
		root.Close()
		return nil, notDir
	}
	return root, nil
}

// Close closes the directories.
func (c *Confined) Close() {
	for _, r := range c.roots {
		r.root.Close()
	}
}

func (c *Confined) find(op, name string) (*os.Root, string, error) {
	for _, r := range c.roots {
		if name == r.dir {
			return r.root, ".", nil
		}
		if rest, ok := strings.CutPrefix(name, r.dir+"/"); ok {
			if rest = strings.TrimLeft(rest, "/"); rest == "" {
				rest = "."
			}
			return r.root, rest, nil
		}
	}
	return nil, "", &fs.PathError{Op: op, Path: name, Err: fs.ErrPermission}
}

func (c *Confined) Lstat(name string) (fs.FileInfo, error) {
	r, rel, err := c.find("lstat", name)
	if err != nil {
		return nil, err
	}
	return r.Lstat(rel)
}

func (c *Confined) Stat(name string) (fs.FileInfo, error) {
	r, rel, err := c.find("stat", name)
	if err != nil {
		return nil, err
	}
	return r.Stat(rel)
}

func (c *Confined) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	r, rel, err := c.find("open", name)
	if err != nil {
		return nil, err
	}
	return r.OpenFile(rel, flag, perm)
}

func (c *Confined) Readlink(name string) (string, error) {
	r, rel, err := c.find("readlink", name)
	if err != nil {
		return "", err
	}
	return r.Readlink(rel)
}

func (c *Confined) Remove(name string) error {
	r, rel, err := c.find("remove", name)
	if err != nil {
		return err
	}
	return r.Remove(rel)
}

func (c *Confined) RemoveAll(name string) error {
	r, rel, err := c.find("remove", name)
	if err != nil {
		return err
	}
	return r.RemoveAll(rel)
}

func (c *Confined) Link(from, to string) error {
	return c.both("link", from, to, (*os.Root).Link)
}

func (c *Confined) Rename(from, to string) error {
	return c.both("rename", from, to, (*os.Root).Rename)
}

func (c *Confined) both(op, from, to string, do func(r *os.Root, from, to string) error) error {
	a, relFrom, err := c.find(op, from)
	if err != nil {
		return err
	}
	b, relTo, err := c.find(op, to)
	if err != nil {
		return err
	}
	if a != b {
		return &os.LinkError{Op: op, Old: from, New: to, Err: syscall.EXDEV}
	}
	return do(a, relFrom, relTo)
}

// Within is the same files with only a tree of them in reach; relative paths
// begin at home. Writers of both know of each other.
func (f *Files) Within(tree Tree, home string) *Files {
	return &Files{Tree: tree, Home: home, Umask: f.Umask, whole: f}
}
