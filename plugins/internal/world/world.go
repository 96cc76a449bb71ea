// Package world is a small machine inside this one, for the tests of service
// managers: a directory in which files are written, a PATH of its own with
// stand-ins for the system's programs, and an agent that really runs.
//
// It belongs to tests; no program imports it.
package world

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
)

// World is one such machine.
type World struct {
	T    testing.TB
	Dir  string // everything lies below it
	Data string // the agent's data directory
	Host *localhost.Host
}

// New makes a world whose data directory has the given base name.
func New(t testing.TB, data string) *World {
	t.Helper()
	d, err := os.MkdirTemp("/tmp", "fpw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	w := &World{T: t, Dir: d, Data: filepath.Join(d, "home", data)}
	for _, p := range []string{filepath.Join(d, "bin"), w.Data, filepath.Join(d, "state")} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f, err := localhost.Gather()
	if err != nil {
		t.Fatal(err)
	}
	f.Home, f.DataDir, f.Phase = filepath.Join(d, "home"), w.Data, sdk.PhaseChange
	w.Host = &localhost.Host{F: f, Path: filepath.Join(d, "bin") + ":/usr/bin:/bin"}
	w.Program(filepath.Join(w.Data, "agentd"), Agent)
	return w
}

// Agent ends on SIGTERM with 0, and leaves a line of what it was started with.
const Agent = `trap 'exit 0' TERM
printf '%s\n' "$*" >>"$(dirname "$0")/runs"
while :; do sleep 0.1; done
`

// Program writes a shell script.
func (w *World) Program(path, body string) {
	w.T.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		w.T.Fatal(err)
	}
}

// Bin puts a stand-in into the world's PATH.
func (w *World) Bin(name, body string) { w.Program(filepath.Join(w.Dir, "bin", name), body) }

// Spec is the agent as a service.
func (w *World) Spec() sdk.Spec {
	return sdk.Spec{
		Name: "fleet-agent", Scope: sdk.ScopeUser, User: w.Host.F.User,
		Argv:    []string{filepath.Join(w.Data, "agentd"), "run", "--data", w.Data},
		DataDir: w.Data, RuntimeDir: filepath.Join(w.Data, "run"),
		LogFile: filepath.Join(w.Data, "log"), Latch: filepath.Join(w.Data, "latch"),
		StartTimeout: 10 * time.Second, StopTimeout: 5 * time.Second,
	}
}

// Env is the world for the conformance suite.
func (w *World) Env(d sdk.Description) conformance.ServiceEnv {
	return conformance.ServiceEnv{
		Description: d, Host: w.Host, Facts: w.Host.F, Spec: w.Spec(), Live: true,
		Write: w.Write, Remove: w.Remove, SetLatch: w.SetLatch,
	}
}

// Ran fails the test unless the agent itself ran, with its own arguments.
func (w *World) Ran() {
	w.T.Helper()
	b, err := os.ReadFile(filepath.Join(w.Data, "runs"))
	want := "run --data " + w.Data + "\n"
	if err != nil || !strings.HasPrefix(string(b), want) {
		w.T.Errorf("the agent ran as %q (%v), want %q", b, err, want)
	}
}

// Write does the host's part with rendered files.
func (w *World) Write(files []sdk.File) error {
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(f.Path, f.Content, f.Mode); err != nil {
			return err
		}
	}
	return nil
}

// Remove does too.
func (w *World) Remove(files []sdk.File) error {
	var err error
	for _, f := range files {
		err = errors.Join(err, os.Remove(f.Path))
	}
	return err
}

// SetLatch makes or removes the latch.
func (w *World) SetLatch(on bool) error {
	p := w.Spec().Latch
	if on {
		return os.WriteFile(p, nil, 0o600)
	}
	return os.Remove(p)
}
