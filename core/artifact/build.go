package artifact

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/wire"
)

// Build packs programs into an artifact. The same input gives the same bytes.
type Build struct {
	OS, Arch string
	Version  string
	// Files are the contents of the version directory; Links are symbolic links
	// among them.
	Files map[string][]byte
	Links map[string]string
	Out   string // directory for the artifact's three files
}

// epoch is the time of every file in an archive: a time that tars everywhere
// accept, and no file's own.
var epoch = time.Unix(0, 0)

// Write packs, signs and writes the artifact, and returns its content hash.
func (b Build) Write(signer ssh.Signer) (id string, err error) {
	m := &Manifest{Schema: wire.SchemaArtifact, Version: b.Version, OS: b.OS, Arch: b.Arch}
	for name, content := range b.Files {
		mode := uint32(0o755)
		if name == Lock {
			mode = 0o644
		} else if b.OS == "darwin" && b.Arch == "arm64" {
			if err := checkMachO(name, content); err != nil {
				return "", err
			}
		}
		sum := sha256.Sum256(content)
		m.Files = append(m.Files, File{Path: name, Mode: mode, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])})
	}
	for name, to := range b.Links {
		m.Files = append(m.Files, File{Path: name, Link: to})
	}
	sort.Slice(m.Files, func(i, j int) bool { return m.Files[i].Path < m.Files[j].Path })

	archive, err := b.pack(m)
	if err != nil {
		return "", fmt.Errorf("cannot pack artifact: %w", err)
	}
	sum := sha256.Sum256(archive)
	m.Archive = Archive{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(archive))}
	manifest, err := m.Encode()
	if err != nil {
		return "", err
	}
	if _, err := ParseManifest(manifest); err != nil {
		return "", fmt.Errorf("cannot build artifact: %w", err)
	}
	sig, err := Sign(manifest, signer, wire.NamespaceArtifact)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.Out, 0o755); err != nil {
		return "", fmt.Errorf("cannot write artifact: %w", err)
	}
	base := filepath.Join(b.Out, BaseName(b.OS, b.Arch))
	// The manifest comes last: until it is there, the old one still names the
	// old archive, or nothing is found at all.
	for _, f := range []struct {
		path string
		b    []byte
	}{{base + ".tar.gz", archive}, {base + ".json.sig", sig}, {base + ".json", manifest}} {
		if err := durable.WriteFile(f.path, f.b, 0o644); err != nil {
			return "", fmt.Errorf("cannot write artifact: %w", err)
		}
	}
	return ID(manifest), nil
}

func (b Build) pack(m *Manifest) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)
	for _, f := range m.Files {
		h := &tar.Header{Name: f.Path, ModTime: epoch, Format: tar.FormatUSTAR, Uname: "root", Gname: "root"}
		if f.Link != "" {
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		} else {
			h.Typeflag, h.Size, h.Mode = tar.TypeReg, f.Size, int64(f.Mode)
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(b.Files[f.Path]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
