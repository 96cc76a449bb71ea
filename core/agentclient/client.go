// Package agentclient speaks the agent's socket API over whatever connection
// it is given: a UNIX socket, an SSH channel, a helper's splice. It mints a
// token again once when one is no longer good, and follows a session over
// lost connections without losing or repeating a byte (see Attach).
//
// It knows nothing of SSH, links or how a token is minted.
package agentclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Dialer reaches one machine's agent.
type Dialer interface {
	// Dial opens a connection to agent.sock.
	Dial(ctx context.Context) (net.Conn, error)
	// Token returns a token of the agent's API. With renew the last one was
	// refused and another is to be minted.
	Token(ctx context.Context, renew bool) (secret.Text, error)
}

const (
	maxAnswer   = 16 << 20
	callTimeout = 60 * time.Second
)

// Client is safe for concurrent use.
type Client struct {
	dialer Dialer
	http   *http.Client
	tr     *http.Transport

	mu    sync.Mutex
	token secret.Text
}

// New makes a client; nothing is dialled yet.
func New(d Dialer) *Client {
	tr := &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return d.Dial(ctx) },
		MaxIdleConnsPerHost:   2,
		IdleConnTimeout:       time.Minute,
		ResponseHeaderTimeout: callTimeout,
		DisableCompression:    true,
	}
	return &Client{dialer: d, tr: tr, http: &http.Client{Transport: tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Close drops kept connections.
func (c *Client) Close() { c.tr.CloseIdleConnections() }

// Ready brings the agent within reach: what is asked next is on its way at once.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.currentToken(ctx, false)
	return err
}

// Error is a refusal of the agent.
type Error struct {
	Status int
	Detail wire.ErrorDetail
}

func (e *Error) Error() string {
	if e.Detail.Message != "" {
		return e.Detail.Message
	}
	return "the agent answers " + e.Detail.Code
}

// asFault gives a refusal its exit code.
func (e *Error) asFault() error {
	exit := fault.Failure
	switch e.Detail.Code {
	case wire.CodeNotFound, wire.CodeWorkspaceMissing, wire.CodeWatchGone:
		exit = fault.NotFound
	case wire.CodeWorkspaceBusy, wire.CodeWorkspaceFailed, wire.CodeToolMissing,
		wire.CodeDraining, wire.CodeConflict, wire.CodeForbidden, wire.CodeUnauthorized, wire.CodeSessionUnusable, wire.CodeBusy,
		wire.CodeExists, wire.CodeNoListener, wire.CodePrecondition, wire.CodeNotEmpty, wire.CodeNotAFile, wire.CodeNotADir, wire.CodeWatchLimit:
		exit = fault.Refused
	case wire.CodeBadRequest, wire.CodeTooLarge, wire.CodeNotJSON, wire.CodeBadRange:
		exit = fault.Usage
	}
	f := fault.New(exit, e.Detail.Code, "%w", e)
	f.Hint = e.Detail.Hint
	return f
}

// request makes one request and returns the answer with its body open. A 401
// mints another token, once. A connection that ends without an answer, as one
// that was opened before the agent restarted does, has the request made again,
// once, if that does no more than making it once.
func (c *Client) request(ctx context.Context, method, path string, in any, upgrade string) (*http.Response, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	repeatable := method == http.MethodGet
	switch r := in.(type) {
	case wire.SessionRequest:
		repeatable = r.ID != ""
	case wire.TreeRequest: // an attempt ends the one before
		repeatable = r.Op != wire.TreeLane
	case wire.WorkspaceRequest:
		repeatable = true // asked for again, it is the same one
	}
	mint, renewed, again := false, false, false
	for {
		tok, err := c.currentToken(ctx, mint)
		if err != nil {
			return nil, err
		}
		mint = false
		resp, err := c.send(ctx, method, path, tok, body, upgrade, patience(in))
		if err != nil {
			if repeatable && !again && ctx.Err() == nil && !errors.As(err, new(*fault.Error)) {
				again = true
				continue
			}
			return nil, unreached(ctx, err)
		}
		if resp.StatusCode < 300 {
			return resp, nil
		}
		refused := refusal(resp)
		if resp.StatusCode == http.StatusUnauthorized && !renewed {
			mint, renewed = true, true
			continue
		}
		return resp, refused.asFault()
	}
}

// unreached is the error of a request that got no answer.
func unreached(ctx context.Context, err error) error {
	var ue *url.Error // its words are of a URL that nobody typed
	if errors.As(err, &ue) {
		err = ue.Err
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, new(*fault.Error)):
		return err
	}
	return fault.New(fault.Unreachable, "agent_unreachable", "cannot reach the agent: %w", err)
}

// refusal reads an answer that is one.
func refusal(resp *http.Response) *Error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
	e := &Error{Status: resp.StatusCode}
	var doc wire.Error
	if json.Unmarshal(b, &doc) == nil {
		e.Detail = doc.Error
	}
	if e.Detail.Code == "" {
		e.Detail = wire.ErrorDetail{Code: wire.CodeInternal, Message: fmt.Sprintf("the agent answers with status %d", resp.StatusCode)}
	}
	return e
}

func (c *Client) send(ctx context.Context, method, path string, token secret.Text, body []byte, upgrade string, wait time.Duration) (*http.Response, error) {
	if upgrade != "" || wait > callTimeout {
		return c.ask(ctx, method, path, token, body, upgrade, wait)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token.Reveal())
	return c.http.Do(req)
}

func (c *Client) currentToken(ctx context.Context, renew bool) (secret.Text, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token.Empty() || renew {
		t, err := c.dialer.Token(ctx, renew)
		var f *fault.Error
		switch {
		case err == nil:
		case errors.As(err, &f) || ctx.Err() != nil:
			return secret.Text{}, err
		default:
			return secret.Text{}, fault.New(fault.Unreachable, "agent_unreachable", "cannot get a token of the agent: %w", err)
		}
		c.token = t
	}
	return c.token, nil
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience(in))
	defer cancel()
	resp, err := c.request(ctx, method, path, in, "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fault.New(fault.Unreachable, "agent_unreachable", "the agent's answer was cut short: %w", err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("cannot read the agent's answer: %w", err)
	}
	return nil
}

// Identity tells which row of which plane the agent confirmed last.
func (c *Client) Identity(ctx context.Context) (*wire.Identity, error) {
	var v wire.Identity
	return &v, c.call(ctx, http.MethodGet, wire.PathIdentity, nil, &v)
}

// Status tells how the agent is.
func (c *Client) Status(ctx context.Context) (*wire.AgentStatus, error) {
	var v wire.AgentStatus
	return &v, c.call(ctx, http.MethodGet, wire.PathStatus, nil, &v)
}

// Sessions lists the machine's sessions, running and ended.
func (c *Client) Sessions(ctx context.Context) (*wire.Sessions, error) {
	var v wire.Sessions
	return &v, c.call(ctx, http.MethodGet, wire.PathSessions, nil, &v)
}

// Session describes one session.
func (c *Client) Session(ctx context.Context, id string) (*wire.Session, error) {
	var v wire.Session
	return &v, c.call(ctx, http.MethodGet, sessionPath(id), nil, &v)
}

// Create starts a session that nobody attaches to yet.
func (c *Client) Create(ctx context.Context, req wire.SessionRequest) (*wire.Session, error) {
	if req.ID == "" {
		req.ID = wire.NewSessionID()
	}
	var v wire.Session
	return &v, c.call(ctx, http.MethodPost, wire.PathSessions, req, &v)
}

// Signal sends a signal, by name without SIG, to a session's process group.
func (c *Client) Signal(ctx context.Context, id, signal string) (*wire.Session, error) {
	var v wire.Session
	return &v, c.call(ctx, http.MethodPost, sessionPath(id)+"/signal", wire.SignalRequest{Signal: signal}, &v)
}

// Stop stops the agent for a person's reason, or, for wire.ReasonUpdate and
// wire.ReasonRestart, tells it why the stop that follows will come.
func (c *Client) Stop(ctx context.Context, reason string) (*wire.AgentStatus, error) {
	return c.deed(ctx, wire.PathStop, wire.StopRequest{Reason: reason})
}

// Start removes the latch of an agent that stayed up.
func (c *Client) Start(ctx context.Context) (*wire.AgentStatus, error) {
	return c.deed(ctx, wire.PathStart, nil)
}

// Restart makes the agent hand over to the program that is installed now.
func (c *Client) Restart(ctx context.Context) (*wire.AgentStatus, error) {
	return c.deed(ctx, wire.PathRestart, nil)
}

// Drain makes the machine take no new work, Undrain takes that back.
func (c *Client) Drain(ctx context.Context) (*wire.AgentStatus, error) {
	return c.deed(ctx, wire.PathDrain, nil)
}

// Undrain lets the machine take work again.
func (c *Client) Undrain(ctx context.Context) (*wire.AgentStatus, error) {
	return c.deed(ctx, wire.PathUndrain, nil)
}

// Probe runs the machine's probes now and returns what they found.
func (c *Client) Probe(ctx context.Context) (*wire.AgentStatus, error) {
	return c.deed(ctx, wire.PathProbe, nil)
}

func (c *Client) deed(ctx context.Context, path string, in any) (*wire.AgentStatus, error) {
	var v wire.AgentStatus
	return &v, c.call(ctx, http.MethodPost, path, in, &v)
}

// Logs writes the last n lines of the agent's log to w and, with follow, what
// comes after, until the context or the connection ends.
func (c *Client) Logs(ctx context.Context, n int, follow bool, w io.Writer) error {
	path := wire.PathLogs + "?n=" + strconv.Itoa(n)
	if follow {
		path += "&follow=1"
	}
	resp, err := c.request(ctx, http.MethodGet, path, nil, "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fault.New(fault.Unreachable, "agent_unreachable", "the log was cut short: %w", err)
	}
	return nil
}

func sessionPath(id string) string { return wire.PathSessions + "/" + url.PathEscape(id) }

// Stream is one connection to a session.
type Stream struct {
	Session string
	rw      io.ReadWriteCloser
	begun   bool // its first bytes went with the request
	*frame.Reader
}

// Write sends frames.
func (s *Stream) Write(b []byte) (int, error) { return s.rw.Write(b) }

// Close ends the connection, not the session.
func (s *Stream) Close() error { return s.rw.Close() }

// Open connects to a session's stream. The first frame to send is Attach.
func (c *Client) Open(ctx context.Context, id string) (*Stream, error) {
	return c.stream(ctx, http.MethodGet, sessionPath(id)+"/stream", nil)
}

// Exec starts a session and connects to its stream, in one round trip.
func (c *Client) Exec(ctx context.Context, req wire.SessionRequest) (*Stream, error) {
	req.Attached = true
	if req.ID == "" {
		req.ID = wire.NewSessionID()
	}
	return c.stream(ctx, http.MethodPost, wire.PathSessions, req)
}

func (c *Client) stream(ctx context.Context, method, path string, in any) (*Stream, error) {
	resp, err := c.upgrade(ctx, method, path, in, wire.UpgradeSession)
	if err != nil {
		return nil, err
	}
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		resp.Body.Close()
		return nil, errors.New("the agent did not upgrade the connection")
	}
	n, _ := strconv.Atoi(resp.Header.Get(wire.HeaderFirst))
	return &Stream{Session: resp.Header.Get(wire.HeaderSession), rw: rw, begun: n > 0, Reader: frame.NewReader(rw)}, nil
}

func (c *Client) upgrade(ctx context.Context, method, path string, in any, protocol string) (*http.Response, error) {
	resp, err := c.request(ctx, method, path, in, protocol)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body.Close()
		return nil, errors.New("the agent did not upgrade the connection")
	}
	return resp, err
}
