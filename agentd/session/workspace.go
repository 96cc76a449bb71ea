package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"fleet.example/fleet/agentd/shim"
)

// WorkspaceOf is the workspace that a session runs in, or "".
func (m *Manager) WorkspaceOf(id string) (string, error) {
	r, err := m.load(id)
	if err != nil {
		return "", err
	}
	return r.Workspace, nil
}

// RunningIn counts the sessions of each workspace that are not known to be over.
// One whose workspace cannot be told may be any's: then there is no answer.
func (m *Manager) RunningIn() (map[string]int, error) {
	ids, err := m.ids()
	if err != nil {
		return nil, err
	}
	n := map[string]int{}
	for _, id := range ids {
		dir := filepath.Join(m.Dir, id)
		if _, err := shim.ReadExit(dir); err == nil {
			continue
		}
		if life := shim.Look(dir); life == shim.Gone && !m.isStarting(id) {
			continue
		}
		r, err := m.load(id)
		if errors.Is(err, ErrNotFound) {
			continue // removed just now, or not yet one
		}
		if err != nil {
			return nil, fmt.Errorf("session %s may run, and in which workspace cannot be told: %w", id, err)
		}
		n[r.Workspace]++
	}
	return n, nil
}

func (m *Manager) isStarting(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.starting[id]
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
