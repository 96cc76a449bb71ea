// Package workspace keeps named directories with checkouts, scripts and bound
// directories, in which sessions work.
//
// What it holds to:
//   - A session begins in a workspace only when every checkout is there, comes
//     from where it should, and the prepare script has succeeded: otherwise
//     nothing is started. Preparing one workspace is done for one session at a
//     time.
//   - What is in a checkout is the person's: none is ever reset, moved to another
//     branch or cloned over. A clone is made beside its place and renamed there
//     when it is whole, so that a crash leaves no half of one.
//   - A workspace is removed by Remove alone, and not while a session is in it or
//     on its way. What a removal has begun it ends when it is asked for again:
//     the record goes last, and says that the cleanup script has had its turn.
//   - Environments that callers pass are the scripts' and git's while these run,
//     and stand in no file and no argument.
//
// The package knows nothing of sessions but their number, and nothing of HTTP.
package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/wire"
)

const (
	recordsDir = ".records"
	maxRecord  = 4 << 20

	maxWorkspaces = 256
	maxRepos      = 32
	maxBinds      = 32
	maxScript     = 1 << 20

	defaultTimeout = 10 * time.Minute
	maxTimeout     = 24 * time.Hour
	// checkoutTimeout bounds one clone.
	checkoutTimeout = 2 * time.Hour
)

// Manager keeps the workspaces of one account. Its methods may be used from
// several goroutines.
type Manager struct {
	Dir     string // DATA/workspaces
	Account account.Account
	Getenv  func(string) string
	Umask   int // the account's, not agentd's own
	Log     hclog.Logger

	mu   sync.Mutex
	held map[string]*hold
}

// hold is what keeps a workspace from being removed, and its preparation single.
type hold struct {
	sync.Mutex     // of preparing and removing
	users      int // who has it or waits for it
	inside     int // sessions on their way in
}

// record is what is kept of a workspace.
type record struct {
	Name      string               `json:"name"`
	Path      string               `json:"path"`
	Repos     []wire.WorkspaceRepo `json:"repos"`
	Binds     []string             `json:"binds"`
	Prepare   string               `json:"prepare"`
	Cleanup   string               `json:"cleanup"`
	Shell     string               `json:"shell"`
	TimeoutS  float64              `json:"timeout_s"`
	CreatedAt wire.Time            `json:"created_at"`
	// Cleaned says that a removal was begun, and that the cleanup script has run.
	Cleaned bool `json:"cleaned"`
}

// Error is a refusal with a code of package wire.
type Error struct {
	Code, Msg, Hint string
}

func (e *Error) Error() string { return e.Msg }

func refuse(code, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

func missing(name string) *Error {
	return refuse(wire.CodeWorkspaceMissing, "no workspace is named %q", name)
}

func (m *Manager) hold(name string) *hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held == nil {
		m.held = map[string]*hold{}
	}
	h := m.held[name]
	if h == nil {
		h = &hold{}
		m.held[name] = h
	}
	h.users++
	return h
}

func (m *Manager) release(name string, h *hold) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(m.held, name)
	}
}

func (m *Manager) recordPath(name string) string {
	return filepath.Join(m.Dir, recordsDir, name+".json")
}

func (m *Manager) load(name string) (*record, error) {
	if wire.CheckName(name) != nil {
		return nil, missing(name)
	}
	b, err := durable.ReadPrivate(m.recordPath(name), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(name)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the workspace's record: %w", err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil || r.Name != name || !filepath.IsAbs(r.Path) {
		return nil, errors.New("cannot read the workspace's record: it is damaged")
	}
	return &r, nil
}

func (m *Manager) save(r *record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(m.Dir, recordsDir), 0o700); err != nil {
		return fmt.Errorf("cannot keep the workspace: %w", err)
	}
	if err := durable.WriteFile(m.recordPath(r.Name), b, 0o600); err != nil {
		return fmt.Errorf("cannot keep the workspace: %w", err)
	}
	return nil
}

func (r *record) describe() *wire.Workspace {
	return &wire.Workspace{Schema: wire.SchemaWorkspace, Name: r.Name, Path: r.Path, Repos: r.Repos, Binds: r.Binds, Shell: r.Shell,
		Prepare: r.Prepare != "", Cleanup: r.Cleanup != "", CreatedAt: r.CreatedAt, Removing: r.Cleaned}
}

// Get describes one workspace.
func (m *Manager) Get(name string) (*wire.Workspace, error) {
	r, err := m.load(name)
	if err != nil {
		return nil, err
	}
	return r.describe(), nil
}

// List describes all workspaces, by name. One whose record cannot be read is
// left out, and the log says why.
func (m *Manager) List() ([]wire.Workspace, error) {
	names, err := m.names()
	if err != nil {
		return nil, err
	}
	out := make([]wire.Workspace, 0, len(names))
	for _, name := range names {
		w, err := m.Get(name)
		if err != nil {
			m.Log.Warn("workspace is unreadable", "workspace", name, "error", err)
			continue
		}
		out = append(out, *w)
	}
	return out, nil
}

func (m *Manager) names() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(m.Dir, recordsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list workspaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && wire.CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Create makes a workspace with its checkouts. One that is there already with
// the same words has what is missing in it made; with others it is a conflict.
// When a new one fails, nothing of it stays.
func (m *Manager) Create(ctx context.Context, req wire.WorkspaceRequest) (*wire.Workspace, error) {
	r, err := m.read(req)
	if err != nil {
		return nil, err
	}
	h := m.hold(r.Name)
	defer m.release(r.Name, h)
	h.Lock()
	defer h.Unlock()
	there, err := m.load(r.Name)
	var gone *Error
	switch {
	case err == nil && there.Cleaned:
		return nil, refuse(wire.CodeConflict, "workspace %s is being removed", r.Name).withHint("fleet workspace rm ends that")
	case err == nil:
		r.CreatedAt = there.CreatedAt
		if !reflect.DeepEqual(r, there) {
			return nil, refuse(wire.CodeExists, "workspace %s is there, and is another", r.Name).withHint("fleet workspace show tells what it is made of")
		}
		if err := m.materialize(ctx, r, req.Env); err != nil {
			return nil, err
		}
		return r.describe(), nil
	case !errors.As(err, &gone):
		return nil, err
	}
	names, err := m.names()
	if err != nil {
		return nil, err
	}
	if len(names) >= maxWorkspaces {
		return nil, refuse(wire.CodeBusy, "there are %d workspaces, which is the most", maxWorkspaces)
	}
	if err := m.begin(r); err != nil {
		return nil, err
	}
	if err := m.materialize(ctx, r, req.Env); err != nil {
		return nil, errors.Join(err, removeAll(r.Path), durable.Remove(m.recordPath(r.Name)))
	}
	m.Log.Info("workspace made", "workspace", r.Name)
	return r.describe(), nil
}

// begin makes the workspace's directory and record. Nothing that is there
// already is taken for a workspace's: it would be removed with it.
func (m *Manager) begin(r *record) error {
	if err := os.MkdirAll(filepath.Dir(r.Path), 0o700); err != nil {
		return refuse(wire.CodeForbidden, "cannot make the workspace's directory: %v", err)
	}
	err := os.Mkdir(r.Path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return refuse(wire.CodeExists, "%s is there already and is no workspace's", r.Path)
	}
	if err != nil {
		return refuse(wire.CodeForbidden, "cannot make the workspace's directory: %v", err)
	}
	if err := m.save(r); err != nil {
		return errors.Join(err, os.Remove(r.Path))
	}
	return nil
}

func (e *Error) withHint(hint string) *Error {
	e.Hint = hint
	return e
}

// home puts the account's home directory in the place of ~.
func (m *Manager) home(p string) string {
	if rest, ok := strings.CutPrefix(p, "~"); ok && (rest == "" || rest[0] == '/') {
		return m.Account.Home + rest
	}
	return p
}

// read makes a record of a request.
func (m *Manager) read(req wire.WorkspaceRequest) (*record, error) {
	bad := func(format string, args ...any) (*record, error) {
		return nil, refuse(wire.CodeBadRequest, format, args...)
	}
	if err := wire.CheckWorkspaceName(req.Name); err != nil {
		return bad("%s", err)
	}
	root := m.Dir
	if req.Root != "" {
		root = filepath.Clean(m.home(req.Root))
	}
	shell := m.home(req.Shell)
	if shell == "" {
		shell = m.Account.Shell
	}
	r := &record{Name: req.Name, Path: filepath.Join(root, req.Name), Repos: slices.Clone(req.Repos), Binds: []string{}, Prepare: req.Prepare, Cleanup: req.Cleanup,
		Shell: shell, TimeoutS: req.TimeoutS, CreatedAt: wire.Time{Time: time.Now().UTC()}}
	switch {
	case strings.ContainsRune(req.Root+req.Shell, 0):
		return bad("a path has no zero byte")
	case !filepath.IsAbs(root) || !filepath.IsAbs(shell):
		return bad("root and shell are absolute paths")
	case len(req.Prepare) > maxScript || len(req.Cleanup) > maxScript:
		return bad("a script has at most %d bytes", maxScript)
	case math.IsNaN(req.TimeoutS) || req.TimeoutS < 0 || req.TimeoutS > maxTimeout.Seconds():
		return bad("a script may take up to %v", maxTimeout)
	case len(req.Repos) > maxRepos || len(req.Binds) > maxBinds:
		return bad("a workspace has at most %d repositories and %d bound directories", maxRepos, maxBinds)
	}
	if r.TimeoutS == 0 {
		r.TimeoutS = defaultTimeout.Seconds()
	}
	for _, b := range req.Binds {
		b = m.home(b)
		if !filepath.IsAbs(b) || strings.ContainsRune(b, 0) {
			return bad("a bound directory has an absolute path")
		}
		r.Binds = append(r.Binds, filepath.Clean(b))
	}
	if r.Repos == nil {
		r.Repos = []wire.WorkspaceRepo{}
	}
	seen := map[string]bool{}
	for i := range r.Repos {
		p := &r.Repos[i]
		if err := checkRepo(*p); err != nil {
			return nil, err
		}
		switch {
		case i == 0 && p.Dir != "":
			return bad("the first repository is the workspace itself")
		case i == 0:
			continue
		case p.Dir == "" || p.Dir != filepath.Base(p.Dir) || strings.HasPrefix(p.Dir, ".") || strings.ContainsRune(p.Dir, 0):
			return bad("%q is no directory for a further repository", p.Dir)
		case seen[p.Dir]:
			return bad("two repositories would be at %s", p.Dir)
		}
		seen[p.Dir] = true
	}
	return r, nil
}

// Enter makes the workspace ready for one session: its checkouts are there and
// its prepare script has succeeded. The workspace is not removed before leave is
// called, which the caller does once the session is one that is counted.
func (m *Manager) Enter(ctx context.Context, name string, env map[string]string) (w *wire.Workspace, leave func(), err error) {
	h := m.hold(name)
	defer func() {
		if err != nil {
			m.release(name, h)
		}
	}()
	h.Lock()
	defer h.Unlock()
	r, err := m.load(name)
	if err != nil {
		return nil, nil, err
	}
	if r.Cleaned {
		return nil, nil, refuse(wire.CodeConflict, "workspace %s is being removed", name)
	}
	if st, err := os.Stat(r.Path); err != nil || !st.IsDir() {
		return nil, nil, refuse(wire.CodeWorkspaceFailed, "the workspace's directory %s is not there", r.Path)
	}
	if err := m.materialize(ctx, r, env); err != nil {
		return nil, nil, err
	}
	if r.Prepare != "" {
		if tail, err := m.script(ctx, r, "prepare", r.Prepare, env); err != nil {
			return nil, nil, refuse(wire.CodeWorkspaceFailed, "the prepare script of workspace %s failed: %v%s", name, err, quoted(tail))
		}
	}
	m.mu.Lock()
	h.inside++
	m.mu.Unlock()
	return r.describe(), sync.OnceFunc(func() {
		m.mu.Lock()
		h.inside--
		m.mu.Unlock()
		m.release(name, h)
	}), nil
}

// quoted is the end of a script's output as a part of an error.
func quoted(tail string) string {
	if tail = strings.TrimSpace(tail); tail == "" {
		return ""
	}
	return "; it said last:\n" + tail
}

// Remove runs the cleanup script, whose failure is told and stops nothing, and
// removes the workspace with all that is in it. running counts the sessions in
// it; while there are any, or one is on its way, it is refused. forget is called
// before the record goes.
func (m *Manager) Remove(ctx context.Context, name string, env map[string]string, running func() (int, error), forget func() error) (*wire.WorkspaceRemoved, error) {
	h := m.hold(name)
	defer m.release(name, h)
	h.Lock()
	defer h.Unlock()
	r, err := m.load(name)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	inside := h.inside
	m.mu.Unlock()
	n, err := running()
	if err != nil {
		return nil, err
	}
	if n += inside; n > 0 {
		return nil, refuse(wire.CodeWorkspaceBusy, "%d sessions run in workspace %s", n, name).withHint("fleet sessions names them")
	}
	done := &wire.WorkspaceRemoved{Schema: wire.SchemaWorkspace, Name: name}
	if !r.Cleaned {
		if _, err := os.Stat(r.Path); err == nil && r.Cleanup != "" {
			tail, err := m.script(ctx, r, "cleanup", r.Cleanup, env)
			if ctx.Err() != nil {
				return nil, ctx.Err() // nobody heard what became of it
			}
			if err != nil {
				done.Cleanup, done.Tail = err.Error(), tail
				m.Log.Warn("cleanup failed", "workspace", name, "error", err)
			}
		}
		r.Cleaned = true
		if err := m.save(r); err != nil {
			return nil, err
		}
	}
	if err := removeAll(r.Path); err != nil {
		return nil, fmt.Errorf("cannot remove the workspace: %w", err)
	}
	if err := forget(); err != nil {
		return nil, fmt.Errorf("cannot remove the workspace's sessions: %w", err)
	}
	if err := durable.Remove(m.recordPath(name)); err != nil {
		return nil, fmt.Errorf("cannot remove the workspace's record: %w", err)
	}
	m.Log.Info("workspace removed", "workspace", name)
	return done, nil
}

// removeAll removes a tree in which directories may be closed to their owner, as
// those of module caches are.
func removeAll(path string) error {
	if err := os.RemoveAll(path); err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(p, 0o700) // whether it helped is seen below
		}
		return nil
	})
	return os.RemoveAll(path)
}
