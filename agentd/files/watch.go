package files

import (
	"os"
	"path"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// Place is where something is watched.
type Place struct {
	Dir  *os.File // a directory, open; the caller closes it
	Path string   // its absolute path
	Name string   // of the one entry in it that is meant, or "" for the directory
}

// Place opens the directory that the path is, or that it is in. A symbolic link to a
// directory is followed; one to something else is refused, since what it leads to
// changes elsewhere.
func (f *Files) Place(p string) (*Place, error) {
	at, err := f.resolve(p)
	if err != nil {
		return nil, err
	}
	st, err := f.Tree.Lstat(at)
	if err != nil {
		return nil, told(err, at)
	}
	if st.Mode()&os.ModeSymlink != 0 {
		if st, err = f.Tree.Stat(at); err != nil {
			return nil, told(err, at)
		}
		if !st.IsDir() {
			e := refuse(wire.CodeNotAFile, "%s is a symbolic link", at)
			e.Hint = "watch what it leads to"
			return nil, e
		}
	}
	place := &Place{Path: at}
	if !st.IsDir() {
		place.Path, place.Name = directory(at), path.Base(at)
	}
	if place.Dir, err = f.Tree.OpenFile(place.Path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0); err != nil {
		return nil, told(err, place.Path)
	}
	return place, nil
}

// Confined reports whether a tree holds the files in, so that a path alone may
// not be opened.
func (f *Files) Confined() bool {
	_, free := f.Tree.(Everything)
	return !free
}
