package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"fleet.example/fleet/agentd/shim"
	"fleet.example/fleet/core/wire"
)

// WorkspaceOf is the workspace that a session runs in, or "".
func (m *Manager) WorkspaceOf(id string) (string, error) {
	r, err := m.load(id)
	if err != nil {
		return "", err
	}
	return r.Workspace, nil
}

// RunningIn counts the sessions of a workspace that are not known to be over.
func (m *Manager) RunningIn(ctx context.Context, workspace string) (n int, err error) {
	all, err := m.List(ctx)
	for _, s := range all {
		if s.Workspace == workspace && s.State != wire.SessionExited && s.State != wire.SessionGone {
			n++
		}
	}
	return n, err
}

// Forget removes what is kept of a workspace's sessions, which are over.
func (m *Manager) Forget(workspace string) error {
	ids, err := m.ids()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		dir := filepath.Join(m.Dir, id)
		if r, err := m.load(id); err != nil || r.Workspace != workspace || shim.Look(dir) != shim.Gone {
			continue
		}
		errs = append(errs, os.RemoveAll(dir))
		os.Remove(filepath.Join(m.Run, id+".sock"))
	}
	return errors.Join(errs...)
}
