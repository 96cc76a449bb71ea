// Package mux is the front's way to machines: a fleet-host process that owns
// the SSH connections and listens on a private UNIX socket. A client connects,
// says in one JSON line what it wants, reads one JSON line of answer, and, for
// a stream, the connection then is the byte stream to the agent's socket.
//
// This package is the front's side and the agreement between the two. It links
// no SSH.
package mux

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// What a client may ask for.
const (
	OpStream  = "stream"  // a stream to the agent's API socket
	OpToken   = "token"   // an API token
	OpControl = "control" // run `agentd start` or `agentd stop` on the machine
)

// MaxLine bounds a hello and an answer, in bytes.
const MaxLine = 256 << 10

// Hello is a client's first line.
type Hello struct {
	Op      string   `json:"op"`
	Host    string   `json:"host"`
	SSHArgs []string `json:"ssh_args,omitempty"`
	Plane   string   `json:"plane"`
	Machine string   `json:"machine"`
	DataDir string   `json:"data_dir"`
	Runtime string   `json:"runtime_dir"`
	Renew   bool     `json:"renew,omitempty"` // with OpToken: the last one was refused
	Verb    string   `json:"verb,omitempty"`  // with OpControl
}

// Answer is the server's first line.
type Answer struct {
	Error   *wire.CLIErrorDetail `json:"error,omitempty"`
	Token   string               `json:"token,omitempty"`
	Status  *wire.AgentStatus    `json:"status,omitempty"`
	Warning string               `json:"warning,omitempty"`
}

// Ready is what a private server prints once it listens.
type Ready struct {
	Socket string `json:"socket"`
}

// Private is a fleet-host that serves this process alone and ends with it.
type Private struct {
	cmd    *exec.Cmd
	death  io.Closer
	socket string
	once   sync.Once
}

// waitDelay bounds how long its standard error is read after it ended.
const waitDelay = time.Second

// startTimeout bounds how long fleet-host may take to listen.
const startTimeout = 10 * time.Second

// Start starts a private server. Its standard error is the person's.
func Start(ctx context.Context, program string, args []string, stderr io.Writer) (*Private, error) {
	cmd := exec.Command(program, append([]string{"mux", "serve"}, args...)...)
	cmd.Args[0] = "fleet-host"
	cmd.Stderr = stderr
	death, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// A Ctrl-C at the terminal is for the command; it decides what becomes of
	// the connection.
	detach(cmd)
	// What it started may hold its standard error a little longer; that is no
	// reason to wait for ever.
	cmd.WaitDelay = waitDelay
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", program, err)
	}
	p := &Private{cmd: cmd, death: death}
	type line struct {
		b   []byte
		err error
	}
	got := make(chan line, 1)
	go func() { // ends with the first line, or with fleet-host
		b, err := bufio.NewReaderSize(io.LimitReader(out, MaxLine), 4096).ReadBytes('\n')
		got <- line{b, err}
	}()
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case l := <-got:
		var r Ready
		if l.err != nil || json.Unmarshal(l.b, &r) != nil || r.Socket == "" {
			p.Close()
			return nil, errors.New("cannot start fleet-host: it ended before it listened")
		}
		p.socket = r.Socket
		return p, nil
	case <-timer.C:
		err = errors.New("cannot start fleet-host: it does not listen")
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.Close()
	return nil, err
}

// Close ends the server and everything that goes through it.
func (p *Private) Close() error {
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

// Do sends a hello and returns the answer, with the connection for OpStream.
// A refusal comes back as the fault that the server had.
func (p *Private) Do(ctx context.Context, h Hello) (net.Conn, *Answer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", p.socket)
	if err != nil {
		return nil, nil, fault.New(fault.Unreachable, "mux", "cannot reach fleet-host: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	a, err := exchange(conn, h)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, err
	}
	return conn, a, nil
}

func exchange(conn net.Conn, h Hello) (*Answer, error) {
	b, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(append(b, '\n')); err != nil {
		return nil, fault.New(fault.Unreachable, "mux", "cannot reach fleet-host: %w", err)
	}
	line, err := ReadLine(conn)
	if err != nil {
		return nil, fault.New(fault.Unreachable, "mux", "fleet-host gave no answer: %w", err)
	}
	var a Answer
	if err := json.Unmarshal(line, &a); err != nil {
		return nil, fault.New(fault.Unreachable, "mux", "fleet-host gave a garbled answer")
	}
	if e := a.Error; e != nil {
		return nil, &fault.Error{Code: e.Code, Exit: e.Exit, Msg: e.Message, Hint: e.Hint}
	}
	return &a, nil
}

// ReadLine reads up to a line break and not one byte more: what follows is the
// stream's.
func ReadLine(r io.Reader) ([]byte, error) {
	var line []byte
	var b [1]byte
	for len(line) < MaxLine {
		n, err := r.Read(b[:])
		if n == 1 {
			if b[0] == '\n' {
				return line, nil
			}
			line = append(line, b[0])
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, errors.New("the line is too long")
}

// Token asks for an API token.
func (p *Private) Token(ctx context.Context, h Hello, renew bool) (secret.Text, string, error) {
	h.Op, h.Renew = OpToken, renew
	conn, a, err := p.Do(ctx, h)
	if err != nil {
		return secret.Text{}, "", err
	}
	return secret.Of(a.Token), a.Warning, conn.Close()
}

// Exit is the wire form of an error.
func Exit(err error) *wire.CLIErrorDetail {
	f := fault.Of(err)
	return &wire.CLIErrorDetail{Code: f.Code, Message: f.Msg, Hint: f.Hint, Exit: f.Exit}
}

// Executable finds fleet-host.
func Executable() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find fleet's own directory: %w", err)
	}
	return hostProgram(self)
}
