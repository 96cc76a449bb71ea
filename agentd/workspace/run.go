package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"fleet.example/fleet/core/wire"
)

const (
	// maxTail is how much of a program's last words are kept, in bytes.
	maxTail = 4 << 10
	// maxOut is how much of git's answer is read, in bytes.
	maxOut = 64 << 10
	// lastWords is how long the output of a program that has ended is read: what
	// it left behind may hold it open.
	lastWords = 2 * time.Second
)

// command is a program to run to its end.
type command struct {
	argv    []string
	env     []string
	dir     string
	umask   int
	timeout time.Duration
	answers bool // its standard output is read, apart from what it says besides
}

var errTimeout = errors.New("it took too long")

// run runs a program in a session of its own, which is ended when
// time is over. It returns the beginning of its standard output, if that was
// asked for, and the end of all that it said.
func run(ctx context.Context, c command) (out, tail string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTimeout)
	defer cancel()
	// A process has one umask, and this one's is its own.
	masked := []string{"-c", fmt.Sprintf(`umask %04o && exec "$@"`, c.umask), "sh"}
	cmd := exec.CommandContext(ctx, "/bin/sh", append(masked, c.argv...)...)
	cmd.Env, cmd.Dir = c.env, c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = lastWords
	var said tailWriter
	head := headWriter{}
	cmd.Stdout, cmd.Stderr = &said, &said // one pipe: its words stay in their order
	if c.answers {
		cmd.Stdout = both{&head, &said}
	}
	err = cmd.Run()
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it ended well, and left something behind
	case err != nil && errors.Is(context.Cause(ctx), errTimeout):
		err = fmt.Errorf("%w: more than %v", errTimeout, c.timeout)
	}
	return head.String(), said.String(), err
}

type headWriter struct{ bytes.Buffer }

func (h *headWriter) Write(p []byte) (int, error) {
	h.Buffer.Write(p[:min(len(p), maxOut-h.Len())])
	return len(p), nil
}

// tailWriter keeps the end of what is written to it. Both streams of a program
// are copied by goroutines of their own.
type tailWriter struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > maxTail {
		p = p[len(p)-maxTail:]
	}
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - maxTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return n, nil
}

func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.buf), "\uFFFD")
}

type both struct {
	head *headWriter
	tail *tailWriter
}

func (b both) Write(p []byte) (int, error) {
	b.head.Write(p)
	return b.tail.Write(p)
}

// script runs one of the workspace's scripts in it, and returns the end of what
// it said.
func (m *Manager) script(ctx context.Context, r *record, what, text string, env map[string]string) (tail string, err error) {
	if err := executable(r.Shell); err != nil {
		return "", &Error{Code: wire.CodeToolMissing, Msg: fmt.Sprintf("the workspace's shell cannot be run: %v", err)}
	}
	f, err := os.CreateTemp(filepath.Join(m.Dir, recordsDir), "."+what+"-*") // 0600 from the start
	if err != nil {
		return "", fmt.Errorf("cannot write the script: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("cannot write the script: %w", err)
	}
	_, tail, err = run(ctx, command{argv: []string{r.Shell, f.Name()}, env: m.environ(r, env), dir: r.Path, umask: m.Umask,
		timeout: time.Duration(r.TimeoutS * float64(time.Second))})
	return tail, err
}

// environ is what scripts and git get: a session's environment, what the caller
// passes, and the workspace's own variables.
func (m *Manager) environ(r *record, env map[string]string) []string {
	out := m.Account.Environ(m.Getenv)
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	repo, branch := "", ""
	if len(r.Repos) > 0 {
		repo, branch = r.Repos[0].URL, r.Repos[0].Branch
	}
	return append(out, "FLEET_WORKSPACE="+r.Name, "FLEET_WORKSPACE_PATH="+r.Path, "FLEET_REPO="+repo, "FLEET_BRANCH="+branch)
}

// variable is the last value of a variable.
func variable(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v
		}
	}
	return ""
}

// lookPath finds a program where an environment's PATH has it.
func lookPath(program string, env []string) (string, error) {
	path := variable(env, "PATH")
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if at := filepath.Join(dir, program); executable(at) == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("no %s in %s", program, path)
}

func executable(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s is no program", path)
	}
	return nil
}

// Inside is the directory that a session in the workspace begins in: the one
// that is asked for, seen from the workspace.
func Inside(w *wire.Workspace, dir string) string {
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(w.Path, dir)
}

// Variables adds what a session learns of its workspace.
func Variables(w *wire.Workspace, env map[string]string) map[string]string {
	out := maps.Clone(env)
	if out == nil {
		out = map[string]string{}
	}
	out["FLEET_WORKSPACE"], out["FLEET_WORKSPACE_PATH"] = w.Name, w.Path
	return out
}
