package artifact

import (
	"bytes"
	"crypto/sha256"
	"debug/macho"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fleet.example/fleet/core/fault"
)

// Artifact is an artifact in a directory of the operator's, whose signature
// has been verified.
type Artifact struct {
	Manifest  *Manifest
	Bytes     []byte // the manifest's exact bytes
	Signature []byte
	ID        string
	SignedBy  string // fingerprint
	Path      string // the archive
}

// Find looks for the platform's artifact in the directories, in order, and
// opens the first. What was tried stands in the error.
func Find(dirs []string, goos, goarch string, signers Signers) (*Artifact, error) {
	if !SupportedPlatform(goos, goarch) {
		return nil, Unsupported(goos + "/" + goarch)
	}
	for _, dir := range dirs {
		a, err := Open(filepath.Join(dir, BaseName(goos, goarch)+".json"), signers)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return a, err
	}
	return nil, fault.New(fault.Failure, "no_artifact", "no artifact for %s/%s in %s", goos, goarch, strings.Join(dirs, ", ")).
		WithHint("make artifacts builds them; FLEET_ARTIFACT_DIR names another directory")
}

// Open reads a manifest and verifies its signature and that the archive beside
// it is the one it names.
func Open(manifest string, signers Signers) (*Artifact, error) {
	b, err := ReadFile(manifest, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("cannot open artifact: %w", err)
	}
	refuse := func(format string, args ...any) error {
		return fault.New(fault.Refused, "artifact_refused", "artifact refused: %s: "+format, append([]any{manifest}, args...)...)
	}
	sig, err := ReadFile(manifest+".sig", maxSignature)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("it is not signed")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open artifact: %w", err)
	}
	by, err := signers.Verify(b, sig)
	if err != nil {
		return nil, refuse("%w", err)
	}
	m, err := ParseManifest(b)
	if err != nil {
		return nil, refuse("%w", err)
	}
	a := &Artifact{Manifest: m, Bytes: b, Signature: sig, ID: ID(b), SignedBy: by,
		Path: strings.TrimSuffix(manifest, ".json") + ".tar.gz"}
	f, err := os.Open(a.Path)
	if err != nil {
		// Not wrapped: a manifest without its archive is a broken artifact, not
		// a missing one.
		return nil, fmt.Errorf("cannot open artifact: %v", err)
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, maxArchive+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read artifact: %w", err)
	}
	if n != m.Archive.Size || hex.EncodeToString(h.Sum(nil)) != m.Archive.SHA256 {
		return nil, refuse("the archive beside it is not the one that was signed")
	}
	return a, nil
}

// ReadFile reads a file of at most limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", path, limit)
	}
	return b, err
}

// machoCodeSignature is LC_CODE_SIGNATURE of Mach-O's load commands.
const machoCodeSignature = 0x1d

// checkMachO refuses a program for Apple silicon that carries no code
// signature: the kernel there kills it at once.
func checkMachO(name string, b []byte) error {
	f, err := macho.NewFile(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("%s is no Mach-O program: %w", name, err)
	}
	for _, l := range f.Loads {
		if raw := l.Raw(); len(raw) >= 4 && f.ByteOrder.Uint32(raw) == machoCodeSignature {
			return nil
		}
	}
	return fault.New(fault.Refused, "unsigned_binary", "%s has no code signature, and darwin/arm64 refuses to run it", name)
}
