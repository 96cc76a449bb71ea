package muxserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/splice"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// asker is one client and what it asked for.
type asker struct {
	server *Server
	conn   net.Conn // nil: it is this process that asks
	own    *Own
	given  mux.Route // by this process
	hello  mux.Hello

	mu   sync.Mutex // of what is written
	done bool       // the final answer was written
}

// answer sends the final answer. Nothing may be written after it but a
// stream's bytes.
func (a *asker) answer(m mux.Answer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done = true
	return a.write(m)
}

// write sends a message to a client that takes it in time. The caller holds
// a.mu.
func (a *asker) write(m mux.Answer) error {
	a.conn.SetWriteDeadline(time.Now().Add(messageTimeout))
	defer a.conn.SetWriteDeadline(time.Time{})
	return mux.WriteMessage(a.conn, m)
}

// note tells the client's person something, if they want to hear it and are
// still waiting.
func (a *asker) note(format string, args ...any) {
	if a.conn == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hello.Verbose && !a.done {
		a.write(mux.Answer{Note: fmt.Sprintf(format, args...)})
	}
}

// await waits for a dial, and passes on what is said on the way.
func (a *asker) await(ctx context.Context, t *attempt) error {
	heard := int64(0)
	for {
		text, next, more := t.said.after(heard)
		heard = next
		a.say(text)
		if len(text) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		case <-t.done:
			text, _, _ := t.said.after(heard)
			a.say(text)
			return t.err
		}
	}
}

// say passes on what a program on the way wrote.
func (a *asker) say(text []byte) {
	if a.conn == nil {
		a.own.Stderr.Write(text)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hello.Hears && !a.done && len(text) > 0 {
		a.write(mux.Answer{Said: text})
	}
}

// route asks the client for the resolved way.
func (a *asker) route() (*sshconfig.Chain, error) {
	if a.conn == nil {
		return a.given(), nil
	}
	a.mu.Lock()
	err := a.write(mux.Answer{Need: true})
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	a.conn.SetReadDeadline(time.Now().Add(messageTimeout))
	defer a.conn.SetReadDeadline(time.Time{})
	var c sshconfig.Chain
	if err := mux.ReadMessage(a.conn, &c); err != nil {
		return nil, fmt.Errorf("cannot read the route: %w", err)
	}
	key, err := mux.KeyOf(&c)
	if err == nil && (c.Target == nil || key != a.hello.Key) {
		err = fault.Usagef("the route is not the one that was announced")
	}
	return &c, err
}

// watch ends ctx when the client goes away before it was answered. The client
// sends nothing while it waits; stop must be called before it may again.
func (a *asker) watch(ctx context.Context) (_ context.Context, stop func()) {
	if a.conn == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // ends when stop sets a deadline in the past, or with the client
		defer close(ended)
		var b [1]byte
		_, err := a.conn.Read(b[:])
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			cancel()
		}
	}()
	return ctx, func() {
		a.conn.SetReadDeadline(time.Unix(1, 0))
		<-ended
		a.conn.SetReadDeadline(time.Time{})
		cancel()
	}
}

// open brings the client's machine within reach.
func (a *asker) open(ctx context.Context, w *way) (*agent, error) {
	conn, err := a.server.up(ctx, w, a)
	if err != nil {
		return nil, err
	}
	return a.server.agent(w, conn, a.hello, a.note), nil
}

func (a *asker) stream(ctx context.Context) {
	w, err := a.server.way(a.hello)
	if err != nil {
		a.answer(mux.Answer{Error: mux.Exit(err)})
		return
	}
	defer w.leave()
	far, tok, warning, err := a.reachAgent(ctx, w)
	if err != nil {
		a.answer(mux.Answer{Error: mux.Exit(err)})
		return
	}
	defer far.Close()
	if a.answer(mux.Answer{Token: tok.Reveal(), Warning: warning}) == nil {
		splice.Conns(a.conn, far)
	}
}

func (a *asker) reachAgent(ctx context.Context, w *way) (far net.Conn, tok secret.Text, warning string, err error) {
	err = a.onAgent(ctx, w, func(g *agent) (err error) {
		if tok, warning, err = g.tokenOf(ctx, false); err == nil {
			far, err = g.dial(ctx, a.hello.Fresh)
		}
		return err
	})
	return far, tok, warning, err
}

// onAgent does something with the agent. When the connection ends under that,
// before anything was asked of the agent, it is the connection's affair and not
// the client's, and done once more.
func (a *asker) onAgent(ctx context.Context, w *way, do func(*agent) error) error {
	for try := 0; ; try++ {
		g, err := a.open(ctx, w)
		if err != nil {
			return err
		}
		if err = do(g); err == nil || try > 0 || !gone(g.conn) {
			return err
		}
	}
}

// gone reports whether a connection has ended.
func gone(c *sshconn.Conn) bool {
	select {
	case <-c.Done():
		return true
	case <-time.After(200 * time.Millisecond):
		return false
	}
}

func (a *asker) token(ctx context.Context) {
	w, err := a.server.way(a.hello)
	if err != nil {
		a.answer(mux.Answer{Error: mux.Exit(err)})
		return
	}
	defer w.leave()
	var tok secret.Text
	var warning string
	g, err := a.open(ctx, w)
	if err == nil {
		tok, warning, err = g.tokenOf(ctx, a.hello.Renew)
	}
	a.answer(mux.Answer{Token: tok.Reveal(), Warning: warning, Error: mux.Exit(err)})
}

// control runs agentd start or stop on the machine, for when no agent answers.
func (a *asker) control(ctx context.Context) {
	st, err := a.controlled(ctx)
	a.answer(mux.Answer{Status: st, Error: mux.Exit(err)})
}

func (a *asker) controlled(ctx context.Context) (*wire.AgentStatus, error) {
	h := a.hello
	if h.Verb != "start" && h.Verb != "stop" {
		return nil, fault.Usagef("unknown verb %q", h.Verb)
	}
	w, err := a.server.way(h)
	if err != nil {
		return nil, err
	}
	defer w.leave()
	conn, err := a.server.up(ctx, w, a)
	if err != nil {
		return nil, err
	}
	r, err := conn.Run(ctx, sshconn.Script{Args: []string{h.DataDir, h.Verb}, Body: `
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
