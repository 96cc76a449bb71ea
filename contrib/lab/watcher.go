//go:build linux

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// watchScript ignores the signals that reach a whole terminal or process group: the owner's end is what counts.
const watchScript = `trap '' INT TERM HUP QUIT; cat >/dev/null; exec sh "$1/teardown.sh" "$1" "$2"`

// watcher is a child process that waits at the end of a pipe. The pipe ends when the owner closes it or dies,
// whichever way, and then the watcher takes the lab down.
type watcher struct {
	dir, token string
	pipe       io.WriteCloser
	out        *os.File
	done       chan struct{}
	err        error
}

func startWatcher(dir, token string) (*watcher, error) {
	// The output goes to a file without a name: a pipe would keep `go test` waiting for a watcher at work.
	out, err := os.CreateTemp(dir, "watcher")
	if err != nil {
		return nil, fmt.Errorf("cannot start watcher: %w", err)
	}
	os.Remove(out.Name())
	cmd := exec.Command("sh", "-c", watchScript, "fleet-lab-watcher", dir, token)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start watcher: %w", err)
	}
	if err := cmd.Start(); err != nil {
		out.Close()
		return nil, fmt.Errorf("cannot start watcher: %w", err)
	}
	w := &watcher{dir: dir, token: token, pipe: pipe, out: out, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = cmd.Wait()
	}()
	return w, nil
}

// close ends the pipe and waits for the watcher's teardown. When the watcher itself was killed, the teardown is run
// here instead.
func (w *watcher) close(ctx context.Context) error {
	w.pipe.Close()
	select {
	case <-w.done:
	case <-ctx.Done():
		return fmt.Errorf("cannot take lab down: %w", context.Cause(ctx))
	}
	defer w.out.Close()
	if _, err := os.Stat(filepath.Join(w.dir, "token")); err == nil {
		return teardown(ctx, w.dir, w.token)
	}
	if _, err := w.out.Seek(0, io.SeekStart); err != nil {
		return err
	}
	said, err := io.ReadAll(w.out)
	if err != nil {
		return err
	}
	if said = bytes.TrimSpace(said); len(said) > 0 {
		return errors.New(string(said))
	}
	return w.err
}
