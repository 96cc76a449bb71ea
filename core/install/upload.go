package install

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/remote"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// flushing defines flush, which brings files and directories to the disk, and
// everything else with them only where sync takes no names.
const flushing = `
flush() { sync -- "$@" 2>/dev/null || sync; }
`

// hashing defines check_sums for scripts: it reads `HASH  NAME` lines on
// standard input and compares the files of the present directory with them,
// by whatever the machine has for it.
const hashing = flushing + `
check_sums() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum -c - >/dev/null 2>&1
  elif command -v shasum >/dev/null 2>&1; then shasum -a 256 -c - >/dev/null 2>&1
  else
    while read -r want name; do
      [ "$(openssl dgst -sha256 < "$name" | sed 's/^.*= *//')" = "$want" ] || return 1
    done
  fi
}
check_links() { while [ $# -ge 2 ]; do [ "$(readlink "$1")" = "$2" ] || return 1; shift 2; done; }
`

func links(m *artifact.Manifest) []string {
	var out []string
	for _, f := range m.Files {
		if f.Link != "" {
			out = append(out, f.Path, f.Link)
		}
	}
	return out
}

// intact reports whether the version directory is there and every file in it
// has the hash that was signed, as the machine itself computes it.
func intact(ctx context.Context, h *remote.Host, dataDir string, a *artifact.Artifact) (bool, error) {
	res, err := h.Script(ctx, sshconn.Script{
		Args:  append([]string{artifact.VersionDir(dataDir, a.ID), artifact.ID(a.Bytes)}, links(a.Manifest)...),
		Input: []byte(a.Manifest.Sums() + a.ID + "  " + artifact.ManifestFile + "\n"),
		Body: hashing + `
cd "$1" 2>/dev/null || exit 92
shift 2
check_links "$@" && check_sums || exit 92`})
	if err != nil {
		return false, err
	}
	return res.Exit == 0, nil
}

func (r *run) upload(ctx context.Context) (bool, string, error) {
	r.doc.Artifact = &wire.InstallArtifact{Version: r.art.Manifest.Version, SHA256: r.art.ID}
	ok, err := intact(ctx, r.host, r.dirs.Data, r.art)
	if err != nil {
		return false, "", err
	}
	if ok {
		return true, "there and intact", nil
	}
	how, err := r.send(ctx)
	if err != nil {
		return false, "", err
	}
	r.doc.Artifact.Sent = true
	return false, fmt.Sprintf("%.1f MiB by %s", float64(r.art.Manifest.Archive.Size)/(1<<20), how), nil
}

// staged is where the archive is put until it is verified.
func (r *run) staged() string {
	return path.Join(r.dirs.Data, "versions", ".incoming-"+r.art.ID[:16]+".tar.gz")
}

func (r *run) send(ctx context.Context) (how string, err error) {
	res, err := r.conn.Run(ctx, sshconn.Script{Args: []string{path.Join(r.dirs.Data, "versions")},
		Body: `umask 077; mkdir -p "$1" && rm -rf "$1"/.incoming-* "$1"/.unpack-*`})
	if err != nil {
		return "", err
	}
	if res.Exit != 0 {
		return "", fmt.Errorf("cannot make the versions directory on the machine: %w", res.Err())
	}
	f, err := os.Open(r.art.Path)
	if err != nil {
		return "", fmt.Errorf("cannot open artifact: %w", err)
	}
	defer f.Close()
	size := r.art.Manifest.Archive.Size
	return r.conn.Upload(ctx, r.staged(), f, size, func(sent int64) { r.Sent(sent, size) })
}

// verify unpacks what was sent, has the machine hash every file, and only then
// gives the directory its name; then current names it.
func (r *run) verify(ctx context.Context) (bool, string, error) {
	if r.doc.Artifact.Sent {
		if err := r.unpack(ctx); err != nil {
			return false, "", err
		}
	}
	if r.found.current == r.art.ID {
		return !r.doc.Artifact.Sent, "", nil
	}
	if r.found.current != "" {
		if n := r.sessions(ctx); n > 0 {
			r.runs = r.found.current
			return true, fmt.Sprintf("deferred while %s; fleet update brings version %s", running(n), r.art.Manifest.Version), nil
		}
	}
	if err := SetCurrent(ctx, r.host, r.dirs.Data, r.art.ID); err != nil {
		return false, "", err
	}
	r.switched, r.was = r.found.current != "", r.found.current
	return false, "signed by " + r.art.SignedBy, nil
}

// prune removes the versions that nothing needs: neither current nor previous,
// nor that of a session, which keeps its shim's directory while it lives.
func (r *run) prune(ctx context.Context) {
	if r.sessions(ctx) != 0 {
		return
	}
	res, err := r.conn.Run(ctx, sshconn.Script{Args: []string{r.dirs.Data}, Body: `
cd "$1/versions" || exit 1
c=$(readlink ../current) && [ -n "$c" ] || exit 1
p=$(readlink ../previous)
for v in *; do
  [ "versions/$v" = "$c" ] || [ "versions/$v" = "$p" ] || rm -rf -- "$v" || exit 1
done`})
	if err == nil && res.Exit != 0 {
		err = res.Err()
	}
	if err != nil {
		r.Notef("cannot remove old versions on the machine: %v", err)
	}
}

func (r *run) unpack(ctx context.Context) error {
	var nonce [6]byte
	rand.Read(nonce[:])
	res, err := r.conn.Run(ctx, sshconn.Script{
		Args: append([]string{path.Join(r.dirs.Data, "versions"), r.art.ID, r.staged(), hex.EncodeToString(nonce[:]), r.art.Manifest.Archive.SHA256},
			links(r.art.Manifest)...),
		Input: []byte(r.art.Manifest.Sums()),
		Body: hashing + `
umask 022
u=$1/.unpack-$4
v=$1/$2
a=$3
w=$5
n=$4
d=$1
shift 5
trap 'rm -rf "$u" "$a"' EXIT
mkdir "$u" && chmod 700 "$u" || exit 1
cd "$u" || exit 1
e=$({ LC_ALL=C gzip -dc < "$a" | LC_ALL=C tar -xf -; } 2>&1) || case $e in
*"o space left"* | *uota*) echo "$d: no space left on device" >&2; exit 1 ;;
*) echo "the archive does not unpack: other bytes arrived than were sent" >&2; exit 93 ;;
esac
check_links "$@" || { echo "a link in the archive is not the one that was signed" >&2; exit 93; }
check_sums || { echo "a file in the archive is not the one that was signed" >&2; exit 93; }
flush * .
if [ -e "$v" ]; then mv "$v" "$d/.unpack-old-$n" && mv "$u" "$v" && rm -rf "$d/.unpack-old-$n"
else mv "$u" "$v"; fi || exit 1
flush "$d"`})
	if err != nil {
		return err
	}
	if res.Exit == 93 {
		return fault.New(fault.Refused, "artifact_altered", "what arrived on the machine is not what was sent: %w", res.Err())
	}
	if res.Exit != 0 {
		return fmt.Errorf("cannot unpack the artifact on the machine: %w", res.Err())
	}
	dir := artifact.VersionDir(r.dirs.Data, r.art.ID)
	for name, b := range map[string][]byte{artifact.SignatureFile: r.art.Signature, artifact.ManifestFile: r.art.Bytes} {
		if _, err := r.host.WriteFile(ctx, path.Join(dir, name), b, 0o644, false); err != nil {
			return err
		}
	}
	if len(r.Signers) == 0 {
		return nil
	}
	_, err = r.host.WriteFile(ctx, path.Join(r.dirs.Data, "artifact-signers"), r.Signers.Format(), 0o600, false)
	return err
}

// swapping defines swap, which makes a link of the present directory name
// something else in one rename.
const swapping = flushing + `
swap() { rm -f "$2.fleet-tmp"; ln -s "$1" "$2.fleet-tmp"; mv -fT "$2.fleet-tmp" "$2" 2>/dev/null || mv -fh "$2.fleet-tmp" "$2"; }
`

// SetCurrent makes current name a version, in one rename, and keeps the former
// one's name in previous.
func SetCurrent(ctx context.Context, h *remote.Host, dataDir, id string) error {
	res, err := h.Script(ctx, sshconn.Script{Args: []string{dataDir, id}, Body: swapping + `
set -e
cd "$1"
[ -x "versions/$2/agentd" ]
if [ -L current ]; then
  old=$(readlink current)
  [ "$old" = "versions/$2" ] && exit 0
  swap "$old" previous
fi
swap "versions/$2" current
flush .`})
	if err != nil {
		return err
	}
	if res.Exit != 0 {
		return fmt.Errorf("cannot switch to version %s on the machine: %w", id[:12], res.Err())
	}
	return nil
}

// setPrevious makes previous name a version, or none.
func setPrevious(ctx context.Context, h *remote.Host, dataDir, id string) error {
	res, err := h.Script(ctx, sshconn.Script{Args: []string{dataDir, id}, Body: swapping + `
set -e
cd "$1"
if [ -n "$2" ]; then swap "versions/$2" previous; else rm -f previous; fi`})
	if err != nil {
		return err
	}
	if res.Exit != 0 {
		return fmt.Errorf("cannot name the former version on the machine: %w", res.Err())
	}
	return nil
}
