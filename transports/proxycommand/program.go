package proxycommand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// program is a proxy command that runs.
type program struct {
	command string
	cmd     *exec.Cmd
	exited  chan struct{} // closed when it has ended and was reaped
	state   error         // of the end; read after exited
	said    chan struct{} // closed when its standard error has ended

	mu   sync.Mutex
	last string // line on standard error
	hung bool   // this side ended it
}

// start starts the command with the person's shell, as ssh does, with one end
// of a socket pair as its standard input and output.
func (t *Transport) start(ctx context.Context, th sdk.TransportHost, proxy sdk.Proxy) (*program, *net.UnixConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	theirs, ours, err := pair()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a socket for the proxy command: %w", err)
	}
	defer theirs.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		ours.Close()
		return nil, nil, err
	}
	defer errW.Close()
	shell := shellOf(proxy.Environ)
	cmd := exec.Command(shell, "-c", "exec "+proxy.Command)
	cmd.Args[0] = shell
	cmd.Env, cmd.Dir = proxy.Environ, proxy.Dir
	if st, err := os.Stat(cmd.Dir); err != nil || !st.IsDir() {
		cmd.Dir = "/"
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, errW
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	dieWithParent(cmd.SysProcAttr)
	p := &program{command: proxy.Command, cmd: cmd, exited: make(chan struct{}), said: make(chan struct{})}
	if !t.add(p) {
		ours.Close()
		errR.Close()
		return nil, nil, net.ErrClosed
	}
	started := make(chan error, 1)
	go func() { // ends with the program; the kernel's signal is about this thread's death
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			started <- nil
			p.state = cmd.Wait()
		} else {
			p.state = err
			started <- err
		}
		close(p.exited)
	}()
	if err := <-started; err != nil {
		ours.Close()
		errR.Close()
		close(p.said)
		t.end(p)
		return nil, nil, fmt.Errorf("cannot start the shell %s for the proxy command: %w", shell, err)
	}
	go p.listen(th, errR) // ends with the program's standard error, or with the process
	return p, ours, nil
}

func shellOf(environ []string) string {
	shell := "/bin/sh"
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, "SHELL="); ok && v != "" {
			shell = v
		}
	}
	return shell
}

// pair makes the two ends of the stream.
func pair() (theirs *os.File, ours *net.UnixConn, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	theirs = os.NewFile(uintptr(fds[0]), "proxy command")
	own := os.NewFile(uintptr(fds[1]), "stream")
	defer own.Close()
	conn, err := net.FileConn(own)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return theirs, conn.(*net.UnixConn), nil
}

// connOf is the connection whose one descriptor came with a message.
func connOf(oob []byte) (net.Conn, error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, errors.New("it passed no descriptor")
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.New("it passed no descriptor")
	}
	syscall.CloseOnExec(fds[0])
	f := os.NewFile(uintptr(fds[0]), "passed")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("what it passed is no connected socket: %w", err)
	}
	return conn, nil
}

// maxLine bounds how much of a line is kept for an error, in bytes.
const maxLine = 300

// listen passes on what the program writes on standard error.
func (p *program) listen(th sdk.TransportHost, r *os.File) {
	defer close(p.said)
	defer r.Close()
	b := make([]byte, 4<<10)
	for {
		n, err := r.Read(b)
		if n > 0 {
			p.keep(b[:n])
			th.Output(context.Background(), bytes.Clone(b[:n]))
		}
		if err != nil {
			return
		}
	}
}

func (p *program) keep(b []byte) {
	lines := strings.FieldsFunc(string(bytes.ToValidUTF8(b, []byte("?"))), func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) == 0 {
		return
	}
	last := lines[len(lines)-1]
	if len(last) > maxLine {
		last = last[:maxLine] + "…"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = last
}

// after calls f with how the program ended, unless this side ended it.
func (p *program) after(f func(how string)) {
	go func() { // ends with the program, which Close ends
		<-p.exited
		p.mu.Lock()
		hung := p.hung
		p.mu.Unlock()
		if !hung {
			timer := time.NewTimer(endTime)
			defer timer.Stop()
			f(p.ended(timer.C))
		}
	}()
}

// ended says how a program that has ended did, and what it said last. Its last
// words are waited for until the time is up: what it started may hold its
// standard error for longer.
func (p *program) ended(until <-chan time.Time) string {
	select {
	case <-p.said:
	case <-until:
	}
	how := "exit status 0"
	if p.state != nil {
		how = p.state.Error()
	}
	return "ended: " + how + p.lastWords()
}

func (p *program) lastWords() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == "" {
		return ""
	}
	return fmt.Sprintf("; it last said %q", p.last)
}

// explain is the error for a program that gave no stream.
func (p *program) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// However the end of the stream was noticed, the end of the program is why.
	timer := time.NewTimer(endTime)
	defer timer.Stop()
	var words string
	select {
	case <-p.exited:
		words = p.ended(timer.C)
	case <-timer.C:
		if errors.Is(err, errEnded) || errors.Is(err, syscall.ECONNRESET) {
			err = errors.New("closed its standard output")
		}
		words = err.Error() + p.lastWords()
	}
	return &unreachable{fmt.Errorf("proxy command %q %s", p.command, words)}
}

// unreachable keeps an error's words and says what it means.
type unreachable struct{ error }

func (unreachable) Unwrap() error { return sdk.ErrUnreachable }

// hangUp ends the program as ssh does, and kills it if it does not end.
func (p *program) hangUp() {
	p.mu.Lock()
	p.hung = true
	p.mu.Unlock()
	select {
	case <-p.exited:
		return
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGHUP)
	timer := time.NewTimer(hangupTime)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}
