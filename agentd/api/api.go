// Package api serves the agent's two UNIX sockets, and, where a person wanted
// it, a port of the loopback interface. agent.sock is the data
// path: every request carries a token, and without a valid one every path, be
// it there or not, gets the same 401 (R31). mint.sock makes tokens and is how
// agentd's own commands talk to the running agent; whoever reaches it - this
// account, checked by file mode and peer uid - needs no token.
//
// A token may be limited to a workspace (R33). What it opens is opened through
// os.Root, in the workspace's directories, and what follows from it, as a copy or
// a watch, goes on from the open directory alone. Copies and watches that other
// tokens began are not there for it. A forward leads to a socket of the
// workspace, the very one that was looked at, or to a loopback port: ports are
// open to every account of the machine, while the modes that keep others from the
// account's sockets mean nothing to an agent that runs as the account. The
// limit is on what the API does; a command that is started has the account's
// rights.
//
// agentd listens on nothing else. A restart in place leaves the sockets to the
// program that follows: their queues, and the connections on which nothing was
// asked yet (Left), so that nobody is refused while it begins. The package
// turns HTTP into calls of the agent and the session manager, and their errors
// into codes; it holds no state but the tokens.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/files"
	"fleet.example/fleet/agentd/logfile"
	"fleet.example/fleet/agentd/session"
	"fleet.example/fleet/agentd/token"
	"fleet.example/fleet/agentd/watch"
	"fleet.example/fleet/agentd/workspace"
	"fleet.example/fleet/core/loopback"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Agent is what the sockets ask of the agent.
type Agent interface {
	Identity() wire.Identity
	Status() wire.AgentStatus
	// Stop leaves the latch for a person's reason, or remembers the reason of
	// a stop that is about to come. It returns before agentd ends.
	Stop(reason string) error
	Start() error
	Restart() error
	Drain(on bool) error
	Draining() bool
	Probe(ctx context.Context) error
	Reload()
}

// Server serves both sockets.
type Server struct {
	Agent    Agent
	Sessions *session.Manager
	Tokens   *token.Set
	Files    *files.Files
	Watches  *watch.Set
	// Workspaces are those of the account.
	Workspaces *workspace.Manager
	Log        *logfile.File
	Logger     hclog.Logger

	once                sync.Once
	fileCalls, forwards chan struct{}
	copies              copies
}

const (
	maxBody       = 4 << 20 // a session request with its environment
	headerTimeout = 10 * time.Second
	// firstTimeout is how long a connection may wait for its first request: a
	// person's side keeps some open in advance, up to 90 seconds each.
	firstTimeout = 2 * time.Minute
	bodyTimeout  = 30 * time.Second
	idleTimeout  = 5 * time.Minute
)

type route struct {
	method, path string
	handle       func(s *Server, w http.ResponseWriter, r *http.Request)
}

// agentRoutes is agent.sock.
var agentRoutes = []route{
	{"GET", wire.PathIdentity, (*Server).identity},
	{"GET", wire.PathStatus, (*Server).status},
	{"GET", wire.PathSessions, (*Server).listSessions},
	{"POST", wire.PathSessions, (*Server).createSession},
	{"GET", wire.PathSessions + "/{id}", (*Server).showSession},
	{"GET", wire.PathSessions + "/{id}/stream", (*Server).streamSession},
	{"POST", wire.PathSessions + "/{id}/signal", (*Server).signalSession},
	{"GET", wire.PathForward, (*Server).forward},
	{"POST", wire.PathTree, (*Server).tree},
	{"GET", wire.PathWorkspaces, (*Server).listWorkspaces},
	{"POST", wire.PathWorkspaces, (*Server).createWorkspace},
	{"GET", wire.PathWorkspaces + "/{name}", (*Server).showWorkspace},
	{"DELETE", wire.PathWorkspaces + "/{name}", (*Server).removeWorkspace},
	{"GET", wire.PathWatch, (*Server).watch},
	{"GET", wire.PathLogs, (*Server).logs},
	{"POST", wire.PathStop, (*Server).stop},
	{"POST", wire.PathStart, (*Server).start},
	{"POST", wire.PathRestart, (*Server).restart},
	{"POST", wire.PathDrain, (*Server).drain},
	{"POST", wire.PathUndrain, (*Server).undrain},
	{"POST", wire.PathProbe, (*Server).probe},
}

// mintRoutes is mint.sock.
var mintRoutes = []route{
	{"POST", wire.PathTokens, (*Server).mint},
	{"DELETE", wire.PathTokens, (*Server).revokeTokens},
	{"GET", wire.PathIdentity, (*Server).identity},
	{"GET", wire.PathStatus, (*Server).status},
	{"POST", wire.PathStop, (*Server).stop},
	{"POST", wire.PathStart, (*Server).start},
	{"POST", wire.PathRestart, (*Server).restart},
	{"POST", wire.PathReload, (*Server).reload},
	{"POST", wire.PathProbe, (*Server).probe},
}

func (s *Server) mux(routes []route) http.Handler {
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { rt.handle(s, w, r) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		if scope := scopeOf(r); scope != "" && !within[pattern] {
			refuseScope(w, scope)
			return
		}
		if pattern == "" {
			if _, p := mux.Handler(&http.Request{Method: other(r.Method), URL: r.URL, Host: r.Host}); p != "" {
				refuse(w, http.StatusMethodNotAllowed, wire.CodeBadRequest, "this path does not take "+r.Method)
				return
			}
			refuse(w, http.StatusNotFound, wire.CodeNotFound, "no such path")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		mux.ServeHTTP(w, r)
	})
}

func other(method string) string {
	if method == "GET" {
		return "POST"
	}
	return "GET"
}

// authenticate lets only requests with a valid token through.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		scope, valid := "", false
		if ok {
			scope, valid = s.Tokens.Check(secret.Of(t))
		}
		if !valid || !loopback.Admit(r) {
			refuse(w, http.StatusUnauthorized, wire.CodeUnauthorized, "")
			return
		}
		next.ServeHTTP(w, scoped(r, scope))
	})
}

// AgentServer serves agent.sock; the caller gives it a listener of Listen.
func (s *Server) AgentServer() *HTTP {
	s.once.Do(func() {
		s.fileCalls, s.forwards = make(chan struct{}, maxFileCalls), make(chan struct{}, maxForwards)
	})
	rest := s.mux(agentRoutes)
	srv := s.server(s.authenticate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.EscapedPath(), wire.PathFiles) {
			s.files(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})))
	leaving, leave := context.WithCancel(context.Background())
	srv.leave = func() { // what would hold it up
		s.Watches.Leave()
		leave()
	}
	srv.RegisterOnShutdown(srv.leave)
	srv.BaseContext = func(net.Listener) context.Context {
		return context.WithValue(context.Background(), leavingKey{}, leaving)
	}
	return srv
}

// leavingKey finds the context that ends when the server of a request is about
// to.
type leavingKey struct{}

// MintServer serves mint.sock.
func (s *Server) MintServer() *HTTP { return s.server(s.mux(mintRoutes)) }

// HTTP is a server, and how to end the answers that go on by themselves.
type HTTP struct {
	*http.Server
	leave func()
}

func (s *Server) server(h http.Handler) *HTTP {
	return &HTTP{leave: func() {}, Server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: firstTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          s.Logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
		ConnState:         noteState,

		DisableGeneralOptionsHandler: true, // it answers who has no token
	}}
}

func answer(w http.ResponseWriter, doc any) { answerWith(w, http.StatusOK, doc) }

func answerWith(w http.ResponseWriter, status int, doc any) {
	b, err := json.Marshal(doc)
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeInternal, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	refuseHint(w, status, code, message, "")
}

func refuseHint(w http.ResponseWriter, status int, code, message, hint string) {
	b, err := json.Marshal(wire.Error{Error: wire.ErrorDetail{Code: code, Message: message, Hint: hint}})
	if err != nil {
		panic(err) // strings only
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// readBody reads a bounded JSON document. An empty body leaves v as it is.
func readBody(w http.ResponseWriter, r *http.Request, v any) bool {
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	b, err := io.ReadAll(r.Body)
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		refuse(w, http.StatusRequestEntityTooLarge, wire.CodeTooLarge, fmt.Sprintf("the request has more than %d bytes", maxBody))
		return false
	case err != nil:
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, "the request was cut short")
		return false
	}
	http.NewResponseController(w).SetReadDeadline(time.Time{})
	if len(b) == 0 {
		return true
	}
	if err := json.Unmarshal(b, v); err != nil {
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, "the request is not the expected JSON: "+err.Error())
		return false
	}
	return true
}

func (s *Server) identity(w http.ResponseWriter, _ *http.Request) { answer(w, s.Agent.Identity()) }
func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	st := s.Agent.Status()
	st.Forwards, st.Copies = len(s.forwards), s.copies.count()
	answer(w, st)
}

func (s *Server) mint(w http.ResponseWriter, r *http.Request) {
	var req wire.TokenMint
	if !readBody(w, r, &req) {
		return
	}
	if req.Workspace != "" {
		if _, err := s.Workspaces.Get(req.Workspace); err != nil {
			refuseWorkspace(w, err)
			return
		}
	}
	if !(req.LifetimeS >= 0 && req.LifetimeS <= token.MaxLifetime.Seconds()) {
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, fmt.Sprintf("a token lives at most %v", token.MaxLifetime))
		return
	}
	t, until := s.Tokens.Mint(time.Duration(req.LifetimeS*float64(time.Second)), req.Workspace)
	answer(w, wire.TokenMinted{Token: t.Reveal(), ExpiresAt: wire.Time{Time: until}})
}

func (s *Server) revokeTokens(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]int{"revoked": s.Tokens.RevokeAll()})
}

func (s *Server) stop(w http.ResponseWriter, r *http.Request) {
	req := wire.StopRequest{Reason: wire.ReasonPerson}
	if !readBody(w, r, &req) {
		return
	}
	switch req.Reason {
	case wire.ReasonPerson, wire.ReasonUpdate, wire.ReasonRestart:
	default:
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, "a stop's reason is person, update or restart")
		return
	}
	s.do(w, s.Agent.Stop(req.Reason))
}

func (s *Server) start(w http.ResponseWriter, _ *http.Request)   { s.do(w, s.Agent.Start()) }
func (s *Server) restart(w http.ResponseWriter, _ *http.Request) { s.do(w, s.Agent.Restart()) }
func (s *Server) drain(w http.ResponseWriter, _ *http.Request)   { s.do(w, s.Agent.Drain(true)) }
func (s *Server) undrain(w http.ResponseWriter, _ *http.Request) { s.do(w, s.Agent.Drain(false)) }

func (s *Server) probe(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 90*time.Second)
	defer cancel()
	s.do(w, s.Agent.Probe(ctx))
}

func (s *Server) reload(w http.ResponseWriter, _ *http.Request) {
	s.Agent.Reload()
	s.do(w, nil)
}

// do answers with the status as it is after the deed.
func (s *Server) do(w http.ResponseWriter, err error) {
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeInternal, err.Error())
		return
	}
	answer(w, s.Agent.Status())
}

const maxLogLines = 100_000

func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	n := 100
	if q := r.URL.Query().Get("n"); q != "" {
		var err error
		if n, err = strconv.Atoi(q); err != nil || n < 0 {
			refuse(w, http.StatusBadRequest, wire.CodeBadRequest, "n is not a number of lines")
			return
		}
	}
	n = min(n, maxLogLines)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	follow := r.URL.Query().Get("follow")
	if follow == "" || follow == "0" {
		w.Write(s.Log.Tail(n))
		return
	}
	rc := http.NewResponseController(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if leaving, ok := ctx.Value(leavingKey{}).(context.Context); ok {
		defer context.AfterFunc(leaving, cancel)()
	}
	s.Log.Follow(ctx, n, w, func() { rc.Flush() })
}

const (
	// endGrace is how long requests that are being answered, such as the one
	// that made agentd end, may take when it ends.
	endGrace = time.Second
	// handOverGrace is the same when the next program is to go on: those who wait
	// meanwhile are not refused.
	handOverGrace = 5 * time.Second
)

// Serve serves l until the context ends, then waits briefly for requests that
// are being answered. With handOver true by then, what has asked for nothing
// yet is kept for the next program, see Listener.Left.
func Serve(ctx context.Context, srv *HTTP, l *Listener, handOver func() bool) {
	down, served := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(down)
		grace := endGrace
		if handOver() {
			grace = handOverGrace
			l.handOver()
			<-served
			l.leave()
			srv.leave()
			// A server that shuts down answers nothing that it has not read to the
			// end yet.
			srv.SetKeepAlivesEnabled(false)
			l.quiet(grace)
		}
		sctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if srv.Shutdown(sctx) != nil {
			srv.Close()
		}
	})
	srv.Serve(l)
	close(served)
	if stop() {
		srv.Close() // the listener failed by itself
		return
	}
	<-down
}
