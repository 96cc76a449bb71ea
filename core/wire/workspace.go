package wire

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// PathWorkspaces is the workspaces of the agent's account. GET lists them, POST
// makes one; PATH/{name} is one, DELETE removes it. What takes its time - a
// clone, a script - is answered when it is over.
const PathWorkspaces = "/v1/workspaces"

// Schemas of the documents below.
const (
	SchemaWorkspace  = "fleet.workspace/v1"
	SchemaWorkspaces = "fleet.workspaces/v1"
)

// Codes of refusals about workspaces.
const (
	CodeWorkspaceBusy   = "workspace_busy"   // a session runs in it
	CodeWorkspaceFailed = "workspace_failed" // its checkout or its prepare script
	CodeToolMissing     = "tool_missing"     // a program that it needs is not there
)

// WorkspaceRequest is the body of POST /v1/workspaces. Made again with the same
// words it is the same workspace; with others it is a conflict.
type WorkspaceRequest struct {
	Name string `json:"name"`
	// Root is the absolute directory below which the workspace lies, as
	// Root/Name. Empty means the agent's own.
	Root  string          `json:"root,omitempty"`
	Repos []WorkspaceRepo `json:"repos,omitempty"` // the first is the workspace's root
	Binds []string        `json:"binds,omitempty"` // absolute directories that belong to it
	// Prepare and Cleanup are scripts' texts, run by Shell (absolute; empty means
	// the account's) in the workspace: the one before each session, the other
	// when it is removed.
	Prepare string `json:"prepare,omitempty"`
	Cleanup string `json:"cleanup,omitempty"`
	Shell   string `json:"shell,omitempty"`
	// TimeoutS bounds each script, in seconds; 0 means the agent's default.
	TimeoutS float64 `json:"timeout_s,omitempty"`
	// Env is for git and is not kept.
	Env map[string]string `json:"env,omitempty"`
}

// WorkspaceRepo is one checkout.
type WorkspaceRepo struct {
	URL    string `json:"url"`
	Branch string `json:"branch,omitempty"` // empty: the repository's own
	Dir    string `json:"dir,omitempty"`    // below the workspace; empty for the first
}

// ErrRepoPassword is a repository's URL that holds a password.
var ErrRepoPassword = errors.New("holds a password, which would stand in files")

// Check refuses what git would take for something else, and secrets that would
// come to stand in files.
func (r WorkspaceRepo) Check() error {
	clean := func(s string) bool {
		return !strings.HasPrefix(s, "-") && strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
	}
	if r.URL == "" || !clean(r.URL) || strings.Contains(r.URL, "::") {
		return fmt.Errorf("%q is no repository", r.URL)
	}
	if u, err := url.Parse(r.URL); err == nil && u.User != nil {
		if _, secret := u.User.Password(); secret {
			return fmt.Errorf("the URL of %s %w", u.Redacted(), ErrRepoPassword)
		}
	}
	if b := r.Branch; !clean(b) || strings.ContainsAny(b, " ~^:?*[\\") || strings.Contains(b, "..") ||
		strings.HasSuffix(b, "/") || strings.HasPrefix(b, "/") || strings.HasSuffix(b, ".lock") {
		return fmt.Errorf("%q is no branch", b)
	}
	return nil
}

// CheckWorkspaceName is CheckName, but nothing hidden is a workspace.
func CheckWorkspaceName(s string) error {
	if CheckName(s) != nil || strings.HasPrefix(s, ".") {
		return fmt.Errorf("%q is no name for a workspace: it has 1 to 63 characters of A-Z a-z 0-9 . _ - and begins with neither . nor -", s)
	}
	return nil
}

// WorkspaceRemoval is the body of DELETE /v1/workspaces/{name}.
type WorkspaceRemoval struct {
	Env map[string]string `json:"env,omitempty"` // for the cleanup script
}

// Workspace is fleet.workspace/v1.
type Workspace struct {
	Schema    string          `json:"schema,omitempty"`
	Name      string          `json:"name"`
	Path      string          `json:"path"`
	Repos     []WorkspaceRepo `json:"repos"`
	Binds     []string        `json:"binds"`
	Shell     string          `json:"shell"`
	Prepare   bool            `json:"prepare"` // there is such a script
	Cleanup   bool            `json:"cleanup"`
	CreatedAt Time            `json:"created_at"`
	Sessions  int             `json:"sessions"` // that run in it
	Removing  bool            `json:"removing"` // its removal was begun and is not over
}

// Workspaces is fleet.workspaces/v1.
type Workspaces struct {
	Schema     string      `json:"schema"`
	Workspaces []Workspace `json:"workspaces"`
}

// WorkspaceRemoved answers a removal.
type WorkspaceRemoved struct {
	Schema string `json:"schema"` // fleet.workspace/v1
	Name   string `json:"name"`
	// Cleanup is why the cleanup script failed; the workspace is removed all the
	// same. Empty: it did not, or there is none.
	Cleanup string `json:"cleanup_error"`
	Tail    string `json:"cleanup_tail"`
}
