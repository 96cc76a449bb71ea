package api

import (
	"context"
	"errors"
	"net/http"

	"fleet.example/fleet/agentd/files"
	"fleet.example/fleet/agentd/workspace"
	"fleet.example/fleet/core/wire"
)

// scopeKey is the key of the workspace to which a request's token is limited.
type scopeKey struct{}

// scopeOf is the workspace to which the request's token is limited, or "".
func scopeOf(r *http.Request) string {
	s, _ := r.Context().Value(scopeKey{}).(string)
	return s
}

func scoped(r *http.Request, workspace string) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), scopeKey{}, workspace))
}

// within are the routes that a token of a workspace is good for, which each
// answer for that workspace alone. It is good for no other.
var within = map[string]bool{
	"GET " + wire.PathIdentity:                   true,
	"GET " + wire.PathStatus:                     true,
	"GET " + wire.PathSessions:                   true,
	"POST " + wire.PathSessions:                  true,
	"GET " + wire.PathSessions + "/{id}":         true,
	"GET " + wire.PathSessions + "/{id}/stream":  true,
	"POST " + wire.PathSessions + "/{id}/signal": true,
	"GET " + wire.PathWorkspaces + "/{name}":     true,
	"POST " + wire.PathTree:                      true,
	"GET " + wire.PathWatch:                      true,
	"GET " + wire.PathForward:                    true,
}

// filesOf are the files that the request's token is good for. The caller calls
// release when nothing is opened by them any more; what is open stays so.
func (s *Server) filesOf(r *http.Request) (f *files.Files, release func(), err error) {
	scope := scopeOf(r)
	if scope == "" {
		return s.Files, func() {}, nil
	}
	ws, err := s.Workspaces.Get(scope)
	if err != nil {
		return nil, nil, &files.Error{Code: wire.CodeNotFound, Msg: err.Error()}
	}
	tree, err := files.Confine(append([]string{ws.Path}, ws.Binds...)...)
	if err != nil {
		return nil, nil, err
	}
	return s.Files.Within(tree, ws.Path), tree.Close, nil
}

func refuseScope(w http.ResponseWriter, scope string) {
	refuse(w, http.StatusForbidden, wire.CodeForbidden, "the token is good for workspace "+scope+" only")
}

func (s *Server) listWorkspaces(w http.ResponseWriter, r *http.Request) {
	list, err := s.Workspaces.List()
	if err != nil {
		refuseWorkspace(w, err)
		return
	}
	running, err := s.Sessions.RunningIn()
	if err != nil {
		refuseWorkspace(w, err)
		return
	}
	for i := range list {
		list[i].Schema, list[i].Sessions = "", running[list[i].Name]
	}
	answer(w, wire.Workspaces{Schema: wire.SchemaWorkspaces, Workspaces: list})
}

func (s *Server) showWorkspace(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if scope := scopeOf(r); scope != "" && scope != name {
		refuseScope(w, scope) // whether there is such a one or not
		return
	}
	one, err := s.Workspaces.Get(name)
	if err == nil {
		one.Sessions, err = s.runningIn(name)
	}
	if err != nil {
		refuseWorkspace(w, err)
		return
	}
	answer(w, one)
}

func (s *Server) createWorkspace(w http.ResponseWriter, r *http.Request) {
	var req wire.WorkspaceRequest
	if !readBody(w, r, &req) {
		return
	}
	one, err := s.Workspaces.Create(r.Context(), req)
	if err != nil {
		refuseWorkspace(w, err)
		return
	}
	answerWith(w, http.StatusCreated, one)
}

func (s *Server) removeWorkspace(w http.ResponseWriter, r *http.Request) {
	var req wire.WorkspaceRemoval
	if !readBody(w, r, &req) {
		return
	}
	name := r.PathValue("name")
	done, err := s.Workspaces.Remove(r.Context(), name, req.Env,
		func() (int, error) { return s.runningIn(name) },
		func() error { return s.Sessions.Forget(name) })
	if err != nil {
		refuseWorkspace(w, err)
		return
	}
	s.Tokens.Revoke(name) // the next one of this name is another
	answer(w, done)
}

func (s *Server) runningIn(workspace string) (int, error) {
	n, err := s.Sessions.RunningIn()
	return n[workspace], err
}

func refuseWorkspace(w http.ResponseWriter, err error) {
	e := new(workspace.Error)
	if !errors.As(err, &e) {
		refuse(w, http.StatusInternalServerError, wire.CodeInternal, err.Error())
		return
	}
	status := http.StatusConflict
	switch e.Code {
	case wire.CodeBadRequest:
		status = http.StatusBadRequest
	case wire.CodeWorkspaceMissing:
		status = http.StatusNotFound
	case wire.CodeForbidden:
		status = http.StatusForbidden
	case wire.CodeBusy:
		status = http.StatusTooManyRequests
	}
	refuseHint(w, status, e.Code, e.Msg, e.Hint)
}

// enter makes a request one that runs in its workspace, once that is ready. The
// caller calls leave when the session is there.
func (s *Server) enter(ctx context.Context, req *wire.SessionRequest) (leave func(), err error) {
	if req.ID != "" {
		if _, err := s.Sessions.Get(ctx, req.ID); err == nil {
			return func() {}, nil // asked for again: it has begun
		}
	}
	ws, leave, err := s.Workspaces.Enter(ctx, req.Workspace, req.Env)
	if err != nil {
		return nil, err
	}
	req.Dir = workspace.Inside(ws, req.Dir)
	req.Env = workspace.Variables(ws, req.Env)
	return leave, nil
}
