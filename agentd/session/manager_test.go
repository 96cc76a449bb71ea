package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/core/wire"
)

// manager is one whose session hosts are a script, which has the
// configuration in $c, says on descriptor 3 that it is ready, and ends.
func manager(t *testing.T, script string) *Manager {
	dir := t.TempDir()
	program := filepath.Join(dir, "shim")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nPATH=/usr/bin:/bin\nread -r c || exit 0\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	m := &Manager{Dir: filepath.Join(dir, "sessions"), Run: dir, Shim: program, Getenv: func(string) string { return "" },
		Account: account.Account{Home: "/"}, Machine: func() string { return "" }, Log: hclog.NewNullLogger()}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Reap(ctx) }()
	t.Cleanup(func() {
		m.Close()
		cancel()
		<-done
	})
	return m
}

// A client that leaves while its session starts is nothing that keeps the
// machine from starting sessions.
func TestClientThatLeavesIsNoBlocker(t *testing.T) { // R30
	m := manager(t, "sleep 0.3; printf + >&3")
	ctx, leave := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer leave()
	id, err := m.Create(ctx, wire.SessionRequest{Argv: []string{"true"}})
	if f := m.Unusable(); err != nil || f != nil {
		t.Fatalf("%v %+v", err, f)
	}
	if _, err := os.Stat(filepath.Join(m.Dir, id, recordFile)); err != nil {
		t.Error(err)
	}
}

// However many ask for one id at once, one session starts and all hear of it.
func TestOneIDIsOneSession(t *testing.T) { // R34
	m := manager(t, `dir=${c#*'"dir":"'}; dir=${dir%%'"'*}; echo >>"$dir/started"; printf + >&3`)
	for range 5 {
		id := wire.NewSessionID()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if got, err := m.Create(t.Context(), wire.SessionRequest{ID: id, Argv: []string{"true"}}); got != id || err != nil {
					t.Error(got, err)
				}
			})
		}
		wg.Wait()
		if b, err := os.ReadFile(filepath.Join(m.Dir, id, "started")); string(b) != "\n" {
			t.Fatalf("%q %v", b, err)
		}
	}
	if f := m.Unusable(); f != nil {
		t.Errorf("%+v", f)
	}
}

// A session that does not start leaves nothing, and the next may have its id.
func TestSessionThatDoesNotStartLeavesNothing(t *testing.T) { // R30
	m := manager(t, "printf '%s' -no >&3")
	id := wire.NewSessionID()
	for range 2 {
		_, err := m.Create(t.Context(), wire.SessionRequest{ID: id, Argv: []string{"true"}})
		if err == nil || errors.Is(err, ErrUnclear) || m.Unusable() == nil {
			t.Fatal("a session host that refuses:", err)
		}
		if left, err := os.ReadDir(m.Dir); len(left) > 0 || err != nil {
			t.Fatal(left, err)
		}
	}
}
