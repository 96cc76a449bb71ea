package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/loopback"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// A port that leads to the agent itself, for callers that cannot use a UNIX
// socket. Whoever presents the caller's token gets the agent's API with all the
// person's rights there, and everybody else one refusal, before anything is
// asked of the machine. The caller makes that token and gives it on standard
// input; only its digest is kept. The agent's own token stays in this process.

// agentTarget is the agent as a forward's TARGET.
const agentTarget = "agent"

const (
	minCallerToken = 32
	maxCallerToken = 256
)

// callerToken reads the token that callers will present.
func callerToken(c *command.Call) (secret.Digest, error) {
	line, err := bufio.NewReader(io.LimitReader(c.Stdin, maxCallerToken+2)).ReadBytes('\n')
	defer clear(line)
	if err != nil && !errors.Is(err, io.EOF) {
		return secret.Digest{}, fault.Usagef("cannot read the token: %s", err)
	}
	t := bytes.TrimRight(line, "\r\n")
	bad := bytes.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' })
	if len(t) < minCallerToken || len(t) > maxCallerToken || bad {
		return secret.Digest{}, fault.Usagef("a token of %d to %d characters is read from standard input, which callers present; what is there is none", minCallerToken, maxCallerToken).
			WithHint("openssl rand -hex 32, kept by the caller, written to this command's standard input")
	}
	return secret.Of(string(t)).Digest(), nil
}

// agentPort serves a machine's agent at a port of the loopback interface.
type agentPort struct {
	way    Target
	caller secret.Digest
	slots  chan struct{}
}

func newAgentPort(way Target, caller secret.Digest) *agentPort {
	return &agentPort{way: way, caller: caller, slots: make(chan struct{}, maxForwarded)}
}

// serve serves until the listener is closed.
func (p *agentPort) serve(ctx context.Context, l net.Listener) {
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 8, IdleConnTimeout: loopback.IdleTimeout, ResponseHeaderTimeout: 0,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.way.Dial(ctx) }}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{Transport: renewing{transport, p.way}, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "agent", ""
			r.Out.Header.Del("Authorization")
			r.Out.Trailer = r.In.Trailer // which is read once the body has been
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, `{"error":{"code":"unreachable"}}`+"\n")
		}}
	srv := &http.Server{ErrorLog: log.New(io.Discard, "", 0), BaseContext: func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			t, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if secret.Match(secret.Of(t).Digest(), p.caller) < 0 || !ok || !loopback.Admit(r) {
				w.WriteHeader(http.StatusUnauthorized) // the connection says it in its own words
				return
			}
			proxy.ServeHTTP(w, r)
		})}
	loopback.Guarded(srv)
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	srv.Serve(&guardedPort{l, p.slots})
	srv.Close()
}

// guardedPort guards and bounds the connections of a listener.
type guardedPort struct {
	net.Listener
	slots chan struct{}
}

func (g *guardedPort) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := c.(*net.TCPConn)
		select {
		case g.slots <- struct{}{}:
			if ok {
				return loopback.Guard(&slotted{TCPConn: tcp, free: func() { <-g.slots }}), nil
			}
			<-g.slots
		default:
		}
		c.Close()
	}
}

// slotted gives its place back once.
type slotted struct {
	*net.TCPConn
	free func()
}

func (s *slotted) Close() error {
	err := s.TCPConn.Close()
	if !errors.Is(err, net.ErrClosed) {
		s.free()
	}
	return err
}

// renewing presents the agent's token, and another one when that is refused. A
// body is sent once, so that what has one is preceded by a question without.
type renewing struct {
	http.RoundTripper
	way Target
}

func (t renewing) RoundTrip(r *http.Request) (*http.Response, error) {
	once := r.Body != nil && r.Body != http.NoBody
	if once {
		ask, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://agent"+wire.PathIdentity, http.NoBody)
		if err != nil {
			return nil, err
		}
		resp, err := t.RoundTrip(ask)
		if err != nil {
			return nil, err
		}
		drop(resp)
	}
	for renew := false; ; renew = true {
		ctx, cancel := context.WithTimeout(r.Context(), forwardIn)
		tok, err := t.way.Token(ctx, renew)
		cancel()
		if err != nil {
			return nil, err
		}
		out := r.Clone(r.Context())
		out.Trailer = r.Trailer
		out.Header.Set("Authorization", "Bearer "+tok.Reveal())
		resp, err := t.RoundTripper.RoundTrip(out)
		if err != nil || resp.StatusCode != http.StatusUnauthorized || renew || once {
			return resp, err
		}
		drop(resp)
	}
}

func drop(resp *http.Response) {
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
}
