package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxPlugin bounds a plugin's file in bytes.
const maxPlugin = 512 << 20

// image is a private copy of a plugin's bytes, ready to be executed.
type image struct {
	path   string // what to execute
	sha256 string
	file   *os.File // keeps an anonymous copy alive; nil for one on disk
}

func (i *image) close() {
	if i.file != nil {
		i.file.Close()
	}
}

// newImage copies the file while it hashes it. Where the system has anonymous
// files the copy is one that nobody can open for writing; elsewhere it is a
// file in dir, which is private.
func newImage(path, dir string) (*image, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxPlugin {
		return nil, fmt.Errorf("not a regular file of at most %d bytes", maxPlugin)
	}
	if img, err := anonymousImage(src, filepath.Base(path)); err == nil {
		return img, nil
	}
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return diskImage(src, filepath.Join(dir, "image"))
}

func diskImage(src io.Reader, path string) (*image, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o500)
	if err != nil {
		return nil, err
	}
	sum, err := copyHashed(f, src)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, err
	}
	return &image{path: path, sha256: sum}, nil
}

func copyHashed(dst io.Writer, src io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(dst, h)}, io.LimitReader(src, maxPlugin+1), make([]byte, 256<<10)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
