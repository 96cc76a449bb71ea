// Package logfile keeps agentd's own log in a file that is bounded: at the
// limit the file becomes the one older file. It serves the last lines and what
// follows. A full disk loses lines, never the program.
package logfile

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// Limit is the size in bytes at which the log starts again; twice that is kept.
const Limit = 1 << 20

// File is an io.Writer for whole lines. It is safe for concurrent use.
type File struct {
	path string

	mu   sync.Mutex
	f    *os.File
	size int64
	subs map[chan []byte]struct{}
}

// Open opens or makes the log.
func Open(path string) *File {
	l := &File{path: path, subs: map[chan []byte]struct{}{}}
	os.MkdirAll(filepath.Dir(path), 0o700)
	l.open()
	return l
}

func (l *File) open() {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	f.Chmod(0o600)
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return
	}
	l.f, l.size = f, st.Size()
}

// Write appends. It never fails: there is nobody who could be told.
func (l *File) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil && l.size+int64(len(p)) > Limit {
		l.f.Close()
		l.f = nil
		os.Rename(l.path, l.path+".1")
	}
	if l.f == nil {
		l.open()
	}
	if l.f != nil {
		n, _ := l.f.Write(p)
		l.size += int64(n)
	}
	for ch := range l.subs {
		select {
		case ch <- bytes.Clone(p):
		default: // a reader that is too slow misses lines
		}
	}
	return len(p), nil
}

// Tail returns the last n lines.
func (l *File) Tail(n int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail(n)
}

func (l *File) tail(n int) []byte {
	var all []byte
	for _, p := range []string{l.path + ".1", l.path} {
		if f, err := os.Open(p); err == nil {
			b, _ := io.ReadAll(io.LimitReader(f, 2*Limit))
			f.Close()
			all = append(all, b...)
		}
	}
	from := len(all)
	for i := 0; i < n && from > 0; i++ {
		from = bytes.LastIndexByte(all[:from-1], '\n') + 1
	}
	return all[from:]
}

// Follow writes the last n lines and then what is written, until the context
// ends or w fails. flush is called after each write.
func (l *File) Follow(ctx context.Context, n int, w io.Writer, flush func()) error {
	ch := make(chan []byte, 256)
	l.mu.Lock()
	first := l.tail(n)
	l.subs[ch] = struct{}{}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.subs, ch)
		l.mu.Unlock()
	}()
	for {
		if _, err := w.Write(first); err != nil {
			return err
		}
		flush()
		select {
		case <-ctx.Done():
			return nil
		case first = <-ch:
		}
	}
}
