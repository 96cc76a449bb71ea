// Package artifact is what fleet installs on machines: one archive for each
// GOOS and GOARCH, a manifest that names every file in it by hash, and a
// signature over the manifest.
//
// Why what runs is what was signed: the signature covers the manifest's exact
// bytes; the manifest's hash names the version directory; the manifest holds
// the hash of every file. The installer verifies the signature here, has the
// machine hash each file there, and only then renames the directory to its
// final name. A byte that differs anywhere gives another name or stops before
// the rename.
//
// The package knows nothing of SSH connections or planes.
package artifact

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// Manifest describes one artifact. Its encoded bytes are what is signed.
type Manifest struct {
	Schema  string  `json:"schema"` // fleet.artifact/v1
	Version string  `json:"version"`
	OS      string  `json:"os"`
	Arch    string  `json:"arch"`
	Archive Archive `json:"archive"`
	Files   []File  `json:"files"` // in order of path
}

// Archive is the tar.gz that carries the files.
type Archive struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"` // bytes
}

// File is one file of the version directory: a regular file with its hash, or
// a symbolic link to another file in the directory.
type File struct {
	Path   string `json:"path"` // a plain name
	Mode   uint32 `json:"mode,omitempty"`
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Link   string `json:"link,omitempty"`
}

// Names of the programs that every artifact has.
const (
	Agent   = "agentd"
	Shim    = "agentd-shim"
	Probes  = "agentd-probes" // a link to Plugins
	Plugins = "fleet-plugins" // first-party plugins, one file behind links
	Lock    = "plugins.lock"
	// ManifestFile and SignatureFile lie beside the files in the version
	// directory, so that a machine can be checked without the operator.
	ManifestFile  = "manifest.json"
	SignatureFile = "manifest.json.sig"
)

// Bounds of what is read.
const (
	maxManifest  = 256 << 10
	maxSignature = 16 << 10
	maxArchive   = 256 << 20
	maxFiles     = 256
)

// Platforms are the pairs that fleet runs on.
var Platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

// SupportedPlatform reports whether fleet runs there.
func SupportedPlatform(goos, goarch string) bool {
	for _, p := range Platforms {
		if p == goos+"/"+goarch {
			return true
		}
	}
	return false
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// ParseManifest decodes and checks a manifest. Names stay within one
// directory, hashes have their form, links point to files of the manifest.
func ParseManifest(b []byte) (*Manifest, error) {
	bad := func(format string, args ...any) (*Manifest, error) {
		return nil, fmt.Errorf("malformed manifest: "+format, args...)
	}
	if len(b) > maxManifest {
		return bad("%d bytes", len(b))
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var m Manifest
	if err := dec.Decode(&m); err != nil {
		return bad("%v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return bad("bytes after the document")
	}
	switch {
	case m.Schema != wire.SchemaArtifact:
		return bad("schema %q", m.Schema)
	case !SupportedPlatform(m.OS, m.Arch):
		return bad("platform %q", m.OS+"/"+m.Arch)
	case m.Version == "" || len(m.Version) > 128:
		return bad("version %q", m.Version)
	case !isHash(m.Archive.SHA256) || m.Archive.Size <= 0 || m.Archive.Size > maxArchive:
		return bad("archive")
	case len(m.Files) > maxFiles:
		return bad("%d files", len(m.Files))
	}
	seen := map[string]bool{}
	for i, f := range m.Files {
		switch {
		case !plainName.MatchString(f.Path) || f.Path == ManifestFile || f.Path == SignatureFile:
			return bad("file name %q", f.Path)
		case i > 0 && m.Files[i-1].Path >= f.Path:
			return bad("files out of order at %q", f.Path)
		case f.Link == "" && (!isHash(f.SHA256) || f.Size < 0 || f.Mode&^0o777 != 0 || f.Mode&0o022 != 0):
			return bad("file %q", f.Path)
		case f.Link != "" && (f.SHA256 != "" || f.Size != 0 || f.Mode != 0):
			return bad("link %q", f.Path)
		}
		seen[f.Path] = f.Link == ""
	}
	for _, f := range m.Files {
		if f.Link != "" && !seen[f.Link] {
			return bad("link %q leads to no file", f.Path)
		}
	}
	for _, name := range []string{Agent, Shim, Plugins} {
		if !seen[name] {
			return bad("%s is missing", name)
		}
	}
	if _, there := seen[Probes]; !there {
		return bad("%s is missing", Probes)
	}
	return &m, nil
}

func isHash(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && s == strings.ToLower(s)
}

// Encode gives the manifest's bytes.
func (m *Manifest) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// ID is the content hash that names the version directory.
func ID(manifest []byte) string {
	sum := sha256.Sum256(manifest)
	return hex.EncodeToString(sum[:])
}

// BaseName is the name of an artifact's files without their endings.
func BaseName(goos, goarch string) string { return "fleet-agent-" + goos + "-" + goarch }

// Sums are the lines that `sha256sum -c` reads for the version directory.
func (m *Manifest) Sums() string {
	var b strings.Builder
	for _, f := range m.Files {
		if f.Link == "" {
			fmt.Fprintf(&b, "%s  %s\n", f.SHA256, f.Path)
		}
	}
	return b.String()
}

// Unsupported is the refusal of a platform that fleet does not run on.
func Unsupported(platform string) error {
	return fault.New(fault.Refused, "unsupported_platform", "unsupported platform %s: fleet runs on linux and darwin, amd64 and arm64", platform)
}

// VersionDir is the directory of a version on the machine.
func VersionDir(dataDir, id string) string { return path.Join(dataDir, "versions", id) }
