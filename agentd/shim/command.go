package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// After the command has ended, whatever it left running may still hold its
// output open. What such processes write is taken until they were silent for
// idleAfterExit, and not longer than maxAfterExit.
const (
	idleAfterExit = time.Second
	maxAfterExit  = 10 * time.Second
)

// command is the running command with its ends of pipes or terminal.
type command struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser // nil: /dev/null
	tty   *os.File
	outs  []*os.File // read ends, stdout first

	mu     sync.Mutex
	reaped bool
}

// startError is why the command could not be started, as a shell would say it.
func startError(err error) wire.SessionExit {
	e := wire.SessionExit{Code: 126, Error: err.Error()}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		e.Code = 127
	}
	return e
}

func start(c *Config) (*command, error) {
	path := c.Path
	if path == "" {
		var err error
		if path, err = lookPath(c.Argv[0], c.Cwd, c.Env); err != nil {
			return nil, err
		}
	}
	if st, err := os.Stat(c.Cwd); err != nil {
		return nil, fmt.Errorf("cannot enter directory: %w", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("cannot enter directory: %s is not one", c.Cwd)
	}
	cmd := &exec.Cmd{Path: path, Args: c.Argv, Env: c.Env, Dir: c.Cwd}
	if c.PTY != nil {
		size := &pty.Winsize{Rows: c.PTY.Rows, Cols: c.PTY.Cols}
		made, err := pty.StartWithAttrs(cmd, size, &syscall.SysProcAttr{Setsid: true, Setctty: true})
		if err != nil {
			return nil, err
		}
		tty, err := pollable(made)
		if err != nil {
			cmd.Process.Kill()
			cmd.Wait()
			return nil, err
		}
		return &command{cmd: cmd, stdin: tty, tty: tty, outs: []*os.File{tty}}, nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out := &command{cmd: cmd}
	var theirs []*os.File
	fail := func(err error) (*command, error) {
		for _, f := range append(theirs, out.outs...) {
			f.Close()
		}
		if out.stdin != nil {
			out.stdin.Close()
		}
		return nil, err
	}
	for _, w := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		r, wr, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		out.outs, theirs = append(out.outs, r), append(theirs, wr)
		*w = wr
	}
	if c.Stdin {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		cmd.Stdin, out.stdin, theirs = r, w, append(theirs, r)
	}
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	for _, f := range theirs {
		f.Close()
	}
	return out, nil
}

// pollable is a terminal whose reads and writes end when it is closed: as it is
// made they block, and a job that outlives the command would hold them for ever.
// It takes the file over.
func pollable(tty *os.File) (*os.File, error) {
	defer tty.Close()
	fd, err := unix.FcntlInt(tty.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), tty.Name()), nil
}

// lookPath finds a program the way the command's own shell would: by the
// command's PATH, relative names from its directory.
func lookPath(name, cwd string, env []string) (string, error) {
	check := func(p string) error {
		st, err := os.Stat(p)
		if err != nil {
			return err
		}
		if st.IsDir() {
			return fmt.Errorf("%s: is a directory", name)
		}
		if unix.Access(p, unix.X_OK) != nil {
			return fmt.Errorf("%s: %w", name, fs.ErrPermission)
		}
		return nil
	}
	abs := func(p string) string {
		if !filepath.IsAbs(p) {
			p = filepath.Join(cwd, p)
		}
		return p
	}
	if strings.Contains(name, "/") {
		if err := check(abs(name)); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
			}
			return "", err
		}
		return abs(name), nil
	}
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		p := filepath.Join(abs(dir), name)
		err := check(p)
		if err == nil {
			return p, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// wait reaps the command and says how it ended.
func (c *command) wait() wire.SessionExit {
	awaitExit(c.cmd.Process.Pid)
	c.mu.Lock()
	c.reaped = true
	err := c.cmd.Wait()
	c.mu.Unlock()
	e := wire.SessionExit{At: wire.Time{Time: time.Now()}}
	st := c.cmd.ProcessState
	if st == nil {
		e.Code, e.Error = 255, err.Error()
		return e
	}
	ws := st.Sys().(syscall.WaitStatus)
	switch {
	case ws.Signaled():
		e.Code = 128 + int(ws.Signal())
		e.Signal = strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")
		e.Core = ws.CoreDump()
	default:
		e.Code = ws.ExitStatus()
	}
	e.UserS, e.SystemS = st.UserTime().Seconds(), st.SystemTime().Seconds()
	if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
		e.MaxRSS = int64(ru.Maxrss)
		if runtime.GOOS != "darwin" {
			e.MaxRSS *= 1024 // kilobytes everywhere but there
		}
	}
	return e
}

var errEnded = errors.New("the command has ended")

// signal sends a signal, by name without SIG, to the command's process group.
func (c *command) signal(name string) error {
	num := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if num == 0 {
		return fmt.Errorf("no signal is named %q", name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return errEnded
	}
	// The command leads its own process group; right after the start it may
	// not have become the leader yet.
	err := unix.Kill(-c.cmd.Process.Pid, num)
	if errors.Is(err, unix.ESRCH) {
		err = unix.Kill(c.cmd.Process.Pid, num)
	}
	return err
}

// closeOutputs ends reading from what the command left behind, and what waits
// to be written to its terminal.
func (c *command) closeOutputs() {
	for _, f := range c.outs {
		f.Close()
	}
}

func (c *command) resize(rows, cols uint16) {
	if c.tty == nil || rows == 0 || cols == 0 {
		return
	}
	if raw, err := c.tty.SyscallConn(); err == nil { // pty.Setsize would have it block
		raw.Control(func(fd uintptr) {
			unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
		})
	}
}
