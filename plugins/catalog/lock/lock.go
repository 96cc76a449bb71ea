// Package lock reads and writes plugins.lock: which plugins may run, by the
// SHA-256 of their bytes, and what each said of itself when it was locked.
//
// There are two. The build writes one beside the executables for the plugins
// that belong to fleet; a person's own, in their state directory, takes the
// vendors' plugins that they installed. Since the bytes are pinned, so is what
// they describe, and a plugin need not run for anybody to know its protocols.
//
// The package must not know where locks lie or how plugins are started.
package lock

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/plugins/sdk"
)

// FileName is the name of every lock file.
const FileName = "plugins.lock"

// Schema names the document.
const Schema = "fleet.plugins-lock/v1"

// maxSize bounds a lock file in bytes.
const maxSize = 4 << 20

// Lock is the content of a lock file.
type Lock struct {
	Schema  string  `json:"schema"`
	Plugins []Entry `json:"plugins"`
}

// Entry is one plugin.
type Entry struct {
	File        string          `json:"file"` // base name, as fleet-probe-host
	SHA256      string          `json:"sha256"`
	Description sdk.Description `json:"description"`
}

// ErrMalformed is in the chain of every error about a lock file's content.
var ErrMalformed = errors.New("malformed lock file")

// Parse parses and checks a lock file, which is obeyed whole or not at all.
// Fields that it does not know are skipped: one that would restrict what may
// run comes with another schema.
func Parse(b []byte) (Lock, error) {
	var l Lock
	if err := json.Unmarshal(b, &l); err != nil {
		return Lock{}, fmt.Errorf("%w: %s", ErrMalformed, err)
	}
	if l.Schema != Schema {
		return Lock{}, fmt.Errorf("%w: schema is %q, not %q", ErrMalformed, l.Schema, Schema)
	}
	seen := map[string]bool{}
	for _, e := range l.Plugins {
		if err := e.check(); err != nil {
			return Lock{}, fmt.Errorf("%w: %s", ErrMalformed, err)
		}
		if seen[e.File] {
			return Lock{}, fmt.Errorf("%w: %s stands in it twice", ErrMalformed, e.File)
		}
		seen[e.File] = true
	}
	return l, nil
}

func (e Entry) check() error {
	if _, _, ok := sdk.ParseFileName(e.File); !ok {
		return fmt.Errorf("%q is no plugin's name", e.File)
	}
	if b, err := hex.DecodeString(e.SHA256); err != nil || len(b) != sha256.Size || e.SHA256 != strings.ToLower(e.SHA256) {
		return fmt.Errorf("%s: %q is no SHA-256", e.File, e.SHA256)
	}
	if err := e.Description.Check(); err != nil {
		return fmt.Errorf("%s: %s", e.File, err)
	}
	if e.Description.FileName() != e.File {
		return fmt.Errorf("%s describes itself as %s", e.File, e.Description.FileName())
	}
	return nil
}

// Read reads a lock file. A missing one is an empty lock.
func Read(path string) (Lock, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Lock{Schema: Schema}, nil
	}
	if err != nil {
		return Lock{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return Lock{}, err
	}
	if len(b) > maxSize {
		return Lock{}, fmt.Errorf("%s: %w: longer than %d bytes", path, ErrMalformed, maxSize)
	}
	l, err := Parse(b)
	if err != nil {
		return Lock{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// Write replaces a lock file, sorted by name.
func Write(path string, l Lock) error {
	b, err := l.Encode()
	if err != nil {
		return err
	}
	return durable.WriteFile(path, b, 0o644)
}

// Encode gives the file's bytes: the same lock gives the same bytes.
func (l Lock) Encode() ([]byte, error) {
	l.Schema = Schema
	l.Plugins = slices.Clone(l.Plugins)
	slices.SortFunc(l.Plugins, func(a, b Entry) int { return strings.Compare(a.File, b.File) })
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// Get finds a plugin by file name.
func (l Lock) Get(file string) (Entry, bool) {
	for _, e := range l.Plugins {
		if e.File == file {
			return e, true
		}
	}
	return Entry{}, false
}

// With returns the lock with an entry added or replaced.
func (l Lock) With(e Entry) Lock {
	return Lock{Schema: Schema, Plugins: append(l.Without(e.File).Plugins, e)}
}

// Without returns the lock without an entry.
func (l Lock) Without(file string) Lock {
	kept := []Entry{}
	for _, e := range l.Plugins {
		if e.File != file {
			kept = append(kept, e)
		}
	}
	return Lock{Schema: Schema, Plugins: kept}
}
