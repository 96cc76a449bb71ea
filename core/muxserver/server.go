// Package muxserver is the side of package mux that owns SSH connections. Each
// destination is dialled once; every stream is a channel on that connection.
// Before the first stream to a machine, and again when its connection was
// dialled anew, the three-way match is made: the account that SSH
// authenticated, the pinned host key, and the row that the plane gave the
// agent's credential (R5). Tokens are kept in memory and dropped with the
// connection.
package muxserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/reach"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// Connect dials a destination whose host key is pinned.
type Connect func(ctx context.Context, host string, f sshconfig.Flags) (*sshconn.Conn, error)

// Server answers clients. Make one with New.
type Server struct {
	connect Connect
	notef   func(string, ...any)
	outcome func(h mux.Hello, err error) // told how a dial ended; may be nil

	mu    sync.Mutex
	lines map[string]*line
}

// New makes a server.
func New(connect Connect, notef func(string, ...any), outcome func(mux.Hello, error)) *Server {
	return &Server{connect: connect, notef: notef, outcome: outcome, lines: map[string]*line{}}
}

// line is the way to one machine: its connection, agent and token. Its mutex
// makes those who come while it is dialled wait for that dial and share what
// came of it.
type line struct {
	mu      sync.Mutex
	conn    *sshconn.Conn
	dead    <-chan struct{}
	agent   *reach.Agent
	token   secret.Text
	warning string
}

const (
	helloTimeout = 10 * time.Second
	// maxClients bounds how many clients are served at once.
	maxClients = 512
)

// Serve answers clients until the context ends, then closes every connection
// and waits for what it started.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxClients)
	var err error
	for {
		var c net.Conn
		if c, err = l.Accept(); err != nil {
			break
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer c.Close()
			end := context.AfterFunc(ctx, func() { c.Close() })
			defer end()
			s.client(ctx, c)
		})
	}
	s.mu.Lock()
	for _, l := range s.lines {
		l.mu.Lock()
		if l.conn != nil {
			l.conn.Close()
		}
		l.mu.Unlock()
	}
	s.mu.Unlock()
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) client(ctx context.Context, c net.Conn) {
	c.SetDeadline(time.Now().Add(helloTimeout))
	b, err := mux.ReadLine(c)
	if err != nil {
		return
	}
	var h mux.Hello
	if err := json.Unmarshal(b, &h); err != nil {
		s.answer(c, mux.Answer{Error: mux.Exit(fault.Usagef("garbled hello"))})
		return
	}
	c.SetDeadline(time.Time{})
	l := s.line(h)
	switch h.Op {
	case mux.OpStream:
		s.stream(ctx, c, l, h)
	case mux.OpToken:
		tok, warning, err := s.tokenOf(ctx, l, h)
		s.answer(c, mux.Answer{Token: tok.Reveal(), Warning: warning, Error: exitOf(err)})
	case mux.OpControl:
		st, err := s.control(ctx, l, h)
		s.answer(c, mux.Answer{Status: st, Error: exitOf(err)})
	default:
		s.answer(c, mux.Answer{Error: mux.Exit(fault.Usagef("unknown request %q", h.Op))})
	}
}

func exitOf(err error) *wire.CLIErrorDetail {
	if err == nil {
		return nil
	}
	return mux.Exit(err)
}

func (s *Server) answer(c net.Conn, a mux.Answer) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = c.Write(append(b, '\n'))
	return err
}

// line finds or makes the way to a machine. Everything that makes one way
// different from another is in its key.
func (s *Server) line(h mux.Hello) *line {
	key := strings.Join(append([]string{h.Plane, h.Machine, h.Host, h.DataDir, h.Runtime}, h.SSHArgs...), "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[key]
	if l == nil {
		l = &line{}
		s.lines[key] = l
	}
	return l
}

// up returns a live connection, dialling if there is none.
func (s *Server) up(ctx context.Context, l *line, h mux.Hello) error {
	if l.conn != nil {
		select {
		case <-l.dead:
			l.conn.Close()
			l.conn = nil
		default:
			return nil
		}
	}
	flags, err := sshconfig.FlagsOf(h.SSHArgs)
	if err != nil {
		return err
	}
	conn, err := s.connect(ctx, h.Host, flags)
	if s.outcome != nil {
		s.outcome(h, err)
	}
	if err != nil {
		return err
	}
	l.conn, l.dead, l.token, l.warning = conn, conn.Done(), secret.Text{}, ""
	l.agent = reach.New(conn, place.Dirs{Data: h.DataDir, Runtime: h.Runtime}, s.notef)
	return nil
}

// matched makes sure that the line is up and leads to the machine that was meant.
func (s *Server) matched(ctx context.Context, l *line, h mux.Hello, renew bool) error {
	if err := s.up(ctx, l, h); err != nil {
		return err
	}
	if !l.token.Empty() && !renew {
		return nil
	}
	tok, err := l.agent.Mint(ctx, "")
	if err != nil {
		return err
	}
	client := agentclient.New(minted{l.agent, tok})
	defer client.Close()
	id, err := client.Identity(ctx)
	if err != nil {
		return err
	}
	if err := install.Match(*id, h.Machine, -1); err != nil {
		return err
	}
	l.warning = ""
	if !id.Row.Fresh {
		l.warning = fmt.Sprintf("the machine last heard from the plane %s ago; its row of then stands", time.Duration(id.Row.AgeS*float64(time.Second)).Round(time.Second))
	}
	l.token = tok
	return nil
}

// minted reaches an agent with a token that was just minted.
type minted struct {
	*reach.Agent
	token secret.Text
}

func (m minted) Token(context.Context, bool) (secret.Text, error) { return m.token, nil }

func (s *Server) tokenOf(ctx context.Context, l *line, h mux.Hello) (secret.Text, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := s.matched(ctx, l, h, h.Renew); err != nil {
		return secret.Text{}, "", err
	}
	return l.token, l.warning, nil
}

func (s *Server) stream(ctx context.Context, c net.Conn, l *line, h mux.Hello) {
	l.mu.Lock()
	err := s.matched(ctx, l, h, false)
	agent := l.agent
	l.mu.Unlock()
	var far net.Conn
	if err == nil {
		far, err = agent.Dial(ctx)
	}
	if err != nil {
		s.answer(c, mux.Answer{Error: mux.Exit(err)})
		return
	}
	defer far.Close()
	if s.answer(c, mux.Answer{}) == nil {
		splice(c, far)
	}
}

// splice copies both ways until both have ended, passing half-closes on.
func splice(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil && !errors.Is(err, io.EOF) {
			to.Close()
			from.Close()
			return
		}
		if h, ok := to.(interface{ CloseWrite() error }); ok {
			h.CloseWrite()
		} else {
			to.Close()
		}
	}
	wg.Go(func() { one(a, b) })
	one(b, a)
	wg.Wait()
}

// control runs agentd start or stop on the machine, for when no agent answers.
func (s *Server) control(ctx context.Context, l *line, h mux.Hello) (*wire.AgentStatus, error) {
	if h.Verb != "start" && h.Verb != "stop" {
		return nil, fault.Usagef("unknown verb %q", h.Verb)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := s.up(ctx, l, h); err != nil {
		return nil, err
	}
	r, err := l.conn.Run(ctx, sshconn.Script{Args: []string{h.DataDir, h.Verb}, Body: `
[ -x "$1/current/agentd" ] || exit 94
exec "$1/current/agentd" "$2" --data "$1" --json`})
	if err != nil {
		return nil, err
	}
	switch r.Exit {
	case 0:
	case 94:
		return nil, fault.New(fault.NotFound, "not_installed", "no agent is installed at %s", h.Host).WithHint("fleet install %s", h.Host)
	default:
		return nil, remoteError(r)
	}
	var st wire.AgentStatus
	if err := json.Unmarshal(r.Stdout, &st); err != nil {
		return nil, fmt.Errorf("cannot read the answer of agentd %s: %w", h.Verb, err)
	}
	l.token = secret.Text{} // a new agent has other tokens
	return &st, nil
}

// remoteError is the error that agentd printed under --json, or its words.
func remoteError(r *sshconn.Result) error {
	var doc wire.CLIError
	for line := range strings.Lines(r.Stderr) {
		if json.Unmarshal([]byte(line), &doc) == nil && doc.Schema == wire.SchemaError {
			e := doc.Error
			return &fault.Error{Code: e.Code, Exit: e.Exit, Msg: e.Message, Hint: e.Hint}
		}
	}
	return fault.New(fault.Failure, fault.CodeFailure, "%w", r.Err())
}
