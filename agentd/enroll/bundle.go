package enroll

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/secret"
)

// Bundle is an artifact that lies unpacked in a directory, as this program's
// own does, with its manifest and signature beside it.
type Bundle struct {
	Dir       string
	ID        string
	SignedBy  string
	manifest  *artifact.Manifest
	bytes     []byte
	signature []byte
}

const (
	maxManifest = 256 << 10
	maxSig      = 16 << 10
)

// OpenBundle verifies the signature over the manifest in dir (R3). The files
// are compared with it when they are placed.
func OpenBundle(dir string, signers artifact.Signers) (*Bundle, error) {
	refuse := func(format string, args ...any) error {
		return fault.New(fault.Refused, "artifact_refused", "the bundle in %s is refused: "+format, append([]any{dir}, args...)...)
	}
	b := &Bundle{Dir: dir}
	var err error
	if b.bytes, err = artifact.ReadFile(filepath.Join(dir, artifact.ManifestFile), maxManifest); errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("it has no %s", artifact.ManifestFile).(*fault.Error).
			WithHint("unpack fleet-agent-%s-%s.tar.gz and put its .json and .json.sig there as %s and %s", runtime.GOOS, runtime.GOARCH, artifact.ManifestFile, artifact.SignatureFile)
	} else if err != nil {
		return nil, fmt.Errorf("cannot read the bundle: %w", err)
	}
	if b.signature, err = artifact.ReadFile(filepath.Join(dir, artifact.SignatureFile), maxSig); errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("it is not signed: there is no %s", artifact.SignatureFile)
	} else if err != nil {
		return nil, fmt.Errorf("cannot read the bundle: %w", err)
	}
	if b.SignedBy, err = signers.Verify(b.bytes, b.signature); err != nil {
		return nil, refuse("%w", err)
	}
	if b.manifest, err = artifact.ParseManifest(b.bytes); err != nil {
		return nil, refuse("%w", err)
	}
	if b.manifest.OS != runtime.GOOS || b.manifest.Arch != runtime.GOARCH {
		return nil, refuse("it is for %s/%s, this machine is %s/%s", b.manifest.OS, b.manifest.Arch, runtime.GOOS, runtime.GOARCH)
	}
	b.ID = artifact.ID(b.bytes)
	return b, nil
}

// Place copies the bundle into the data directory's version directory and has
// current name it. What is copied is hashed as it is written, so what stands
// under the name is what was signed.
func (b *Bundle) Place(data string, signers artifact.Signers) error {
	versions := filepath.Join(data, place.VersionsDir)
	if err := os.MkdirAll(versions, 0o700); err != nil {
		return fmt.Errorf("cannot make the versions directory: %w", err)
	}
	final := filepath.Join(versions, b.ID)
	if b.intact(final) != nil {
		if err := b.copy(versions, final); err != nil {
			return err
		}
	}
	if err := durable.WriteFile(filepath.Join(data, "artifact-signers"), signers.Format(), 0o600); err != nil {
		return err
	}
	return b.setCurrent(data)
}

// intact compares a directory with the manifest.
func (b *Bundle) intact(dir string) error {
	for _, f := range b.manifest.Files {
		path := filepath.Join(dir, f.Path)
		if f.Link != "" {
			if to, err := os.Readlink(path); err != nil || to != f.Link {
				return fmt.Errorf("%s is not the link that was signed", f.Path)
			}
			continue
		}
		st, err := os.Lstat(path)
		if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o022 != 0 {
			return fmt.Errorf("%s is not the file that was signed", f.Path)
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		err = hashed(io.Discard, in, f)
		in.Close()
		if err != nil {
			return err
		}
	}
	have, err := artifact.ReadFile(filepath.Join(dir, artifact.ManifestFile), maxManifest)
	if err == nil && artifact.ID(have) != b.ID {
		err = errors.New("its manifest is another")
	}
	return err
}

// hashed copies a file and compares what went by with the manifest.
func hashed(w io.Writer, r io.Reader, f artifact.File) error {
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(r, f.Size+1))
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", f.Path, err)
	}
	if n != f.Size || hex.EncodeToString(h.Sum(nil)) != f.SHA256 {
		return fault.New(fault.Refused, "artifact_altered", "%s is not the file that was signed", f.Path)
	}
	return nil
}

func (b *Bundle) copy(versions, final string) (err error) {
	var nonce [6]byte
	rand.Read(nonce[:])
	tmp := filepath.Join(versions, ".unpack-"+hex.EncodeToString(nonce[:]))
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fmt.Errorf("cannot make a version directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	for _, f := range b.manifest.Files {
		if f.Link != "" {
			err = os.Symlink(f.Link, filepath.Join(tmp, f.Path))
		} else {
			err = b.copyFile(tmp, f)
		}
		if err != nil {
			return err
		}
	}
	for name, content := range map[string][]byte{artifact.SignatureFile: b.signature, artifact.ManifestFile: b.bytes} {
		if err := durable.WriteFile(filepath.Join(tmp, name), content, 0o644); err != nil {
			return err
		}
	}
	if err := durable.SyncDir(tmp); err != nil {
		return err
	}
	if _, err := os.Lstat(final); err == nil { // there, and not intact
		aside := tmp + ".old"
		if err := os.Rename(final, aside); err != nil {
			return fmt.Errorf("cannot replace an altered version: %w", err)
		}
		defer os.RemoveAll(aside)
	}
	if err := os.Rename(tmp, final); err != nil {
		return fmt.Errorf("cannot place the version: %w", err)
	}
	return durable.SyncDir(versions)
}

func (b *Bundle) copyFile(dir string, f artifact.File) error {
	in, err := os.Open(filepath.Join(b.Dir, f.Path))
	if err != nil {
		return fmt.Errorf("cannot read the bundle: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, f.Path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(f.Mode))
	if err != nil {
		return fmt.Errorf("cannot write a version: %w", err)
	}
	err = errors.Join(hashed(out, in, f), out.Chmod(fs.FileMode(f.Mode)), out.Sync(), out.Close())
	return err
}

// setCurrent makes current name the version, in one rename, and keeps the
// former one's name in previous. A version that runs already stays current
// until a person updates (R4).
func (b *Bundle) setCurrent(data string) error {
	current := filepath.Join(data, place.CurrentLink)
	if old, err := os.Readlink(current); err == nil {
		if _, err := os.Stat(filepath.Join(data, old, artifact.Agent)); err == nil {
			return nil
		}
	}
	tmp := current + ".fleet-tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Join(place.VersionsDir, b.ID), tmp); err != nil {
		return fmt.Errorf("cannot name the version: %w", err)
	}
	if err := os.Rename(tmp, current); err != nil {
		return fmt.Errorf("cannot name the version: %w", err)
	}
	return durable.SyncDir(data)
}

// Installation reads the installation id, or makes one: written whole, and
// linked to its name so that it never replaces one.
func Installation(data string) (secret.Text, error) {
	path := filepath.Join(data, place.InstallationFile)
	b, err := durable.ReadPrivate(path, 4096)
	if errors.Is(err, fs.ErrNotExist) {
		var id [16]byte
		rand.Read(id[:])
		if err := durable.CreateFile(path, []byte(hex.EncodeToString(id[:])+"\n"), 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
			return secret.Text{}, fmt.Errorf("cannot write the installation id: %w", err)
		}
		b, err = durable.ReadPrivate(path, 4096)
	}
	if err != nil {
		return secret.Text{}, fmt.Errorf("cannot read the installation id: %w", err)
	}
	t := secret.Of(string(b))
	if raw, err := hex.DecodeString(t.Reveal()); err != nil || len(raw) != 16 {
		return secret.Text{}, fault.New(fault.Refused, "installation_torn", "%s is not an installation id", path).
			WithHint("it was altered; delete the machine with fleet delete, remove the file, and enroll again")
	}
	return t, nil
}
