package tree

import (
	"os"

	"golang.org/x/sys/unix"
)

// A copy's place here is a descriptor and a few words, so that another process
// of the same account can be given it: everything below is reached from the
// descriptor. Handed is the words; names are bytes.
type Handed struct {
	Path    []byte `json:"path,omitempty"` // for words
	Link    []byte `json:"link,omitempty"` // of a source that is a symbolic link, which has no descriptor
	MTime   int64  `json:"mtime,omitempty"`
	Name    []byte `json:"name,omitempty"` // of a destination, in its directory
	DirOnly bool   `json:"dir_only,omitempty"`
	As      string `json:"as,omitempty"`
}

// Hand returns what another process needs to be given. The file stays the
// source's own, and is nil for a symbolic link.
func (s *Source) Hand() (Handed, *os.File) {
	h := Handed{Path: []byte(s.path)}
	if s.file == nil {
		h.Link, h.MTime = []byte(s.link), mtimeOf(s.st)
	}
	return h, s.file
}

// TakeSource is the source that Hand was called of. It owns the file.
func TakeSource(h Handed, file *os.File) (*Source, error) {
	s := &Source{path: string(h.Path), file: file, link: string(h.Link)}
	if file == nil {
		s.st = &unix.Stat_t{Mode: unix.S_IFLNK, Mtim: unix.NsecToTimespec(h.MTime)}
		return s, nil
	}
	var err error
	if s.st, err = statFile(file); err == nil && kindOf(s.st) != unix.S_IFDIR && kindOf(s.st) != unix.S_IFREG {
		err = errNotRegular
	}
	if err != nil {
		file.Close()
		return nil, told(err, s.path)
	}
	return s, nil
}

// Hand returns what another process needs to be given. The directory stays the
// destination's own.
func (d *Destination) Hand() (Handed, *os.File) {
	return Handed{Path: []byte(d.path), Name: []byte(d.name), DirOnly: d.dirOnly, As: d.as}, d.dir
}

// TakeDestination is the destination that Hand was called of. It owns the
// directory.
func TakeDestination(h Handed, dir *os.File) (*Destination, error) {
	d := &Destination{path: string(h.Path), dir: dir, name: string(h.Name), dirOnly: h.DirOnly, as: h.As}
	st, err := statFile(dir)
	switch {
	case err != nil:
	case kindOf(st) != unix.S_IFDIR:
		err = unix.ENOTDIR
	case d.name != "":
		err = checkName(1, d.name)
	}
	if err != nil {
		dir.Close()
		return nil, told(err, d.path)
	}
	return d, nil
}
