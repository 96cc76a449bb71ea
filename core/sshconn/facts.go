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
	Runtime   string // $XDG_RUNTIME_DIR, or ""
	RunUser   bool   // /run/user/UID is the account's
	MachineID string // /etc/machine-id or the platform's UUID; "" if there is none
	Sudo      bool   // sudo works without a prompt; only looked for when asked
	Tools     map[string]bool
	GitVer    string
	NoExec    bool // the home directory does not let programs run
	ReadOnly  bool // the home directory cannot be written
	FreeKiB   int64
	Bits      int // of the userland, 0 if unknown

	// ClockOffset is the host's clock minus ours, good to the round trip.
	ClockOffset time.Duration
	RoundTrip   time.Duration
}

// factsScript only reads. Each answer is one line, key=value.
const factsScript = `
LC_ALL=C; export LC_ALL
say() { printf '%s=%s\n' "$1" "$(printf %s "$2" | tr -d '\r' | tr '\n' ' ')"; }
say now "$(date +%s)"
say system "$(uname -s)"
say hardware "$(uname -m)"
say host "$(uname -n)"
say uid "$(id -u)"
say user "$(id -un)"
h=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6)
[ -n "$h" ] || h=$HOME
say home "$h"
say shell "$SHELL"
say datahome "$XDG_DATA_HOME"
say runtime "$XDG_RUNTIME_DIR"
[ -d "/run/user/$(id -u)" ] && [ -O "/run/user/$(id -u)" ] && say runuser yes
if [ -r /etc/machine-id ]; then say machineid "$(cat /etc/machine-id)"
elif command -v ioreg >/dev/null 2>&1; then say machineid "$(ioreg -rd1 -c IOPlatformExpertDevice 2>/dev/null | sed -n 's/.*IOPlatformUUID" = "\(.*\)"/\1/p')"
fi
if [ -r /proc/1/comm ]; then say init "$(cat /proc/1/comm)"; else say init "$(ps -o comm= -p 1 2>/dev/null)"; fi
[ -r /etc/os-release ] && sed -n 's/^\(ID\|VERSION_ID\|PRETTY_NAME\|ID_LIKE\)=/os.\1=/p' /etc/os-release
say bits "$(getconf LONG_BIT 2>/dev/null)"
for t in tar gzip sha256sum shasum openssl crontab git sudo systemctl setsid; do command -v $t >/dev/null 2>&1 && say tool.$t yes; done
say git "$(git --version 2>/dev/null)"
d=$h; [ -d "$d" ] || d=/
say free "$(df -Pk "$d" 2>/dev/null | awk 'NR==2{print $4}')"
[ -w "$d" ] || say readonly yes
if [ -r /proc/mounts ]; then
  m=$(df -P "$d" 2>/dev/null | awk 'NR==2{print $6}')
  awk -v m="$m" '$2==m{o=$4} END{print o}' /proc/mounts | tr ',' '\n' | grep -qx noexec && say noexec yes
fi
if [ "$1" = sudo ]; then sudo -n true >/dev/null 2>&1 && say sudo yes; fi
true
`

// Facts asks the host about itself. It only reads, so it may be called before
// the key is confirmed; withSudo also tries sudo, which leaves a log line there.
func (c *Conn) Facts(ctx context.Context, withSudo bool) (*Facts, error) {
	arg := ""
	if withSudo {
		arg = "sudo"
	}
	before := time.Now()
	r, err := c.run(ctx, Script{Body: factsScript, Args: []string{arg}, Timeout: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	return parseFacts(string(r.Stdout), before, time.Now())
}

func parseFacts(out string, before, after time.Time) (*Facts, error) {
	f := &Facts{OSRelease: map[string]string{}, Tools: map[string]bool{}, RoundTrip: after.Sub(before), UID: -1}
	for line := range strings.Lines(out) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		switch k {
		case "now":
			if s, err := strconv.ParseInt(v, 10, 64); err == nil {
				mid := before.Add(after.Sub(before) / 2)
				// The host's clock is read in whole seconds: half of one is the best guess.
				f.ClockOffset = time.Unix(s, 5e8).Sub(mid)
			}
		case "system":
			f.System = v
		case "hardware":
			f.Hardware = v
		case "host":
			f.HostName = v
		case "uid":
			if n, err := strconv.Atoi(v); err == nil {
				f.UID = n
			}
		case "user":
			f.User = v
		case "home":
			f.Home = v
		case "shell":
			f.Shell = v
		case "datahome":
			f.DataHome = v
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
		case "free":
			f.FreeKiB, _ = strconv.ParseInt(v, 10, 64)
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
