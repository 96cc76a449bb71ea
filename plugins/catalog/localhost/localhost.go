// Package localhost is an sdk.Host of the very machine and account that the
// program runs as. agentd-probes gives it to probes; the conformance suites use
// it to run plugins against something real.
//
// The package must not know which plugin is asking.
package localhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/plugins/sdk"
)

// Host is this machine. Root, where set, stands in front of every path that is
// asked for and Path in place of PATH: a test's small machine inside this one.
type Host struct {
	F    sdk.Facts
	Root string
	Path string
	Say  func(message string) // for Progress; may be nil
}

// Gather finds out what can be found out about this machine and account.
func Gather() (sdk.Facts, error) {
	f := sdk.Facts{
		OS: runtime.GOOS, Arch: runtime.GOARCH, OSRelease: osRelease(), UID: uint32(os.Geteuid()),
		Privilege: sdk.PrivilegeNone, Phase: sdk.PhaseResident,
	}
	u, err := user.Current()
	if err != nil {
		return f, fmt.Errorf("cannot tell the account: %w", err)
	}
	f.User, f.Home = u.Username, u.HomeDir
	if f.UID == 0 {
		f.Privilege = sdk.PrivilegeRoot
	}
	if b, err := os.ReadFile("/proc/1/comm"); err == nil {
		f.Init = strings.TrimSpace(string(b))
	} else if f.OS == "darwin" {
		f.Init = "launchd"
	}
	return f, nil
}

func osRelease() map[string]string {
	for _, p := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		if b, err := os.ReadFile(p); err == nil {
			return ParseOSRelease(string(b))
		}
	}
	return nil
}

// ParseOSRelease reads os-release(5).
func ParseOSRelease(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || k == "" || strings.HasPrefix(k, "#") {
			continue
		}
		if n := len(v); n >= 2 && (v[0] == '"' || v[0] == '\'') && v[n-1] == v[0] {
			v = v[1 : n-1]
		}
		m[k] = strings.NewReplacer(`\"`, `"`, `\$`, `$`, "\\`", "`", `\\`, `\`).Replace(v)
	}
	return m
}

func (h *Host) at(p string) string { return path.Join(h.Root, p) }

// Facts implements sdk.Host, as do the methods below.
func (h *Host) Facts(context.Context) (sdk.Facts, error) { return h.F, nil }

// Statfs asks about the nearest existing parent if there is nothing at p.
func (h *Host) Statfs(_ context.Context, p string) (sdk.FSStat, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(h.at(p), &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOENT) || p == "/" {
			return sdk.FSStat{}, &fs.PathError{Op: "statfs", Path: p, Err: err}
		}
		p = path.Dir(p)
	}
	return fsStat(&st), nil
}

// Run runs a program in its own process group and ends that with the context.
func (h *Host) Run(ctx context.Context, c sdk.Command) (sdk.Result, error) {
	if c.AsRoot && os.Geteuid() != 0 {
		return sdk.Result{}, fmt.Errorf("%w: the account is not root", sdk.ErrDenied)
	}
	limit := sdk.ClampRead(c.Limit)
	program, err := h.lookPath(c.Argv[0])
	if err != nil {
		return sdk.Result{}, err
	}
	cmd := exec.CommandContext(ctx, program, c.Argv[1:]...)
	cmd.Args[0] = c.Argv[0]
	cmd.Dir = h.F.Home
	if h.Root != "" {
		cmd.Dir = h.Root
	}
	cmd.Env = h.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	if len(c.Stdin) > 0 {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	stdout, stderr := &capped{max: limit}, &capped{max: limit}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err = cmd.Run()
	if ctx.Err() != nil {
		return sdk.Result{}, fmt.Errorf("%s did not end in time: %w", c.Argv[0], ctx.Err())
	}
	r := sdk.Result{Stdout: stdout.b, Stderr: stderr.b, Truncated: stdout.over || stderr.over}
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // a descendant keeps the pipes; the program itself has ended
		return r, nil
	case errors.As(err, &exit):
		r.Exit = exit.ExitCode()
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			r.Exit = 128 + int(ws.Signal())
		}
		return r, nil
	}
	return sdk.Result{}, fmt.Errorf("cannot run %s: %w", c.Argv[0], err)
}

func (h *Host) lookPath(name string) (string, error) {
	if h.Path == "" || strings.Contains(name, "/") {
		p, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("no program %s: %w", name, fs.ErrNotExist)
		}
		return p, nil
	}
	for _, dir := range strings.Split(h.Path, ":") {
		p := path.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("no program %s: %w", name, fs.ErrNotExist)
}

// environ is the account's plain environment.
func (h *Host) environ() []string {
	env := []string{"HOME=" + h.F.Home, "USER=" + h.F.User, "LOGNAME=" + h.F.User, "LC_ALL=C"}
	p := h.Path
	if p == "" {
		p = os.Getenv("PATH")
	}
	return append(env, "PATH="+p)
}

// ReadFile reads the beginning of a file. A device or pipe is refused: reading
// one may never end.
func (h *Host) ReadFile(_ context.Context, p string, limit int) ([]byte, bool, error) {
	limit = sdk.ClampRead(limit)
	f, err := os.OpenFile(h.at(p), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, false, errors.Join(err, fmt.Errorf("%s is not a regular file", p))
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, false, err
	}
	if len(b) > limit {
		return b[:limit], true, nil
	}
	return b, false, nil
}

// Stat describes a file.
func (h *Host) Stat(_ context.Context, p string) (sdk.FileInfo, error) {
	st, err := os.Lstat(h.at(p))
	if err != nil {
		return sdk.FileInfo{}, err
	}
	i := sdk.FileInfo{Mode: st.Mode(), Size: st.Size(), Modified: st.ModTime()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		i.UID = sys.Uid
	}
	return i, nil
}

// Progress passes the message on.
func (h *Host) Progress(_ context.Context, message string) {
	if h.Say != nil {
		h.Say(message)
	}
}

// capped keeps the beginning of what is written to it.
type capped struct {
	b    []byte
	max  int
	over bool
}

func (c *capped) Write(p []byte) (int, error) {
	n := len(p)
	if room := c.max - len(c.b); n > room {
		c.over = true
		p = p[:room]
	}
	c.b = append(c.b, p...)
	return n, nil
}
