package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"
)

// process runs one plugin for go-plugin. It differs from go-plugin's own runner
// in what it gives the plugin as standard input, in that it ends the whole
// process group, and in that nothing waits for pipes that a lost descendant
// keeps open.
type process struct {
	cmd  *exec.Cmd
	name string

	stdin          *os.File // our end of the pipe whose closing means "the host is gone"
	stdout, stderr *os.File // our ends
	theirs         []*os.File

	exited chan struct{} // closed once the process is gone and its group killed
	state  error         // of the exit; read after exited

	mu     sync.Mutex
	pid    int  // 0 before it started
	killed bool // Kill came, perhaps before the start was through

	wrote atomic.Int64 // bytes read from standard output

	silent   chan struct{} // closed once standard error was read to its end
	silenced sync.Once
}

// drainTime is how long what a dead plugin wrote may take to be read.
const drainTime = 250 * time.Millisecond

// endTime is how long a plugin whose connection is lost may take to end, and
// its last words to be read.
const endTime = 2 * time.Second

func newProcess(name string, cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, name: name, exited: make(chan struct{}), silent: make(chan struct{})}
	var err error
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	inR, inW := pipe()
	outR, outW := pipe()
	errR, errW := pipe()
	p.stdin, p.stdout, p.stderr, p.theirs = inW, outR, errR, []*os.File{inR, outW, errW}
	if err != nil {
		p.closeAll()
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
	// A session of its own is also a process group of its own, and has no
	// terminal: nothing that a plugin starts can ask a person there.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	dieWithParent(cmd.SysProcAttr)
	return p, nil
}

func (p *process) closeAll() {
	for _, f := range append(p.theirs, p.stdin, p.stdout, p.stderr) {
		if f != nil {
			f.Close()
		}
	}
}

// Start starts the process from a thread that stays for as long as it lives,
// since the kernel's signal about the parent is about that thread.
func (p *process) Start(context.Context) error {
	started := make(chan error, 1)
	go func() { // ends with the process, which Kill ends
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		for _, f := range p.theirs {
			f.Close()
		}
		if err == nil {
			p.mu.Lock()
			p.pid = p.cmd.Process.Pid
			if p.killed {
				_ = syscall.Kill(-p.pid, syscall.SIGKILL)
			}
			p.mu.Unlock()
		}
		started <- err
		if err == nil {
			p.wait()
		}
	}()
	err := <-started
	if err != nil {
		p.closeAll()
		p.state = err
		close(p.exited)
	}
	return err
}

// wait kills the group while its leader is dead but not yet reaped, so that the
// group's number cannot have been given to another. Where the system cannot
// wait so, the moment between is the best there is.
func (p *process) wait() {
	pid := p.cmd.Process.Pid
	unreaped := awaitExit(pid)
	if unreaped {
		_ = syscall.Kill(-pid, syscall.SIGKILL) // none left is fine
	}
	p.state = p.cmd.Wait()
	if !unreaped {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	close(p.exited)
	p.stdin.Close()
	time.AfterFunc(drainTime, func() {
		p.stdout.Close()
		p.stderr.Close()
	})
}

func (p *process) Wait(ctx context.Context) error {
	select {
	case <-p.exited:
		return p.state
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Kill ends the process group, now or as soon as it is there.
func (p *process) Kill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
	select {
	case <-p.exited: // the group is gone with it
	default:
		if p.pid != 0 {
			_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		}
	}
	return nil
}

func (p *process) started() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid != 0
}

func (p *process) Stdout() io.ReadCloser {
	return quiet{p.stdout, func(n int, _ error) { p.wrote.Add(int64(n)) }}
}

func (p *process) Stderr() io.ReadCloser {
	return quiet{p.stderr, func(_ int, err error) {
		if err != nil {
			p.silenced.Do(func() { close(p.silent) })
		}
	}}
}

func (p *process) Name() string { return p.name }

func (p *process) ID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return ""
	}
	return strconv.Itoa(p.pid)
}

// Diagnose has nothing to add: the catalog says what went wrong.
func (p *process) Diagnose(context.Context) string { return "" }

func (p *process) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

var _ runner.Runner = (*process)(nil)

// ended says how the process ended, or that it did not.
func (p *process) ended() string {
	select {
	case <-p.exited:
	default:
		return ""
	}
	var exit *exec.ExitError
	switch {
	case p.state == nil:
		return "exit status 0"
	case errors.As(p.state, &exit):
		return exit.Error()
	}
	return fmt.Sprint(p.state)
}

// quiet turns the closing of our own end into an ordinary end of file.
type quiet struct {
	f    *os.File
	read func(n int, err error) // told of every Read
}

func (q quiet) Read(b []byte) (int, error) {
	n, err := q.f.Read(b)
	if errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	q.read(n, err)
	return n, err
}

func (q quiet) Close() error { return q.f.Close() }
