package mux

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/fault"
)

// Options say which server is meant.
type Options struct {
	Program string // fleet-host
	Runtime string // the person's directory for sockets
	// World is everything else that a server takes from its environment; those
	// of different worlds are different servers.
	World []string

	// Private starts a server for this process alone, which ends with it.
	Private bool
	// MayStart allows a shared server to be started if none runs. Otherwise a
	// private one is.
	MayStart bool

	// Stderr is a private server's standard error, and takes what programs on
	// the way to a host write on theirs.
	Stderr  io.Writer
	Verbose bool         // passed on to a private server
	Note    func(string) // what the server says under -v; nil: nothing
}

// Socket is where the shared server listens.
func (o Options) Socket() string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{o.Program}, o.World...), "\x00")))
	return filepath.Join(o.Runtime, "mux-"+hex.EncodeToString(sum[:8])+".sock")
}

// LockOf is the lock file of a shared server's socket: it is held while a
// server is started, and by a server that takes its socket away.
func LockOf(socket string) string { return strings.TrimSuffix(socket, ".sock") + ".lock" }

// Open returns the server: the shared one that runs, else a new shared one if
// it may be started, else one of this process's own.
func Open(ctx context.Context, o Options) (*Server, error) {
	s := &Server{build: BuildOf(o.Program), note: o.Note, stderr: o.Stderr}
	if o.Private {
		return s, s.startPrivate(ctx, o)
	}
	s.socket = o.Socket()
	conn, err := connect(ctx, s.socket)
	switch {
	case err == nil:
		s.ready = conn
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !o.MayStart:
		return s, s.startPrivate(ctx, o)
	default:
		if s.ready, err = o.startShared(ctx, s.socket); err != nil {
			return nil, err
		}
	}
	if o.MayStart {
		s.again = func(ctx context.Context) (net.Conn, error) { return o.startShared(ctx, s.socket) }
		return s, nil
	}
	var instead sync.Mutex // held while a private one is started, by the first that needs it
	s.again = func(ctx context.Context) (net.Conn, error) {
		instead.Lock()
		defer instead.Unlock()
		if s.Shared() {
			if err := s.startPrivate(ctx, o); err != nil {
				return nil, err
			}
		}
		return connect(ctx, s.where())
	}
	return s, nil
}

// Running connects to the shared server if there is one; nil if there is none.
func Running(ctx context.Context, o Options) (*Server, error) {
	s := &Server{build: BuildOf(o.Program), socket: o.Socket()}
	conn, err := connect(ctx, s.socket)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	}
	s.ready = conn
	return s, err
}

const (
	// startTimeout bounds how long fleet-host may take to listen.
	startTimeout = 10 * time.Second
	// lockTimeout bounds how long another command may take to start it.
	lockTimeout = startTimeout + 5*time.Second
	// waitDelay bounds how long its standard error is read after it ended.
	waitDelay = time.Second
)

// Ready is what a server prints once it listens, or why it does not.
type Ready struct {
	Socket string `json:"socket,omitempty"`
	Error  string `json:"error,omitempty"`
}

// startShared starts a shared server unless another command was quicker:
// whoever holds the lock is the only one that may.
func (o Options) startShared(ctx context.Context, socket string) (net.Conn, error) {
	unlock, err := lock(ctx, LockOf(socket))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if conn, err := connect(ctx, socket); err == nil {
		return conn, nil
	}
	cmd := exec.Command(o.Program, "mux", "serve", "--shared", socket)
	cmd.Args[0] = "fleet-host"
	cmd.Dir = "/"                                        // it outlives whatever directory this is
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // and this terminal
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", o.Program, err)
	}
	r, err := ready(ctx, out)
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, err
	}
	cmd.Process.Release() // it is nobody's child from now on
	return connect(ctx, r.Socket)
}

// lock takes the lock file, waiting while another process has it.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the shared connections: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("cannot lock the shared connections: %w", err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, fault.New(fault.Unreachable, "mux", "another command has been starting fleet-host for %s", lockTimeout).
					WithHint("--no-mux goes without")
			}
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// ready reads what a server that starts says.
func ready(ctx context.Context, out io.Reader) (*Ready, error) {
	type said struct {
		b   []byte
		err error
	}
	got := make(chan said, 1)
	go func() { // ends with the first line, or with the server
		b, err := bufio.NewReaderSize(io.LimitReader(out, MaxMessage), 4096).ReadBytes('\n')
		got <- said{b, err}
	}()
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case l := <-got:
		var r Ready
		switch {
		case l.err != nil || json.Unmarshal(l.b, &r) != nil:
			return nil, errors.New("cannot start fleet-host: it ended before it listened")
		case r.Socket == "":
			return nil, fmt.Errorf("cannot start fleet-host: %s", r.Error)
		}
		return &r, nil
	case <-timer.C:
		return nil, errors.New("cannot start fleet-host: it does not listen")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// private is a fleet-host that serves this process alone: it ends when its
// standard input does, which this process holds.
type private struct {
	cmd   *exec.Cmd
	death io.Closer
	once  sync.Once
}

func (s *Server) startPrivate(ctx context.Context, o Options) error {
	args := []string{"mux", "serve"}
	if o.Verbose {
		args = append(args, "--verbose")
	}
	cmd := exec.Command(o.Program, args...)
	cmd.Args[0] = "fleet-host"
	cmd.Stderr = o.Stderr
	death, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// A Ctrl-C at the terminal is for the command; it decides what becomes of
	// the connection.
	detach(cmd)
	// What it started may hold its standard error a little longer; that is no
	// reason to wait for ever.
	cmd.WaitDelay = waitDelay
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start %s: %w", o.Program, err)
	}
	p := &private{cmd: cmd, death: death}
	r, err := ready(ctx, out)
	if err != nil {
		p.close()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.socket, s.own = r.Socket, p
	return nil
}

func (p *private) close() error {
	p.once.Do(func() {
		p.death.Close()
		done := make(chan struct{})
		go func() { p.cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(3 * time.Second):
			p.cmd.Process.Kill()
			<-done
		}
	})
	return nil
}
