package install

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"reflect"
	"strings"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/remote"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/sdk"
)

// found is what a machine already has of an installation.
type found struct {
	credential bool
	latched    bool
	current    string // content hash that current names, or ""
	previous   string // that of the version before, or ""
	held       string // that of one that was left again, or ""
}

// What an install needs on the machine: the archive, the files twice over, and
// air.
const (
	minFreeKiB    = 96 << 10
	minFreeInodes = 100
)

// CheckPlatform says in one sentence why an install cannot go on, if so.
func CheckPlatform(f *sshconn.Facts, scope string) error {
	if err := f.Supported(); err != nil {
		return err
	}
	refuse := func(code, hint, format string, args ...any) error {
		return fault.New(fault.Refused, code, format, args...).WithHint("%s", hint)
	}
	for _, t := range []string{"tar", "gzip"} {
		if !f.Tools[t] {
			return refuse("missing_tool", "install "+t+" there", "the machine has no %s", t)
		}
	}
	if !f.Tools["sha256sum"] && !f.Tools["shasum"] && !f.Tools["openssl"] {
		return refuse("missing_tool", "install coreutils or openssl there", "the machine has neither sha256sum, shasum nor openssl")
	}
	if scope == place.System {
		if f.UID != 0 && !f.Sudo {
			return refuse("no_root", "use --scope user, or let the account use sudo without a password", "%s has no root rights for --scope system", f.User)
		}
		return nil
	}
	what, where := "the home directory "+f.Home, f.Home
	if f.Base != "" && f.Base != f.Home {
		what, where = f.Base, f.Base
	}
	switch {
	case f.NoHome && !path.IsAbs(f.XDGDataHome):
		return refuse("no_home", "make it there, the account's own, or use --scope system", "the home directory %s is not there", f.Home)
	case f.ReadOnly:
		return refuse("home_read_only", "make "+where+" writable for the account, or use --scope system", "%s cannot be written", what)
	case f.NoExec:
		return refuse("home_noexec", "use --scope system, or set XDG_DATA_HOME there to a place where programs may run", "%s does not let programs run (noexec)", what)
	}
	return nil
}

// CheckSpace says in one sentence why an artifact does not fit, if so.
func CheckSpace(f *sshconn.Facts, scope string) error {
	if scope == place.System {
		return nil
	}
	switch {
	case f.FreeKiB >= 0 && f.FreeKiB < minFreeKiB:
		return fault.New(fault.Refused, "no_space", "%s has %d MiB free, and an install needs %d", f.Base, f.FreeKiB>>10, minFreeKiB>>10).
			WithHint("free some space there")
	case f.Inodes >= 0 && f.Inodes < minFreeInodes:
		return fault.New(fault.Refused, "no_inodes", "%s has room for %d more files, and an install needs %d", f.Base, f.Inodes, minFreeInodes).
			WithHint("remove some files there")
	}
	return nil
}

// Places are where an installation of the account may be, by scope.
func Places(f *sshconn.Facts) (map[string]place.Dirs, error) {
	out := map[string]place.Dirs{}
	for _, scope := range []string{place.User, place.System} {
		d, err := place.Resolve(place.Facts{Scope: scope, Account: f.User, UID: f.UID, Home: f.Home,
			DataHome: f.DataHome, MachineID: f.MachineID, RunUser: f.RunUser})
		if err != nil {
			return nil, err
		}
		out[scope] = d
	}
	return out, nil
}

// locate finds the scope in which the account has an installation, or "".
func locate(ctx context.Context, c *sshconn.Conn, places map[string]place.Dirs) (string, error) {
	b, err := c.RunOK(ctx, sshconn.Script{Args: []string{places[place.System].Data, places[place.User].Data},
		Body: `[ -e "$1/installation" ] && echo system; [ -e "$2/installation" ] && echo user; true`})
	if err != nil {
		return "", err
	}
	f := strings.Fields(string(b))
	switch len(f) {
	case 0:
		return "", nil
	case 1:
		return f[0], nil
	}
	return "", fault.New(fault.Refused, "two_installations", "the account has an installation in both scopes").WithHint("name one with --scope, or remove one with fleet uninstall")
}

func (r *run) platform(ctx context.Context) (bool, string, error) {
	var err error
	if r.facts, err = r.conn.Facts(ctx); err != nil {
		return false, "", err
	}
	places, err := Places(r.facts)
	if err != nil {
		return false, "", err
	}
	r.scope = r.o.Scope
	if r.scope == "" {
		if r.scope, err = locate(ctx, r.conn, places); err != nil {
			return false, "", err
		}
	}
	if r.scope == "" {
		// Root has no session of its own to bind a user service to.
		if r.scope = place.User; r.facts.UID == 0 {
			r.scope = place.System
		}
	}
	if err := r.askSudo(ctx); err != nil {
		return false, "", err
	}
	if err := CheckPlatform(r.facts, r.scope); err != nil {
		return false, "", err
	}
	r.dirs = places[r.scope]
	r.host = remote.New(r.conn, r.facts)
	r.host.Phase, r.host.Scope, r.host.DataDir = sdk.PhaseChange, sdk.Scope(r.scope), r.dirs.Data
	r.host.Notice = func(m string) { r.Notice("%s", m) }
	if r.art, err = r.Artifact(r.facts.GOOS, r.facts.GOARCH); err != nil {
		return false, "", err
	}
	r.runs = r.art.ID
	if full := CheckSpace(r.facts, r.scope); full != nil {
		if there, err := intact(ctx, r.host, r.dirs.Data, r.art); err != nil || !there {
			return false, "", errors.Join(err, full)
		}
	}
	// Whatever refuses an install does so before anything is made there.
	if r.record, err = ReadRecord(ctx, r.host, r.dirs.Data); err != nil {
		return false, "", err
	}
	if r.manager, err = r.chooseManager(ctx); err != nil {
		return false, "", err
	}
	if err := r.makeDataDir(ctx); err != nil {
		return false, "", err
	}
	if err := r.lock(ctx); err != nil {
		return false, "", err
	}
	if err := r.sameRecord(ctx); err != nil {
		return false, "", err
	}
	r.host.Manager = r.manager.Description().Name
	if err := r.takeInstallation(ctx); err != nil {
		return false, "", err
	}
	return false, fmt.Sprintf("%s, %s scope, %s", r.facts, r.scope, r.manager.Description().Name), nil
}

// sameRecord looks again at the service record, now that no other install can
// change it.
func (r *run) sameRecord(ctx context.Context) error {
	now, err := ReadRecord(ctx, r.host, r.dirs.Data)
	if err != nil || reflect.DeepEqual(now, r.record) {
		return err
	}
	r.record, r.detected = now, nil
	if err := r.manager.Close(); err != nil {
		r.Notef("cannot end the service plugin: %v", err)
	}
	r.manager = nil
	r.manager, err = r.chooseManager(ctx)
	return err
}

// askSudo finds out about sudo where the scope needs root's rights. Nobody is
// asked for more rights than are used.
func (r *run) askSudo(ctx context.Context) (err error) {
	if r.scope == place.System && r.facts.UID != 0 {
		r.facts.Sudo, err = r.conn.Sudo(ctx)
	}
	return err
}

// makeDataDir makes the data directory, 0700 and the account's.
func (r *run) makeDataDir(ctx context.Context) error {
	s := sshconn.Script{Args: []string{r.dirs.Data, fmt.Sprint(r.facts.UID)}, Body: `
set -e
umask 077
[ -L "$1" ] && { echo "$1 is a symbolic link" >&2; exit 1; }
[ -d "$1" ] || mkdir -p "$1"
chmod 700 "$1"`}
	run := r.host.Script
	if r.scope == place.System {
		s.Body = strings.Replace(s.Body, `[ -d "$1" ] ||`, `p=$(dirname "$1"); [ -d "$p" ] || (umask 022; mkdir -p "$p")
[ -d "$1" ] ||`, 1) + "\nchown \"$2\" \"$1\""
		run = r.host.RootScript
	}
	res, err := run(ctx, s)
	if err != nil {
		return err
	}
	if res.Exit != 0 {
		return fmt.Errorf("cannot make %s on the machine: %w", r.dirs.Data, res.Err())
	}
	return nil
}

// lockScript makes $1/install.lock in the name of the shell that runs it: its
// number, the boot, and when it started. A number is given out again, and a
// shell that ended stays as a zombie where process 1 does not reap it, as in
// many containers: neither holds the lock.
const lockScript = `
umask 077
started() {
  if [ -r /proc/self/stat ]; then
    s=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    set -- ${s##*\) }
    [ "$1" != Z ] && [ "$1" != X ] || return 1
    shift 19
    echo "$1"
  else
    LC_ALL=C ps -o lstart= -p "$1" 2>/dev/null | tr -s ' ' _ | grep .
  fi
}
l=$1/install.lock
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo boot)
t=$l.$$
printf '%s %s %s\n' "$$" "$boot" "$(started "$$")" > "$t" || exit 1
trap 'rm -f "$t"' EXIT
for try in 1 2 3; do
  ln "$t" "$l" 2>/dev/null && exit 0
  read -r pid was since < "$l" 2>/dev/null || { rm -f "$l"; continue; }
  [ "$pid" = "$$" ] && [ "$was" = "$boot" ] && exit 0
  if [ "$was" = "$boot" ] && now=$(started "$pid") && [ "${since:-$now}" = "$now" ]; then exit 90; fi
  rm -f "$l"
done
exit 91`

// holdLock is lock on a connection that stays when this is over. A shell of its
// own holds it, until release.
func (r *run) holdLock(ctx context.Context) (release func(), err error) {
	s, err := r.conn.Stream(ctx, sshconn.Script{Args: []string{r.dirs.Data}, Body: "(" + lockScript + `
)
r=$?
echo "$r"
[ "$r" = 0 ] || exit 1
cat >/dev/null
rm -f "$1/install.lock"`})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	line, err := bufio.NewReaderSize(io.LimitReader(s, 256), 256).ReadString('\n')
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("cannot lock the data directory on the machine: %w", cmp.Or(ctx.Err(), err))
	}
	if err := locked(strings.TrimSpace(line)); err != nil {
		s.Close()
		return nil, err
	}
	return func() {
		if h, ok := s.(interface{ CloseWrite() error }); ok {
			h.CloseWrite()
			// It ends by itself; a shell that does not is ended, and what a dead
			// one holds is free.
			time.AfterFunc(releaseIn, func() { s.Close() })
			return
		}
		s.Close()
	}, nil
}

// releaseIn is how long the holder of a lock may take to let go of it.
const releaseIn = 5 * time.Second

func locked(exit string) error {
	switch exit {
	case "0":
		return nil
	case "90":
		return fault.New(fault.Refused, "install_running", "another install of this account runs on the machine").WithHint("wait for it to end, then run this again")
	}
	return fmt.Errorf("cannot lock the data directory on the machine: exit status %s", exit)
}

// lock keeps two installs from interleaving. It names the shell at the other
// end of this connection, which dies with the connection.
func (r *run) lock(ctx context.Context) error {
	res, err := r.conn.Run(ctx, sshconn.Script{Args: []string{r.dirs.Data}, Body: lockScript})
	switch {
	case err != nil:
		return err
	case res.Exit == 90:
		return locked("90")
	case res.Exit != 0:
		return fmt.Errorf("cannot lock the data directory on the machine: %w", res.Err())
	}
	return nil
}

// takeInstallation reads the installation id, making it first if there is
// none. It is opened 0600 before it has content, synced, and linked to its name
// so that it never replaces one.
func (r *run) takeInstallation(ctx context.Context) error {
	var id [16]byte
	rand.Read(id[:])
	res, err := r.conn.Run(ctx, sshconn.Script{Args: []string{r.dirs.Data}, Input: []byte(hex.EncodeToString(id[:]) + "\n"), Body: `
umask 077
f=$1/installation
if [ ! -s "$f" ]; then
  t=$1/.installation.fleet-tmp-$$
  trap 'rm -f "$t"' EXIT
  cat > "$t" && { sync "$t" 2>/dev/null || sync; } || exit 1
  [ -e "$f" ] && rm -f "$f"
  ln "$t" "$f" 2>/dev/null
  sync "$1" 2>/dev/null || sync
fi
cat "$f" || exit 1
[ -s "$1/credential" ] || [ -s "$1/credential.next" ] && echo credential
[ -e "$1/latch" ] && echo latched
[ -L "$1/current" ] && printf 'current %s\n' "$(readlink "$1/current")"
[ -L "$1/previous" ] && printf 'previous %s\n' "$(readlink "$1/previous")"
[ -s "$1/held" ] && printf 'held %s\n' "$(cat "$1/held")"
true`})
	if err != nil {
		return err
	}
	if res.Exit != 0 {
		return fmt.Errorf("cannot write the installation id on the machine: %w", res.Err())
	}
	lines := strings.Fields(string(res.Stdout))
	if len(lines) == 0 {
		return errors.New("cannot read the installation id on the machine")
	}
	if raw, err := hex.DecodeString(lines[0]); err != nil || len(raw) != 16 {
		return fault.New(fault.Refused, "installation_torn", "%s/installation on the machine is not an installation id", r.dirs.Data).
			WithHint("it was altered there; delete the machine with fleet delete, remove the file, and install again")
	}
	r.installation = secret.Of(lines[0])
	for i, w := range lines[1:] {
		switch {
		case w == "credential":
			r.found.credential = true
		case w == "latched":
			r.found.latched = true
		case w == "current" && i+2 < len(lines):
			r.found.current = path.Base(lines[i+2])
		case w == "previous" && i+2 < len(lines):
			r.found.previous = path.Base(lines[i+2])
		case w == "held" && i+2 < len(lines):
			r.found.held = lines[i+2]
		}
	}
	return nil
}

// ReadRecord reads the service record in a data directory; nil if there is none.
func ReadRecord(ctx context.Context, h *remote.Host, dataDir string) (*wire.ServiceRecord, error) {
	b, _, err := h.ReadFile(ctx, path.Join(dataDir, place.ServiceFile), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rec wire.ServiceRecord
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, fmt.Errorf("cannot read %s/%s on the machine: %w", dataDir, place.ServiceFile, err)
	}
	return &rec, nil
}
