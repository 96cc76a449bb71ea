package sshconn

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/core/fault"
)

// Facts are what a host says of itself and of the account. They are learnt by
// one read-only script.
type Facts struct {
	System   string // uname -s
	Hardware string // uname -m
	GOOS     string // "" if fleet does not run there
	GOARCH   string

	OSRelease map[string]string
	Init      string // the name of process 1
	HostName  string
	UID       int
	User      string
	Home      string // absolute, as the account database has it or the session starts with
	Shell     string
	DataHome  string // $XDG_DATA_HOME, else HOME/.local/share
	// XDGDataHome is $XDG_DATA_HOME as it is set, or "".
	XDGDataHome string
	Runtime     string // $XDG_RUNTIME_DIR, or ""
	RunUser     bool   // /run/user/UID is the account's
	MachineID   string // /etc/machine-id or the platform's UUID; "" if there is none
	Sudo        bool   // sudo works without a prompt; only looked for when asked
	Tools       map[string]bool
	GitVer      string
	NoHome      bool // the home directory is not there
	// These are of the place where a user's installation is or would be: the
	// data home, or the nearest directory above it that is there.
	Base     string
	NoExec   bool  // it does not let programs run
	ReadOnly bool  // it cannot be written
	FreeKiB  int64 // -1 if unknown
	Inodes   int64 // that are free; -1 if unknown
	Bits     int   // of the userland, 0 if unknown

	// ClockOffset is the host's clock minus ours, good to the round trip.
	ClockOffset time.Duration
	RoundTrip   time.Duration
}

// factsScript only reads. Each answer is one line, key=value. A process costs a
// small host ten milliseconds, so that what the shell can do is left to it. Its
// arguments ask for what costs more.
const factsScript = `
LC_ALL=C; export LC_ALL
say() { printf '%s=%s\n' "$1" "$2"; }
has() { command -v "$1" >/dev/null 2>&1; }
say now "$(date +%s)"
say names "$(uname -s -n -m)"
id=$(id)
say id "$id"
u=${id#uid=}; u=${u%%[!0-9]*}
h=
if has getent; then
  IFS=: read -r _ _ _ _ _ h _ <<EOF
$(getent passwd "$u" 2>/dev/null)
EOF
fi
[ -n "$h" ] || h=$HOME
say home "$h"
say shell "$SHELL"
say datahome "$XDG_DATA_HOME"
say runtime "$XDG_RUNTIME_DIR"
[ -d "/run/user/$u" ] && [ -O "/run/user/$u" ] && say runuser yes
if [ -r /etc/machine-id ]; then read -r m < /etc/machine-id; say machineid "$m"
elif has ioreg; then say machineid "$(ioreg -rd1 -c IOPlatformExpertDevice 2>/dev/null | sed -n 's/.*IOPlatformUUID" = "\(.*\)"/\1/p')"
fi
if [ -r /proc/1/comm ]; then read -r m < /proc/1/comm; say init "$m"; else say init "$(ps -o comm= -p 1 2>/dev/null)"; fi
if [ -r /etc/os-release ]; then
  while IFS= read -r m; do
    case $m in ID=*|VERSION_ID=*|PRETTY_NAME=*|ID_LIKE=*) printf 'os.%s\n' "$m";; esac
  done < /etc/os-release
fi
say bits "$(getconf LONG_BIT 2>/dev/null)"
for t in tar gzip sha256sum shasum openssl crontab git sudo systemctl setsid; do has $t && say tool.$t yes; done
[ -d "$h" ] || say nohome yes
case $XDG_DATA_HOME in /*) d=$XDG_DATA_HOME;; *) d=$h/.local/share;; esac
while [ ! -d "$d" ] && [ -n "$d" ]; do d=${d%/*}; done
d=${d:-/}
say base "$d"
df=$(df -Pk "$d" 2>/dev/null)
m=${df##*% }
say df "$df"
df=$(df -Pi "$d" 2>/dev/null)
say inodes "$df"
[ -w "$d" ] || say readonly yes
if [ -r /proc/mounts ]; then
  o= e=
  while :; do
    case $m in *' '*) e=$e${m%%' '*}'\040' m=${m#*' '};; *) break;; esac
  done
  m=$e$m
  while read -r _ at _ with _; do [ "$at" = "$m" ] && o=$with; done < /proc/mounts
  case ,$o, in *,noexec,*) say noexec yes;; esac
fi
for ask in "$@"; do
  case $ask in
  git) say git "$(git --version 2>/dev/null)";;
  sudo) sudo -n true >/dev/null 2>&1 && say sudo yes;;
  esac
done
true
`

// Ask is something that Facts does not find out unless it is asked to.
type Ask string

const (
	AskSudo Ask = "sudo" // whether sudo works without a password; leaves a line in the host's log
	AskGit  Ask = "git"  // the version of git
)

// Facts asks the host about itself. It only reads, so it may be called before
// the key is confirmed.
func (c *Conn) Facts(ctx context.Context, asks ...Ask) (*Facts, error) {
	var args []string
	for _, a := range asks {
		args = append(args, string(a))
	}
	before := time.Now()
	r, err := c.run(ctx, Script{Body: factsScript, Args: args, Timeout: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	return parseFacts(string(r.Stdout), before, time.Now())
}

// Sudo finds out whether sudo works without a password.
func (c *Conn) Sudo(ctx context.Context) (bool, error) {
	r, err := c.run(ctx, Script{Body: `exec sudo -n true`, Timeout: 30 * time.Second})
	return err == nil && r.Exit == 0, err
}

func parseFacts(out string, before, after time.Time) (*Facts, error) {
	f := &Facts{OSRelease: map[string]string{}, Tools: map[string]bool{}, RoundTrip: after.Sub(before), UID: -1, FreeKiB: -1, Inodes: -1}
	last := ""
	for line := range strings.Lines(out) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
		switch {
		case last == "df" && f.FreeKiB < 0:
			f.FreeKiB = available(line)
		case last == "inodes" && f.Inodes < 0:
			f.Inodes = available(line)
		}
		if !ok {
			continue
		}
		last = k
		switch k {
		case "now":
			if s, err := strconv.ParseInt(v, 10, 64); err == nil {
				mid := before.Add(after.Sub(before) / 2)
				// The host's clock is read in whole seconds: half of one is the best guess.
				f.ClockOffset = time.Unix(s, 5e8).Sub(mid)
			}
		case "names":
			if w := strings.Fields(v); len(w) == 3 {
				f.System, f.HostName, f.Hardware = w[0], w[1], w[2]
			}
		case "id":
			f.UID, f.User = parseID(v)
		case "home":
			f.Home = v
		case "shell":
			f.Shell = v
		case "datahome":
			f.DataHome, f.XDGDataHome = v, v
		case "runtime":
			f.Runtime = v
		case "runuser":
			f.RunUser = true
		case "machineid":
			f.MachineID = strings.TrimSpace(v)
		case "init":
			f.Init = path.Base(v)
		case "bits":
			f.Bits, _ = strconv.Atoi(v)
		case "git":
			f.GitVer = strings.TrimPrefix(v, "git version ")
		case "nohome":
			f.NoHome = true
		case "base":
			f.Base = v
		case "readonly":
			f.ReadOnly = true
		case "noexec":
			f.NoExec = true
		case "sudo":
			f.Sudo = true
		default:
			if t, ok := strings.CutPrefix(k, "tool."); ok {
				f.Tools[t] = true
			} else if n, ok := strings.CutPrefix(k, "os."); ok && len(f.OSRelease) < 16 {
				f.OSRelease[n] = strings.Trim(v, `"'`)
			}
		}
	}
	if f.System == "" || f.UID < 0 || f.User == "" {
		return nil, fault.New(fault.Failure, "platform", "cannot tell what the host is: it printed no system, uid or user")
	}
	if !path.IsAbs(f.Home) {
		return nil, fault.New(fault.Failure, "platform", "the account %s has no absolute home directory (%q)", f.User, f.Home)
	}
	if !path.IsAbs(f.DataHome) {
		f.DataHome = path.Join(f.Home, ".local/share")
	}
	f.GOOS, f.GOARCH = platform(f.System, f.Hardware, f.Bits)
	return f, nil
}

// parseID takes `uid=1000(dana) gid=…` apart.
func parseID(s string) (uid int, name string) {
	number, rest, _ := strings.Cut(strings.TrimPrefix(s, "uid="), "(")
	name, _, ok := strings.Cut(rest, ")")
	n, err := strconv.Atoi(number)
	if err != nil || !ok || n < 0 {
		return -1, ""
	}
	return n, name
}

// available is the fourth column of the line that df -P prints below its
// heading, in KiB. A device's name may hold spaces; its numbers end before the
// first word that ends in %.
func available(line string) int64 {
	w := strings.Fields(line)
	for i := 3; i < len(w); i++ {
		if strings.HasSuffix(w[i], "%") {
			if n, err := strconv.ParseInt(w[i-1], 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

func platform(system, hardware string, bits int) (goos, goarch string) {
	switch system {
	case "Linux":
		goos = "linux"
	case "Darwin":
		goos = "darwin"
	}
	switch hardware {
	case "x86_64", "amd64":
		goarch = "amd64"
	case "aarch64", "arm64":
		goarch = "arm64"
	}
	// A 64-bit kernel runs our static 64-bit programs whatever the userland is,
	// so bits only matters where the kernel says 32.
	return goos, goarch
}

// Supported returns an error in the words of the design for a platform that
// fleet does not run on.
func (f *Facts) Supported() error {
	if f.GOOS == "" || f.GOARCH == "" {
		return fault.New(fault.Refused, "unsupported_platform", "unsupported platform %s/%s: fleet runs on linux and darwin, amd64 and arm64", f.System, f.Hardware)
	}
	return nil
}

// Chassis tells one chassis from another that shares its home directory.
func (f *Facts) Chassis() string {
	sum := sha256.Sum256([]byte(f.MachineID))
	return hex.EncodeToString(sum[:])
}

// String names the platform.
func (f *Facts) String() string { return fmt.Sprintf("%s/%s", f.GOOS, f.GOARCH) }
