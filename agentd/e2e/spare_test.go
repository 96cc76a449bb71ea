package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// shims are the processes that run the machine's shim.
func (m *machine) shims() (pids []int) {
	want, err := filepath.EvalSymlinks(m.data + "/v/agentd-shim")
	if err != nil {
		m.t.Fatal(err)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, l := range links {
		if exe, err := os.Readlink(l); err == nil && exe == want {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(l)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// A request whose answer was lost is sent again, and one session is what comes
// of both.
func TestRepeatedRequestStartsOneSession(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	mark := t.TempDir() + "/runs"
	req := wire.SessionRequest{ID: wire.NewSessionID(), Argv: []string{"sh", "-c", "echo run >> " + mark + "; echo output"}}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := c.Create(ctx(t), req)
			if f := fault.Of(err); f != nil && f.Code == wire.CodeCannotTell {
				return // two at the same instant: one is told to ask again
			}
			if err != nil || s.ID != req.ID {
				t.Error(s, err)
			}
		})
	}
	wg.Wait()
	var out bytes.Buffer
	if _, exit, err := c.Run(ctx(t), req, agentclient.Attachment{Stdout: &out}); err != nil || exit.Code != 0 || out.String() != "output\n" {
		t.Errorf("%+v, %v: %q", exit, err, out.String())
	}
	if b, err := os.ReadFile(mark); err != nil || string(b) != "run\n" {
		t.Errorf("it ran %d times: %v", strings.Count(string(b), "\n"), err)
	}
	for _, id := range []string{"../../etc", "s_", "s_UPPERCASE1", req.ID + "x"} {
		_, err := c.Create(ctx(t), wire.SessionRequest{ID: id, Argv: []string{"true"}})
		if f := fault.Of(err); f == nil || f.Code != wire.CodeBadRequest {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

// A shim that waits for another session is nobody's weak point: killed, it is
// replaced, and it goes with its agent.
func TestSpareShim(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	run := func() {
		t.Helper()
		var out bytes.Buffer
		if _, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"echo", "hello"}}, agentclient.Attachment{Stdout: &out}); err != nil || exit.Code != 0 || out.String() != "hello\n" {
			t.Errorf("%+v, %v: %q", exit, err, out.String())
		}
	}
	for range 3 {
		run()
		m.await("a shim that is ready", func() bool { return len(m.shims()) > 0 })
		for _, pid := range m.shims() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		run()
	}
	m.await("a shim that is ready", func() bool { return len(m.shims()) > 0 })
	m.kill()
	m.await("no shim", func() bool { return len(m.shims()) == 0 })
}

// One shim hosts one session after the other, and nothing of one shows in the
// next: neither its umask nor its lock, nor a signal that came too late for it.
func TestShimHostsSessionsOneByOne(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	seen := map[int]bool{}
	var before string
	for i := range 20 {
		var out bytes.Buffer
		id, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "umask; umask 777; echo to stderr >&2; exit " + strconv.Itoa(i)}},
			agentclient.Attachment{Stdout: &out})
		if err != nil || exit.Code != i || out.String() != "0022\n" && out.String() != "0077\n" && out.String() != "0002\n" {
			t.Fatalf("%+v, %v: %q", exit, err, out.String())
		}
		for _, pid := range m.shims() {
			seen[pid] = true
		}
		if before != "" {
			if _, err := c.Signal(ctx(t), before, "TERM"); fault.Of(err) == nil || fault.Of(err).Code != wire.CodeConflict {
				t.Errorf("a signal to the session before: %v", err)
			}
			var again bytes.Buffer
			if exit, _, err := c.Attach(ctx(t), before, 0, agentclient.Attachment{Stdout: &again}); err != nil || exit.Code != i-1 || again.Len() == 0 {
				t.Errorf("the session before: %+v, %v, %q", exit, err, again.String())
			}
		}
		before = id
		m.await("a shim that is ready", func() bool {
			one, err := c.Session(ctx(t), before)
			return err == nil && one.State == wire.SessionExited && len(m.shims()) > 0
		})
	}
	if len(seen) > 4 {
		t.Errorf("%d shims for 20 sessions", len(seen))
	}
}
