// Package account tells whose agent this is - name, home, shell - and builds
// the clean environment that a session starts with. It knows nothing of
// sessions.
package account

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Account is one row of the account database.
type Account struct {
	Name  string
	UID   int
	Home  string
	Shell string
}

// Current finds the account of this process: in /etc/passwd, then through
// getent (directory services) or dscl, then from the environment.
func Current(ctx context.Context) Account {
	uid := os.Getuid()
	if f, err := os.Open("/etc/passwd"); err == nil {
		a, ok := parse(f, uid)
		f.Close()
		if ok {
			return a
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "getent", "passwd", strconv.Itoa(uid)).Output(); err == nil {
		if a, ok := parse(bytes.NewReader(out), uid); ok {
			return a
		}
	}
	a := Account{Name: os.Getenv("USER"), UID: uid, Home: os.Getenv("HOME"), Shell: os.Getenv("SHELL")}
	if a.Name == "" {
		a.Name = os.Getenv("LOGNAME")
	}
	if runtime.GOOS == "darwin" && a.Name != "" {
		out, err := exec.CommandContext(ctx, "dscl", ".", "-read", "/Users/"+a.Name, "UserShell").Output()
		if _, shell, ok := strings.Cut(string(out), ":"); err == nil && ok {
			a.Shell = strings.TrimSpace(shell)
		}
	}
	if a.Name == "" {
		a.Name = strconv.Itoa(uid)
	}
	if a.Home == "" {
		a.Home = "/"
	}
	if a.Shell == "" {
		a.Shell = "/bin/sh"
	}
	return a
}

// parse reads passwd(5) lines for uid.
func parse(r io.Reader, uid int) (Account, bool) {
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Split(sc.Text(), ":")
		if len(f) < 7 || f[2] != strconv.Itoa(uid) {
			continue
		}
		a := Account{Name: f[0], UID: uid, Home: f[5], Shell: f[6]}
		if a.Home == "" {
			a.Home = "/"
		}
		if a.Shell == "" {
			a.Shell = "/bin/sh"
		}
		return a, true
	}
	return Account{}, false
}

// inherited are the variables that pass from agentd's own environment.
var inherited = []string{"LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_TIME", "LC_NUMERIC", "LC_COLLATE", "TZ"}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ is the environment of a session before the caller's additions:
// what a login gives, nothing of what the service manager gave agentd.
func (a Account) Environ(getenv func(string) string) []string {
	path := getenv("PATH")
	if path == "" {
		path = defaultPath
	}
	env := []string{"HOME=" + a.Home, "USER=" + a.Name, "LOGNAME=" + a.Name, "SHELL=" + a.Shell, "PATH=" + path}
	for _, k := range inherited {
		if v := getenv(k); v != "" {
			env = append(env, k+"="+v)
		}
	}
	if getenv("LANG") == "" && getenv("LC_ALL") == "" && runtime.GOOS != "darwin" {
		env = append(env, "LANG=C.UTF-8")
	}
	if dir := getenv("TMPDIR"); dir != "" && usableTemp(dir) {
		env = append(env, "TMPDIR="+dir)
	}
	// A user's own runtime directory, where there is one, whatever scope the
	// service has: systemctl --user and D-Bus need it.
	if runtime.GOOS == "linux" {
		dir := "/run/user/" + strconv.Itoa(a.UID)
		if owned(dir, a.UID) {
			env = append(env, "XDG_RUNTIME_DIR="+dir)
			if owned(dir+"/bus", a.UID) {
				env = append(env, "DBUS_SESSION_BUS_ADDRESS=unix:path="+dir+"/bus")
			}
		}
	}
	return env
}

// usableTemp tells whether a directory for temporary files is there and ours
// to write to. One that a service manager made private would vanish with it.
func usableTemp(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && st.IsDir() && st.Mode().Perm()&0o200 != 0 && !strings.Contains(dir, "systemd-private-")
}

func owned(path string, uid int) bool {
	st, err := os.Lstat(path)
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == uid
}
