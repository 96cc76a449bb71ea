package agentclient

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"fleet.example/fleet/core/wire"
)

// scriptTimeout bounds an answer that waits for clones and scripts. That the
// connection lives is seen to by whoever made it.
const scriptTimeout = 26 * time.Hour

// Workspaces lists the workspaces.
func (c *Client) Workspaces(ctx context.Context) (*wire.Workspaces, error) {
	var out wire.Workspaces
	return &out, c.call(ctx, http.MethodGet, wire.PathWorkspaces, nil, &out)
}

// Workspace describes one.
func (c *Client) Workspace(ctx context.Context, name string) (*wire.Workspace, error) {
	var out wire.Workspace
	return &out, c.call(ctx, http.MethodGet, workspacePath(name), nil, &out)
}

// CreateWorkspace makes one, and waits for its checkouts.
func (c *Client) CreateWorkspace(ctx context.Context, req wire.WorkspaceRequest) (*wire.Workspace, error) {
	var out wire.Workspace
	return &out, c.call(ctx, http.MethodPost, wire.PathWorkspaces, req, &out)
}

// RemoveWorkspace removes one, after its cleanup script.
func (c *Client) RemoveWorkspace(ctx context.Context, name string, req wire.WorkspaceRemoval) (*wire.WorkspaceRemoved, error) {
	var out wire.WorkspaceRemoved
	return &out, c.call(ctx, http.MethodDelete, workspacePath(name), req, &out)
}

func workspacePath(name string) string { return wire.PathWorkspaces + "/" + url.PathEscape(name) }

// patience is how long the answer to a request may take.
func patience(in any) time.Duration {
	switch r := in.(type) {
	case wire.WorkspaceRequest, wire.WorkspaceRemoval:
		return scriptTimeout
	case wire.SessionRequest:
		if r.Workspace != "" {
			return scriptTimeout
		}
	}
	return callTimeout
}
