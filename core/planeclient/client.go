// Package planeclient speaks with a plane for a person or an automation token:
// one method for each of the plane's person endpoints. fleet and fleet-host use
// it. A machine's checks are agentd's own business and not in here.
//
// Every wait has a deadline and every answer a bound. Redirects are not
// followed: a plane never sends any, a captive portal does, and a session token
// must not travel on. What is no plane's answer is said to be none.
//
// The package makes no signatures and keeps no state; it links no SSH.
package planeclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// SystemRoots stands for the operating system's trust roots.
const SystemRoots = "system"

const (
	connectFor = 10 * time.Second
	headerFor  = 30 * time.Second
	requestFor = time.Minute
	listFor    = 10 * time.Minute

	maxAnswer = 4 << 20
	maxList   = 1 << 30
)

// Options of a Client.
type Options struct {
	URL      string      // in any spelling that wire.PlaneURL takes
	RootsPEM string      // PEM certificates, or SystemRoots or "" for the system's
	Token    secret.Text // a person's session or an automation token; may be empty
	Gate     secret.Text // the gate token, for a machine that enrols; may be empty
}

// Client speaks with one plane. It is safe for concurrent use.
type Client struct {
	url   string
	token secret.Text
	gate  secret.Text
	http  *http.Client
}

// New makes a client. It does not connect.
func New(o Options) (*Client, error) {
	u, err := wire.PlaneURL(o.URL)
	if err != nil {
		return nil, fault.Usagef("%q: %s", o.URL, err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS13}
	if o.RootsPEM != "" && o.RootsPEM != SystemRoots {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM([]byte(o.RootsPEM)) {
			return nil, errors.New("the plane's trust roots hold no certificate")
		}
	}
	return &Client{url: u, token: o.Token, gate: o.Gate, http: &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: connectFor, KeepAlive: 15 * time.Second}).DialContext,
			TLSClientConfig:        conf,
			TLSHandshakeTimeout:    connectFor,
			ResponseHeaderTimeout:  headerFor,
			IdleConnTimeout:        90 * time.Second,
			MaxIdleConnsPerHost:    128, // as many as a command on many machines works with
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// URL is the plane's URL in its one spelling: what a login signs.
func (c *Client) URL() string { return c.url }

// At is the same principal's client for another URL of the plane, with the same
// trust.
func (c *Client) At(plane string) (*Client, error) {
	u, err := wire.PlaneURL(plane)
	if err != nil {
		return nil, fault.Usagef("%q: %s", plane, err)
	}
	n := *c
	n.url = u
	return &n, nil
}

// Close lets kept connections go.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do sends a request and decodes the answer into out.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestFor)
	defer cancel()
	return c.send(ctx, method, path, in, out, maxAnswer)
}

func (c *Client) send(ctx context.Context, method, path string, in, out any, limit int64) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if !c.gate.Empty() {
		req.Header.Set(wire.HeaderGate, c.gate.Reveal())
	}
	if !c.token.Empty() {
		req.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	if !isJSON(resp) {
		return c.notAPlane(resp)
	}
	r := &io.LimitedReader{R: resp.Body, N: limit}
	if resp.StatusCode != http.StatusOK {
		var e wire.Error
		if err := json.NewDecoder(r).Decode(&e); err != nil || e.Error.Code == "" {
			return c.notAPlane(resp)
		}
		return c.refused(resp, e.Error)
	}
	if out == nil {
		io.Copy(io.Discard, r)
		return nil
	}
	if err := json.NewDecoder(r).Decode(out); err != nil {
		switch {
		case r.N <= 0:
			return fault.New(fault.Failure, wire.CodeTooLarge, "the plane's answer is larger than %d bytes", limit)
		case ctx.Err() != nil, errors.Is(err, io.ErrUnexpectedEOF), isNet(err):
			return c.unreachable(fmt.Errorf("the answer was cut off: %w", err))
		}
		return c.notAPlane(resp)
	}
	if !complete(out) {
		return fault.New(fault.Unreachable, "not_a_plane", "what answers at %s is no plane: its answer lacks what a plane's has", c.url).
			WithHint("a captive portal or a proxy may stand in between, or the plane is faulty; nothing was stored")
	}
	return nil
}

func isNet(err error) bool {
	var ne net.Error
	return errors.As(err, &ne)
}

func isJSON(r *http.Response) bool {
	t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(t) == "application/json"
}

// unreachable gives the cause in its own words.
func (c *Client) unreachable(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	e := fault.New(fault.Unreachable, "plane_unreachable", "cannot reach the plane %s: %w", c.url, err)
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		e.Code = "plane_untrusted"
		e.Hint = "the certificate does not come from this plane's root; something may stand in between, or log in again with --ca-pin"
	case errors.As(err, &host):
		e.Code = "plane_untrusted"
		e.Hint = "dial the plane by the URL that planed init was given"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		e.Code = "plane_untrusted"
		e.Hint = "compare this machine's clock with the plane's"
	}
	return e
}

// notAPlane is for an answer that no plane gives: a captive portal's page, a
// proxy's error, a redirect.
func (c *Client) notAPlane(resp *http.Response) error {
	what := resp.Header.Get("Content-Type")
	if what == "" {
		what = "no content type"
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		what = "a redirect"
	}
	return fault.New(fault.Unreachable, "not_a_plane", "what answers at %s is no plane: HTTP %d, %.80s", c.url, resp.StatusCode, what).
		WithHint("a captive portal or a proxy may stand in between; open a web page once, or ask whoever runs the network")
}

// DeletedError is in the chain of the refusal that a deleted machine's id gets.
type DeletedError struct{ Deleted wire.Deleted }

func (e *DeletedError) Error() string {
	d := e.Deleted
	name := d.Machine
	if d.Name != "" {
		name = d.Name + " (" + d.Machine + ")"
	}
	last := "its credential was never presented"
	if d.LastPresented != nil {
		last = "its credential was last presented at " + d.LastPresented.String()
	}
	return fmt.Sprintf("%s was deleted at %s by %s; %s", name, d.At, d.By, last)
}

// refused turns the plane's refusal into an error with the exit code that the
// command line promises.
func (c *Client) refused(resp *http.Response, d wire.ErrorDetail) error {
	msg := d.Message
	if msg == "" {
		msg = d.Code
	}
	e := &fault.Error{Code: d.Code, Msg: "the plane refuses: " + msg, Hint: d.Hint, Exit: fault.Failure}
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		e.Code, e.Exit = wire.CodeLoginRequired, fault.NeedPerson
		e.Msg = "the plane " + c.url + " does not know this session or token, or it has expired"
		e.Hint = "fleet login " + c.url
	case http.StatusNotFound:
		e.Exit, e.Msg = fault.NotFound, msg
	case http.StatusGone:
		e.Exit, e.Msg = fault.NotFound, msg
		if d.Deleted != nil {
			gone := &DeletedError{*d.Deleted}
			e.Msg, e.Err = gone.Error(), gone
		}
	case http.StatusForbidden, http.StatusConflict:
		e.Exit = fault.Refused
	case http.StatusBadRequest:
		e.Exit = fault.Usage
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		e.Exit = fault.Unreachable
		e.Msg = "the plane cannot answer now: " + msg
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 && e.Hint == "" {
			e.Hint = fmt.Sprintf("try again in %d seconds", s)
		}
	}
	return e
}

// Version asks which version the plane is. It needs no token.
func (c *Client) Version(ctx context.Context) (v wire.Version, err error) {
	err = c.do(ctx, "GET", wire.PathVersion, nil, &v)
	return v, err
}

// Challenge asks for a nonce to sign.
func (c *Client) Challenge(ctx context.Context) (a wire.ChallengeAnswer, err error) {
	err = c.do(ctx, "POST", wire.PathChallenge, nil, &a)
	return a, err
}

// Login opens a session with a signed challenge.
func (c *Client) Login(ctx context.Context, r wire.LoginRequest) (a wire.LoginAnswer, err error) {
	err = c.do(ctx, "POST", wire.PathLogin, r, &a)
	var f *fault.Error
	if errors.As(err, &f) && f.Code == wire.CodeLoginRequired {
		f.Code = wire.CodeUnauthorized
		f.Msg = "the plane " + c.url + " does not take this key"
		f.Hint = "ask an owner for an invitation and log in with --invite-file"
		if r.Invite != "" {
			f.Hint = "the invitation is unknown, expired or used already; ask for a new one"
		}
	}
	return a, err
}

// Logout ends the session that the client's token opened.
func (c *Client) Logout(ctx context.Context) error {
	return c.do(ctx, "POST", wire.PathLogout, nil, nil)
}

// Whoami says whom the client's token belongs to.
func (c *Client) Whoami(ctx context.Context) (w wire.Whoami, err error) {
	err = c.do(ctx, "GET", wire.PathWhoami, nil, &w)
	return w, err
}

// Admit admits an installation.
func (c *Client) Admit(ctx context.Context, r wire.AdmitRequest) (a wire.AdmitAnswer, err error) {
	err = c.do(ctx, "POST", wire.PathMachines, r, &a)
	return a, err
}

// Machines lists the machines that the filter selects, by name and then id.
func (c *Client) Machines(ctx context.Context, f wire.MachineFilter) (m wire.Machines, err error) {
	q := url.Values{}
	for k, v := range map[string]string{
		"match": f.Match, "selector": f.Selector, "presence": f.Presence,
		"lifecycle": f.Lifecycle, "blocker": f.Blocker, "agent_version": f.AgentVersion,
	} {
		if v != "" {
			q.Set(k, v)
		}
	}
	path := wire.PathMachines
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	ctx, cancel := context.WithTimeout(ctx, listFor)
	defer cancel()
	if err = c.send(ctx, "GET", path, nil, &m, maxList); err != nil {
		return m, err
	}
	slices.SortFunc(m.Machines, func(a, b wire.Machine) int {
		if n := strings.Compare(a.Name, b.Name); n != 0 {
			return n
		}
		return strings.Compare(a.ID, b.ID)
	})
	return m, nil
}

func machinePath(id string) string { return wire.PathMachines + "/" + url.PathEscape(id) }

// Machine shows one machine by its id. A deleted machine's id gives an error
// with a *DeletedError in its chain.
func (c *Client) Machine(ctx context.Context, id string) (m wire.Machine, err error) {
	err = c.do(ctx, "GET", machinePath(id), nil, &m)
	return m, err
}

// Rename gives the machine a name.
func (c *Client) Rename(ctx context.Context, id, name string) (m wire.Machine, err error) {
	err = c.do(ctx, "POST", machinePath(id)+"/rename", wire.RenameRequest{Name: name}, &m)
	return m, err
}

// Label sets and removes labels.
func (c *Client) Label(ctx context.Context, id string, r wire.LabelRequest) (m wire.Machine, err error) {
	err = c.do(ctx, "POST", machinePath(id)+"/labels", r, &m)
	return m, err
}

// Ask leaves a request for the machine: logs or rotate.
func (c *Client) Ask(ctx context.Context, id, kind string) (m wire.Machine, err error) {
	err = c.do(ctx, "POST", machinePath(id)+"/requests", wire.AskRequest{Kind: kind}, &m)
	return m, err
}

// AskToRotate asks the machine to rotate its credential, or joins a request
// that waits. With olderThan, a credential that was issued less than so long
// ago is left alone, and the answer then shows no request. kind is the kind of
// credential that it shall have then, or "" for the kind that it has.
func (c *Client) AskToRotate(ctx context.Context, id string, olderThan time.Duration, kind string) (m wire.Machine, err error) {
	err = c.do(ctx, "POST", machinePath(id)+"/requests", wire.AskRequest{Kind: wire.ScopeRotate, OlderThanS: olderThan.Seconds(), CredentialKind: kind}, &m)
	return m, err
}

// MaterialRotation is the rotation of one kind of material that is under way, or
// the last one.
func (c *Client) MaterialRotation(ctx context.Context, kind string) (r wire.MaterialRotation, err error) {
	err = c.do(ctx, "GET", wire.PathRotations+"/"+url.PathEscape(kind), nil, &r)
	return r, err
}

// SteerRotation begins, changes or takes back a rotation of material.
func (c *Client) SteerRotation(ctx context.Context, kind string, req wire.RotationRequest) (r wire.MaterialRotation, err error) {
	err = c.do(ctx, "POST", wire.PathRotations+"/"+url.PathEscape(kind), req, &r)
	return r, err
}

// Delete deletes the machine: its credential is dead, its installation free.
func (c *Client) Delete(ctx context.Context, id string) (a wire.DeleteAnswer, err error) {
	err = c.do(ctx, "DELETE", machinePath(id), nil, &a)
	return a, err
}

// AuditFilter selects audit entries. Zero fields select everything.
type AuditFilter struct {
	Since   time.Time
	Machine string
	After   uint64
}

// Audit returns every selected entry, however many answers that takes.
func (c *Client) Audit(ctx context.Context, f AuditFilter) (wire.Audit, error) {
	const page = 1000
	var all wire.Audit
	for {
		q := url.Values{"limit": {strconv.Itoa(page)}}
		if !f.Since.IsZero() {
			q.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
		}
		if f.Machine != "" {
			q.Set("machine", f.Machine)
		}
		if f.After > 0 {
			q.Set("after", strconv.FormatUint(f.After, 10))
		}
		var part wire.Audit
		if err := c.do(ctx, "GET", wire.PathAudit+"?"+q.Encode(), nil, &part); err != nil {
			return all, err
		}
		// The newest head: it is never behind the last entry.
		all.Schema, all.Head = part.Schema, part.Head
		all.Entries = append(all.Entries, part.Entries...)
		if len(part.Entries) < page {
			return all, nil
		}
		f.After = part.Entries[len(part.Entries)-1].Seq
	}
}

// AuditHead names the last entry of the chain.
func (c *Client) AuditHead(ctx context.Context) (h wire.AuditHead, err error) {
	err = c.do(ctx, "GET", wire.PathAuditHead, nil, &h)
	return h, err
}

// Invite invites a person. Only an owner may.
func (c *Client) Invite(ctx context.Context, r wire.PersonRequest) (p wire.PersonInvited, err error) {
	err = c.do(ctx, "POST", wire.PathPersons, r, &p)
	return p, err
}

// CreateToken makes an automation token.
func (c *Client) CreateToken(ctx context.Context, r wire.TokenRequest) (k wire.TokenCreated, err error) {
	err = c.do(ctx, "POST", wire.PathTokens, r, &k)
	return k, err
}

// Tokens lists the tokens that the person may see.
func (c *Client) Tokens(ctx context.Context) (t wire.Tokens, err error) {
	err = c.do(ctx, "GET", wire.PathTokens, nil, &t)
	return t, err
}

// DeleteToken deletes a token.
func (c *Client) DeleteToken(ctx context.Context, name string) error {
	return c.do(ctx, "DELETE", wire.PathTokens+"/"+url.PathEscape(name), nil, nil)
}
