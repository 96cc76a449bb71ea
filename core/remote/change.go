package remote

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/plugins/sdk"
)

// Script runs a script of the installer's own with the account's rights.
func (h *Host) Script(ctx context.Context, s sshconn.Script) (*sshconn.Result, error) {
	return h.conn.Run(ctx, s)
}

// RootScript runs a script with root's rights.
func (h *Host) RootScript(ctx context.Context, s sshconn.Script) (*sshconn.Result, error) {
	s, err := h.asRoot(s)
	if err != nil {
		return nil, err
	}
	return h.conn.Run(ctx, s)
}

// swept is how the script of WriteFile ends when its temporary file has gone.
const swept = 93

// WriteFile replaces a file whole: a temporary file beside it, opened with its
// mode, synced, renamed. Missing directories are made. With root it is root's
// file; else the account's. It reports whether the file was changed. An agent that
// starts sweeps temporary files away, this one's too: it is written again then.
func (h *Host) WriteFile(ctx context.Context, p string, content []byte, m fs.FileMode, root bool) (changed bool, err error) {
	if len(content) > sshconn.MaxInput || len(content) == 0 {
		return false, fmt.Errorf("cannot write %s: %d bytes", p, len(content))
	}
	dirMode := "077"
	if root {
		dirMode = "022"
	}
	s := sshconn.Script{Args: []string{p, fmt.Sprintf("%04o", m.Perm()), dirMode}, Input: content, Body: `
set -e
umask "$3"
d=$(dirname "$1")
[ -d "$d" ] || mkdir -p "$d"
t=$d/.fleet-tmp-$$
trap 'r=$?; [ $r = 0 ] || [ -e "$t" ] || r=93; rm -f "$t"; exit $r' EXIT
umask 077
cat > "$t"
chmod "$2" "$t"
if [ -f "$1" ] && [ ! -L "$1" ] && cmp -s "$t" "$1"; then echo same; exit 0; fi
sync "$t" 2>/dev/null || sync
mv -f "$t" "$1"
echo changed`}
	run := h.Script
	if root {
		run = h.RootScript
	}
	var r *sshconn.Result
	for range 3 {
		if r, err = run(ctx, s); err != nil {
			return false, err
		}
		if r.Exit != swept {
			break
		}
	}
	if r.Exit != 0 {
		return false, fmt.Errorf("cannot write %s on the machine: %w", p, r.Err())
	}
	return strings.TrimSpace(string(r.Stdout)) == "changed", nil
}

// Remove removes files. Those that are not there are no error.
func (h *Host) Remove(ctx context.Context, root bool, paths ...string) error {
	s := sshconn.Script{Args: paths, Body: `exec rm -f -- "$@"`}
	run := h.Script
	if root {
		run = h.RootScript
	}
	r, err := run(ctx, s)
	if err != nil {
		return err
	}
	if r.Exit != 0 {
		return fmt.Errorf("cannot remove files on the machine: %w", r.Err())
	}
	return nil
}

var _ sdk.Host = (*Host)(nil)
