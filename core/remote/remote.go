// Package remote is a machine as plugins and the installer see it over SSH. It
// implements the SDK's Host, with its phases: before the host key is confirmed
// only the read-only commands that a plugin described are run. The installer
// gets a few more calls (WriteFile, Remove, Script) that plugins do not have.
//
// It knows nothing of planes and credentials.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/plugins/sdk"
)

// Host is one account on one machine over one connection.
type Host struct {
	conn  *sshconn.Conn
	facts *sshconn.Facts

	// These may be set before the host is given to a plugin.
	Phase   sdk.Phase
	Scope   sdk.Scope
	Manager string
	DataDir string
	Allows  func(argv []string) bool // in PhaseUnconfirmed: what the plugin described
	Notice  func(message string)     // takes Progress; may be nil
}

// New returns the host behind a connection whose facts are known.
func New(conn *sshconn.Conn, facts *sshconn.Facts) *Host {
	return &Host{conn: conn, facts: facts, Phase: sdk.PhaseUnconfirmed}
}

// For returns a copy of h for one plugin.
func (h *Host) For(d sdk.Description) *Host {
	c := *h
	c.Allows = d.Allows
	return &c
}

// Facts implements sdk.Host.
func (h *Host) Facts(context.Context) (sdk.Facts, error) {
	f := h.facts
	offset := f.ClockOffset
	out := sdk.Facts{OS: f.GOOS, Arch: f.GOARCH, OSRelease: f.OSRelease, Init: f.Init, UID: uint32(f.UID),
		User: f.User, Home: f.Home, Privilege: h.privilege(), Phase: h.Phase, DataDir: h.DataDir,
		Scope: h.Scope, ServiceManager: h.Manager}
	// The clock is read in whole seconds over a link with its own delay; less
	// than that is not a fact.
	if offset > f.RoundTrip+time.Second || -offset > f.RoundTrip+time.Second {
		out.ClockOffset = &offset
	} else {
		out.ClockOffset = new(time.Duration)
	}
	return out, nil
}

func (h *Host) privilege() sdk.Privilege {
	switch {
	case h.facts.UID == 0:
		return sdk.PrivilegeRoot
	case h.facts.Sudo:
		return sdk.PrivilegeSudo
	}
	return sdk.PrivilegeNone
}

// Progress implements sdk.Host.
func (h *Host) Progress(_ context.Context, message string) {
	if h.Notice != nil {
		h.Notice(message)
	}
}

// Exit statuses that our own scripts use to say what was wrong.
const (
	exitMissing = 94
	exitDenied  = 95
)

func (h *Host) run(ctx context.Context, s sshconn.Script) (*sshconn.Result, error) {
	var r *sshconn.Result
	var err error
	if h.Phase == sdk.PhaseUnconfirmed {
		r, err = h.conn.ReadOnly(ctx, s)
	} else {
		r, err = h.conn.Run(ctx, s)
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", sdk.ErrUnreachable, err)
	}
	return r, err
}

// asRoot wraps a script so that it runs with root's rights.
func (h *Host) asRoot(s sshconn.Script) (sshconn.Script, error) {
	switch h.privilege() {
	case sdk.PrivilegeRoot:
		return s, nil
	case sdk.PrivilegeSudo:
		s.Args = append([]string{s.Body}, s.Args...)
		s.Body = `b=$1; shift; exec sudo -n -- sh -c "$b" sh "$@"`
		return s, nil
	}
	return s, fmt.Errorf("%w: %s has no root rights on the machine: no sudo without a password", sdk.ErrDenied, h.facts.User)
}

// Run implements sdk.Host.
func (h *Host) Run(ctx context.Context, c sdk.Command) (sdk.Result, error) {
	if len(c.Argv) == 0 || c.Argv[0] == "" || len(c.Stdin) > sdk.MaxStdin {
		return sdk.Result{}, fmt.Errorf("%w: command", sdk.ErrInvalid)
	}
	if h.Phase == sdk.PhaseUnconfirmed && (c.AsRoot || len(c.Stdin) > 0 || h.Allows == nil || !h.Allows(c.Argv)) {
		return sdk.Result{}, fmt.Errorf("%w: the host key is not confirmed and the plugin does not describe the command %q", sdk.ErrDenied, c.Argv)
	}
	limit := sdk.ClampRead(c.Limit)
	s := sshconn.Script{
		Body: `PATH=$PATH:/usr/sbin:/sbin; command -v "$1" >/dev/null 2>&1 || exit 94; exec "$@"`,
		Args: c.Argv, Input: c.Stdin, MaxStdout: int64(limit),
	}
	if c.AsRoot {
		var err error
		if s, err = h.asRoot(s); err != nil {
			return sdk.Result{}, err
		}
	}
	r, err := h.run(ctx, s)
	if err != nil {
		return sdk.Result{}, err
	}
	if r.Exit == exitMissing {
		return sdk.Result{}, fmt.Errorf("no program %s on the machine: %w", c.Argv[0], fs.ErrNotExist)
	}
	stderr := []byte(r.Stderr)
	if len(stderr) > limit {
		stderr = stderr[:limit]
	}
	return sdk.Result{Exit: r.Exit, Stdout: r.Stdout, Stderr: stderr, Truncated: r.Truncated || len(r.Stderr) > limit}, nil
}

// Statfs implements sdk.Host.
func (h *Host) Statfs(ctx context.Context, p string) (sdk.FSStat, error) {
	if !path.IsAbs(p) {
		return sdk.FSStat{}, fmt.Errorf("%w: %q is not absolute", sdk.ErrInvalid, p)
	}
	r, err := h.run(ctx, sshconn.Script{Args: []string{p}, Body: `
LC_ALL=C; export LC_ALL
p=$1
while [ ! -e "$p" ] && [ "$p" != / ]; do p=$(dirname "$p"); done
# A device and a mount point may hold spaces: the numbers stand before the first word that ends in %.
numbers() { tail -n 1 | awk -v k="$1" '{for (i = 5; i <= NF; i++) if ($i ~ /^([0-9]+%|-)$/) {print k, $(i-3), $(i-1); exit}}'; }
df -Pk "$p" | numbers bytes
df -Pi "$p" 2>/dev/null | numbers files
m=$(df -P "$p" | tail -n 1 | sed 's/^.*[0-9-]%* \(\/.*\)$/\1/; s/ /\\040/g')
[ -r /proc/mounts ] && while read -r _ at _ with _; do [ "$at" = "$m" ] && o=$with; done < /proc/mounts
case ,$o, in *,ro,*) echo ro 1 1;; esac
true`})
	if err != nil {
		return sdk.FSStat{}, err
	}
	var st sdk.FSStat
	for line := range strings.Lines(string(r.Stdout)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		total, _ := strconv.ParseUint(f[1], 10, 64)
		free, _ := strconv.ParseUint(f[2], 10, 64)
		switch f[0] {
		case "bytes":
			st.BytesTotal, st.BytesFree = total<<10, free<<10
		case "files":
			st.FilesTotal, st.FilesFree = total, free
		case "ro":
			st.ReadOnly = true
		}
	}
	if st.BytesTotal == 0 {
		return st, fmt.Errorf("cannot read the size of the file system at %s: %w", p, r.Err())
	}
	return st, nil
}

// ReadFile implements sdk.Host.
func (h *Host) ReadFile(ctx context.Context, p string, limit int) ([]byte, bool, error) {
	limit = sdk.ClampRead(limit)
	r, err := h.run(ctx, sshconn.Script{Args: []string{p, strconv.Itoa(limit + 1)}, MaxStdout: int64(limit),
		Body: `[ -e "$1" ] || exit 94; [ -r "$1" ] || exit 95; exec head -c "$2" -- "$1"`})
	if err != nil {
		return nil, false, err
	}
	if err := problem(r, p); err != nil {
		return nil, false, err
	}
	return r.Stdout, r.Truncated, nil
}

func problem(r *sshconn.Result, p string) error {
	switch r.Exit {
	case 0:
		return nil
	case exitMissing:
		return &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
	case exitDenied:
		return &fs.PathError{Op: "open", Path: p, Err: sdk.ErrDenied}
	}
	return fmt.Errorf("%s: %w", p, r.Err())
}

// Stat implements sdk.Host.
func (h *Host) Stat(ctx context.Context, p string) (sdk.FileInfo, error) {
	r, err := h.run(ctx, sshconn.Script{Args: []string{p},
		Body: `[ -e "$1" ] || [ -L "$1" ] || exit 94
case $(uname -s) in Darwin) exec stat -f '%Xp %z %u %m' -- "$1";; *) exec stat -c '%f %s %u %Y' -- "$1";; esac`})
	if err != nil {
		return sdk.FileInfo{}, err
	}
	if err := problem(r, p); err != nil {
		return sdk.FileInfo{}, err
	}
	f := strings.Fields(string(r.Stdout))
	if len(f) != 4 {
		return sdk.FileInfo{}, fmt.Errorf("cannot stat %s: the machine printed %q", p, r.Stdout)
	}
	raw, err1 := strconv.ParseUint(f[0], 16, 32)
	size, err2 := strconv.ParseInt(f[1], 10, 64)
	uid, err3 := strconv.ParseUint(f[2], 10, 32)
	at, err4 := strconv.ParseInt(f[3], 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return sdk.FileInfo{}, fmt.Errorf("cannot stat %s: %w", p, err)
	}
	return sdk.FileInfo{Mode: mode(uint32(raw)), Size: size, UID: uint32(uid), Modified: time.Unix(at, 0)}, nil
}

// mode turns a st_mode into Go's.
func mode(raw uint32) fs.FileMode {
	m := fs.FileMode(raw & 0o777)
	switch raw & 0o170000 {
	case 0o040000:
		m |= fs.ModeDir
	case 0o120000:
		m |= fs.ModeSymlink
	case 0o100000:
	case 0o140000:
		m |= fs.ModeSocket
	default:
		m |= fs.ModeIrregular
	}
	return m
}
