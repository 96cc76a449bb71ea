package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func init() { time.Local = time.UTC } // what is printed is the same everywhere

// fakeAgents answer as agents do, for every machine that has a link. The one
// of db-9 is down.
type fakeAgents struct {
	*fakePlane
	server *httptest.Server

	mu     sync.Mutex
	opened []string
}

func newAgents(t *testing.T) *fakeAgents {
	a := &fakeAgents{fakePlane: newFake(t)}
	a.machines = a.machines[:1:1]
	for i, name := range []string{"db-9", "web-2"} {
		m := sampleMachines()[0]
		m.ID, m.Name = strings.Replace(idWeb, "aaa", fmt.Sprintf("bb%d", i+2), 1), name
		a.machines = append(a.machines, m)
	}
	for _, m := range a.machines {
		if err := a.kept().SaveLink(t.Context(), state.Link{Machine: m.ID, Name: m.Name, Host: m.Name + ".example"}); err != nil {
			t.Fatal(err)
		}
	}
	mux := http.NewServeMux()
	status := func(state string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			json.NewEncoder(w).Encode(wire.AgentStatus{Schema: wire.SchemaAgent, State: state, Machine: r.Header.Get("Authorization")[len("Bearer "):]})
		}
	}
	mux.HandleFunc("POST "+wire.PathStop, status("stopped"))
	mux.HandleFunc("POST "+wire.PathUndrain, status("running"))
	mux.HandleFunc("GET "+wire.PathSessions, func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(wire.Sessions{Schema: wire.SchemaSessions, Sessions: []wire.Session{
			{ID: "s_aaaaaaaaaa", Machine: r.Header.Get("Authorization")[len("Bearer "):], Argv0: "make", State: wire.SessionRunning, StartedAt: *at("2026-01-02T03:04:05Z"), UptimeS: 90, Clients: 1, PID: 7},
			{ID: "s_bbbbbbbbbb", Argv0: "a-program-with-a-name-that-goes-on-and-on", State: wire.SessionExited, StartedAt: *at("2026-01-02T03:04:05Z"), UptimeS: 3, Exit: &wire.SessionExit{Code: 137, Signal: "KILL", At: *at("2026-01-02T03:04:08Z")}}}})
	})
	mux.HandleFunc("GET "+wire.PathLogs, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "last %s\nand\xff", r.FormValue("n")) })
	files := []wire.FileInfo{
		{Name: "notes.txt", Path: "/home/deploy/notes.txt", Type: wire.FileRegular, Size: 1234, Mode: "0644", UID: 1000, GID: 1000, ModifiedAt: *at("2026-01-02T03:04:05Z"), ETag: "0a1b2c"},
		{Name: "\xff", Path: "/home/deploy/\xff", Type: wire.FileFIFO, Mode: "0600", UID: 1000, GID: 100, ModifiedAt: *at("2026-01-02T03:04:05Z"), ETag: "0a1b2d"},
		{Name: "current", Path: "/home/deploy/current", Type: wire.FileSymlink, Size: 8, Mode: "0777", ModifiedAt: *at("2026-01-02T03:04:05Z"), Target: "releases", ETag: "0a1b2e"},
	}
	mux.HandleFunc("GET "+wire.PathFiles+"{path...}", func(w http.ResponseWriter, r *http.Request) {
		enc := json.NewEncoder(w)
		if r.PathValue("path") == "notes.txt" {
			i := files[0]
			i.Schema = wire.SchemaFile
			enc.Encode(i)
			return
		}
		if r.URL.Query().Has("stat") {
			enc.Encode(wire.FileInfo{Schema: wire.SchemaFile, Path: "/home/deploy", Name: "deploy", Type: wire.FileDirectory})
			return
		}
		for i := range files {
			enc.Encode(wire.FileLine{File: &files[i]})
		}
		enc.Encode(wire.FileLine{End: r.PathValue("path") != "cut"})
	})
	mux.HandleFunc("GET "+wire.PathWatch, func(w http.ResponseWriter, r *http.Request) {
		enc := json.NewEncoder(w)
		for i, ev := range []wire.WatchEvent{
			{Event: wire.WatchReady, Root: "/home/deploy"},
			{Event: wire.WatchCreated, Path: "src", Directory: true},
			{Event: wire.WatchCreated, Path: "src/\xff\x1b[2J"},
			{Event: wire.WatchRenamed, From: "src/a", Path: "src/b"},
			{Event: wire.WatchAttributes, Directory: true},
			{Event: wire.WatchUnwatched, Path: "src/secret", Directory: true, Reason: wire.UnwatchedForbidden},
			{Event: wire.WatchOverflow, Reason: wire.OverflowKernel},
			{Event: wire.WatchEnded, Error: &wire.ErrorDetail{Code: wire.CodeWatchLimit, Message: "cannot watch /home/deploy/x: too many watches", Hint: "raise it"}},
		} {
			ev.Token = fmt.Sprintf("%s.%d", cmp.Or(r.FormValue("from"), r.FormValue("path")), i+1)
			enc.Encode(ev)
		}
	})
	a.server = httptest.NewServer(mux)
	t.Cleanup(a.server.Close)
	return a
}

type fakeTarget struct {
	a *fakeAgents
	m fanout.Machine
}

func (t fakeTarget) ID() string   { return t.m.ID }
func (t fakeTarget) Name() string { return t.m.Name }
func (t fakeTarget) Close() error { return nil }

func (t fakeTarget) Dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", t.a.server.Listener.Addr().String())
}

func (t fakeTarget) Token(context.Context, bool) (secret.Text, error) { return secret.Of(t.m.ID), nil }

func (t fakeTarget) Control(context.Context, string) (*wire.AgentStatus, error) {
	return &wire.AgentStatus{Schema: wire.SchemaAgent, State: "running", Machine: t.m.ID}, nil
}

func (a *fakeAgents) open(_ context.Context, _ *command.Call, m fanout.Machine) (Target, error) {
	if m.Link == nil {
		return nil, fanout.NoDestination(m, m.Label())
	}
	a.mu.Lock()
	a.opened = append(a.opened, m.Name)
	a.mu.Unlock()
	if m.Name == "db-9" {
		return nil, fault.New(fault.Unreachable, "ssh_unreachable", "cannot reach db-9.example port 22: connection refused")
	}
	return fakeTarget{a, m}, nil
}

func (a *fakeAgents) run(args ...string) (out, errOut string, exit int) {
	a.t.Helper()
	app := &command.App{Name: "fleet", Flags: settings.Flags(), Commands: DataPath(Reach{Find: fanout.Linked, Open: a.open})}
	var o, e bytes.Buffer
	exit = app.Main(append([]string{"fleet"}, args...), command.IO{Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Getenv: a.getenv})
	return o.String(), e.String(), exit
}

// What agents do and say, of one machine and of many.
func TestDocumentsOfAgents(t *testing.T) {
	for name, line := range map[string]string{
		"agent-stop": "stop web-1", "agent-stop-json": "stop web-1 --json", "agent-stop-down": "stop db", "agent-stop-many": "stop --all",
		"agent-stop-many-json": "stop -l env=prod --json", "agent-start-many-jsonl": "start --all --jsonl --parallel 1", "agent-undrain-many": "undrain --presence present",
		"agent-sessions": "sessions web-1", "agent-sessions-json": "sessions web-2 --json", "agent-sessions-jsonl": "sessions web-1 --jsonl",
		"agent-sessions-many": "sessions --all", "agent-sessions-many-json": "sessions --all --json", "agent-sessions-many-jsonl": "sessions --all --jsonl --parallel 1",
		"agent-logs": "logs web-1 -n 3", "agent-logs-jsonl": "logs web-1 -n 3 --jsonl", "agent-logs-many": "logs --all -n 3 --parallel 1",
		"agent-logs-many-jsonl": "logs --all -n 3 --jsonl --parallel 1", "agent-logs-endless": "logs --all -f --parallel 2",
		"agent-parallel-one": "stop web-1 --parallel 4", "agent-drain-timeout": "drain web-1 --timeout 1m", "agent-watch-json": "sessions web-1 --watch --json",
		"file-ls": "file ls web-1:", "file-ls-json": "file ls web-1:x --json", "file-ls-jsonl": "file ls web-1:x --jsonl", "file-ls-one": "file ls web-1:notes.txt --json",
		"file-ls-cut": "file ls web-1:cut", "file-no-path": "file cat web-1", "file-none": "file", "file-write-help": "file write --help", "file-watch": "file watch web-1:", "file-watch-json": "file watch web-1: --json --from t", "file-watch-help": "file watch --help", "cp-help": "cp --help", "cp-here": "cp a ./b:c", "forward-help": "forward --help", "forward-others": "forward web-1 0.0.0.0:1:80",
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgents(t)
			out, errOut, exit := a.run(strings.Fields(line)...)
			got := fmt.Sprintf("$ fleet %s\n%s", line, out)
			if errOut != "" {
				got += "--- stderr\n" + errOut
			}
			if exit != 0 {
				got += fmt.Sprintf("--- exit %d\n", exit)
			}
			for l := range strings.Lines(errOut) { // tables that go to no terminal are as wide as their words
				if n := len([]rune(l)) - 1; n > 80 && !strings.Contains(name, "json") {
					t.Errorf("%d characters: %s", n, l)
				}
			}
			golden(t, name, got)
		})
	}
}

// A link is enough: no plane is asked for a machine that is named.
func TestANamedMachineIsReachedWithoutThePlane(t *testing.T) {
	a := newAgents(t)
	a.Server.Close()
	if _, errOut, exit := a.run("stop", "web-1"); exit != 0 {
		t.Error(exit, errOut)
	}
	if _, errOut, exit := a.run("stop", "web-1", "--dry-run"); exit != 0 || len(a.opened) != 1 {
		t.Error(exit, errOut, a.opened)
	}
	// A selector needs it, and without it nobody is reached.
	if _, errOut, exit := a.run("stop", "-l", "env=prod"); exit != fault.Unreachable || len(a.opened) != 1 {
		t.Error(exit, errOut, a.opened)
	}
	if _, errOut, exit := a.run("exec", "-l", "env=prod", "--", "true"); exit != fault.ExecFailure {
		t.Error(exit, errOut)
	}
}

// A machine that is called exactly so comes before one whose name begins so,
// wherever the two are known, and where nobody can say which is meant, nobody
// is reached.
func TestAPrefixNeverStandsForAMachineOfThatName(t *testing.T) {
	a := newAgents(t)
	for _, m := range []string{"web-10", "web-11"} {
		if err := a.kept().SaveLink(t.Context(), state.Link{Machine: strings.Replace(idWeb, "aaa", "cc"+m[5:], 1), Name: m, Host: m + ".example"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.kept().SaveLink(t.Context(), state.Link{Machine: strings.Replace(idWeb, "aaa", "ddd", 1), Name: "db-90", Host: "db-90.example"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.kept().RemoveLink(t.Context(), idWeb); err != nil {
		t.Fatal(err)
	}
	if _, err := a.kept().RemoveLink(t.Context(), a.machines[1].ID); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		line string
		exit int
		says string
	}{
		{"exec web-1 -- true", fault.ExecFailure, "no SSH destination is known for web-1\n"}, // two links begin so
		{"exec db-9 -- true", fault.ExecFailure, "no SSH destination is known for db-9\n"},   // one does
		{"stop db-9", fault.NotFound, "no SSH destination is known for db-9\n"},
		{"stop web-1", fault.NotFound, "no SSH destination is known for web-1\n"},
		{"stop db-90", 0, ""},
		{"stop web-10", 0, ""},
		{"stop web", fault.Usage, "means 3 machines"},
		{"stop db", 0, ""}, // nothing is called just that
	} {
		a.opened = nil
		_, errOut, exit := a.run(strings.Fields(x.line)...)
		if exit != x.exit || !strings.Contains(errOut, x.says) || exit != 0 && a.opened != nil {
			t.Errorf("%s: exit %d, opened %v: %s", x.line, exit, a.opened, errOut)
		}
	}
	a.Server.Close()
	a.opened = nil
	if _, errOut, exit := a.run("stop", "db"); exit != fault.Unreachable || a.opened != nil || !strings.Contains(errOut, `"db" is only how db-90 begins`) {
		t.Errorf("exit %d, opened %v: %s", exit, a.opened, errOut)
	}
	if _, errOut, exit := a.run("stop", "web-1"); exit != fault.Usage || a.opened != nil {
		t.Errorf("exit %d, opened %v: %s", exit, a.opened, errOut)
	}
}

func TestADryRunOpensNothing(t *testing.T) {
	a := newAgents(t)
	for _, line := range []string{"stop --all", "start --all", "restart --all", "drain --all", "undrain --all", "sessions --all", "logs --all", "exec --all -- true", "logs web-1"} {
		before, after, _ := strings.Cut(line, " --")
		words := append(strings.Fields(before), "--dry-run")
		if out, errOut, exit := a.run(append(words, strings.Fields("--"+after)...)...); after != "" && (exit != 0 || strings.Count(out, "would ") != 3) {
			t.Errorf("%s: exit %d: %s%s", line, exit, out, errOut)
		}
	}
	if len(a.opened) != 0 {
		t.Error(a.opened)
	}
}

// A link knows a machine under its last name, a plane under its name now.
func TestAStaleNameUninstallsNobody(t *testing.T) {
	a := newAgents(t)
	a.machines[0].Name, a.machines[2].Name = "old-web", "web-1" // web-2 took web-1's name
	find := func(word string) (fanout.Machine, error) {
		app := &command.App{Name: "fleet", Flags: settings.Flags()}
		var m fanout.Machine
		var err error
		app.Commands = []*command.Command{{Name: "find", Run: func(ctx context.Context, c *command.Call) error {
			m, err = fanout.LinkedExactly(ctx, c, word)
			return nil
		}}}
		app.Main([]string{"fleet", "find"}, command.IO{Stderr: &bytes.Buffer{}, Getenv: a.getenv})
		return m, err
	}
	if m, err := find("web-1"); fault.Of(err) == nil || fault.Of(err).Code != "ambiguous" {
		t.Errorf("%+v %v", m, err)
	}
	if m, err := find(idWeb); err != nil || m.Link == nil {
		t.Errorf("%+v %v", m, err)
	}
	if m, err := find("db-9"); err != nil || m.Link == nil || m.Link.Host != "db-9.example" {
		t.Errorf("%+v %v", m, err)
	}
	if _, err := find("db"); fault.Of(err) == nil || fault.Of(err).Exit != fault.NotFound {
		t.Error("a prefix was taken: ", err)
	}
	a.Server.Close()
	if _, err := find("db-9"); fault.Of(err) == nil || fault.Of(err).Exit != fault.Unreachable {
		t.Error("a name that only the link vouches for was taken: ", err)
	}
}
