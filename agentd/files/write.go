package files

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/wire"
)

// Content is what is to be in a file.
type Content struct {
	Path string
	// Mode is octal; "" keeps what is there, or is what the account's umask gives.
	Mode       string
	OnConflict string // one of the wire.Conflict constants; "" is to replace
	// Match is the ETag of the file that is to be replaced, * for whichever is
	// there, "" for any or none.
	Match string
	Body  io.Reader
	// Sum is asked once Body has ended: the SHA-256 that the sender has of it, in
	// hexadecimal; "" if it sent none.
	Sum func() string
}

// tempName is how temporary files begin.
const tempName = ".fleet-tmp-"

// Write puts content in a file: all of it, or nothing is changed. A symbolic
// link stays, and what it leads to is written.
func (f *Files) Write(c Content) (*wire.FileInfo, error) {
	at, err := f.resolve(c.Path)
	if err != nil {
		return nil, err
	}
	perm, err := parseMode(c.Mode)
	if err != nil {
		return nil, err
	}
	switch c.OnConflict {
	case "", wire.ConflictReplace, wire.ConflictMergeJSON, wire.ConflictFail:
	default:
		return nil, refuse(wire.CodeBadRequest, "on_conflict is replace, merge-json or fail")
	}
	at, st, err := f.target(at)
	if err == nil {
		err = c.check(at, st)
	}
	if err != nil {
		return nil, told(err, at)
	}
	w := &writing{files: f, at: at, content: c, perm: perm, sum: sha256.New()}
	if c.OnConflict == wire.ConflictMergeJSON {
		err = w.merge(st)
	} else {
		err = w.replace(st, c.Body)
	}
	if err != nil {
		return nil, told(err, at)
	}
	return f.Stat(at, false)
}

// target follows the symbolic links at the path's end. The FileInfo is nil
// where nothing is.
func (f *Files) target(at string) (string, fs.FileInfo, error) {
	for range 40 { // as many as linux follows
		if strings.HasSuffix(at, "/") {
			return at, nil, refuse(wire.CodeNotAFile, "%s names a directory", at)
		}
		st, err := f.Tree.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			return at, nil, nil
		}
		if err != nil || st.Mode()&fs.ModeSymlink == 0 {
			return at, st, err
		}
		to, err := f.Tree.Readlink(at)
		if err != nil {
			return at, nil, err
		}
		if !strings.HasPrefix(to, "/") {
			to = directory(at) + "/" + to
		}
		at = to
	}
	return at, nil, unix.ELOOP
}

func directory(at string) string {
	i := strings.LastIndexByte(at, '/')
	switch {
	case i < 0:
		return "."
	case i == 0:
		return "/"
	}
	return at[:i]
}

// check holds what is there against what the content requires.
func (c *Content) check(at string, st fs.FileInfo) error {
	switch {
	case st == nil && c.Match != "":
		return stale(at)
	case st == nil:
		return nil
	case c.OnConflict == wire.ConflictFail:
		return refuse(wire.CodeExists, "%s is there already", at)
	case c.Match != "" && c.Match != "*" && c.Match != etag(st):
		return stale(at)
	}
	return regular(st, at)
}

func parseMode(s string) (*fs.FileMode, error) {
	if s == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(s, 8, 16)
	if err != nil || n > 0o7777 {
		return nil, refuse(wire.CodeBadRequest, "a mode is octal, as 0644")
	}
	m := durable.Mode(uint32(n))
	return &m, nil
}

// writing is one write.
type writing struct {
	files   *Files
	at      string
	content Content
	perm    *fs.FileMode // nil: as it was, or the account's default
	sum     hash.Hash    // of what was received
}

// replace makes body the content of what st was.
func (w *writing) replace(st fs.FileInfo, body io.Reader) (err error) {
	tmp, file, err := w.temporary()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			file.Close()
			w.files.Tree.Remove(tmp)
		}
	}()
	if err := w.receive(file, body); err != nil {
		return err
	}
	if err := w.dress(file, st); err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	return w.put(tmp, st)
}

// temporary makes a file beside the target that nobody else reads.
func (w *writing) temporary() (string, *os.File, error) {
	b := make([]byte, 8)
	rand.Read(b)
	tmp := directory(w.at) + "/" + tempName + hex.EncodeToString(b)
	file, err := w.files.Tree.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return tmp, file, err
}

func (w *writing) receive(to io.Writer, body io.Reader) error {
	if _, err := io.Copy(io.MultiWriter(to, w.sum), body); err != nil {
		return err
	}
	return w.compare()
}

// compare holds what was received against what the sender says it sent.
func (w *writing) compare() error {
	if w.content.Sum == nil {
		return nil
	}
	if want := w.content.Sum(); want != "" && !strings.EqualFold(want, hex.EncodeToString(w.sum.Sum(nil))) {
		return refuse(wire.CodeDamaged, "what arrived is not what was sent; %s is as it was", w.at)
	}
	return nil
}

// dress gives the new file the old one's owner, mode and attributes.
func (w *writing) dress(file *os.File, st fs.FileInfo) error {
	perm := 0o666 &^ w.files.Umask
	if st != nil {
		perm = durable.Mode(durable.Permissions(st.Mode()))
		if err := w.own(file, st); err != nil {
			return err
		}
		if old, err := w.files.Tree.OpenFile(w.at, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0); err == nil {
			durable.CopyAttributes(old, file)
			old.Close()
		}
	}
	if w.perm != nil {
		perm = *w.perm
	}
	return file.Chmod(perm) // the last: to change an owner takes setuid away
}

// own gives the new file the old one's owner and group. An account that may not
// would make the file its own, which is not what a write is for.
func (w *writing) own(file *os.File, st fs.FileInfo) error {
	old, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	now, err := file.Stat()
	if err != nil {
		return err
	}
	own, ok := now.Sys().(*syscall.Stat_t)
	if !ok || own.Uid == old.Uid && own.Gid == old.Gid {
		return nil
	}
	uid, gid := -1, int(old.Gid)
	if own.Uid != old.Uid {
		uid = int(old.Uid)
	}
	if err := file.Chown(uid, gid); err != nil {
		return &Error{Code: wire.CodeForbidden, Msg: fmt.Sprintf("%s belongs to uid %d and gid %d, and a new one cannot be given to them", w.at, old.Uid, old.Gid),
			Hint: "remove it first, or write it as its owner"}
	}
	return nil
}

// put gives the temporary file its name, if what is there is still what the
// content requires.
func (w *writing) put(tmp string, was fs.FileInfo) error {
	unlock := w.files.lock(w.at)
	defer unlock()
	tree := w.files.Tree
	st, err := tree.Lstat(w.at)
	if errors.Is(err, fs.ErrNotExist) {
		st, err = nil, nil
	}
	if err == nil {
		err = w.content.check(w.at, st)
	}
	if err != nil {
		return err
	}
	if w.content.OnConflict == wire.ConflictMergeJSON && !same(st, was) {
		return errOvertaken
	}
	if w.content.OnConflict == wire.ConflictFail {
		if err := tree.Link(tmp, w.at); err != nil { // unlike a rename it replaces nothing
			return err
		}
		err = tree.Remove(tmp)
	} else {
		err = tree.Rename(tmp, w.at)
	}
	if err != nil {
		return err
	}
	dir, err := tree.OpenFile(directory(w.at), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil // a directory that may be written to and not read: what is flushed is the file alone
	}
	defer dir.Close()
	err = dir.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil // this file system keeps directories in its own way
	}
	if err != nil {
		return fmt.Errorf("%s is written, and may come back as it was after a power cut: %w", w.at, err)
	}
	return nil
}

// same reports whether two looks found the same file, unchanged, or none.
func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return etag(a) == etag(b)
}
