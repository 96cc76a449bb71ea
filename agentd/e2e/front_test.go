package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// front is the data-path commands over this machine's own sockets.
func (m *machine) front(stdin string, args ...string) (out, errOut string, exit int) {
	m.t.Helper()
	return m.frontOver(target{m}, stdin, args...)
}

// frontOver is front over a way of the test's.
func (m *machine) frontOver(way cli.Target, stdin string, args ...string) (out, errOut string, exit int) {
	m.t.Helper()
	var o bytes.Buffer
	errOut, exit = m.frontTo(&o, way, stdin, args...)
	return o.String(), errOut, exit
}

// frontTo is front with standard output going elsewhere.
func (m *machine) frontTo(out io.Writer, way cli.Target, stdin string, args ...string) (errOut string, exit int) {
	m.t.Helper()
	app := &command.App{Name: "fleet", Summary: "x", Version: "1", Commands: cli.DataPath(cli.Reach{
		Find: func(_ context.Context, _ *command.Call, word string) (fanout.Machine, error) {
			return fanout.Machine{ID: "m_x", Name: word}, nil
		},
		Open: func(context.Context, *command.Call, fanout.Machine) (cli.Target, error) { return way, nil },
	})}
	var e bytes.Buffer
	exit = app.Main(append([]string{"fleet"}, args...), command.IO{Stdin: strings.NewReader(stdin), Stdout: out, Stderr: &e,
		Getenv: func(string) string { return "" }})
	return e.String(), exit
}

type target struct{ *machine }

func (target) ID() string   { return "m_x" }
func (target) Name() string { return "box" }
func (target) Close() error { return nil }

func (t target) Control(_ context.Context, verb string) (*wire.AgentStatus, error) {
	out, errOut, exit := t.agentd("", verb, "--json")
	if exit != 0 {
		return nil, fault.New(fault.Failure, "x", "%s", errOut)
	}
	var s wire.AgentStatus
	return &s, json.Unmarshal([]byte(out), &s)
}

func TestFrontExec(t *testing.T) { // R33, R34
	m, _, _ := installed(t)
	m.start()
	env := m.root + "/env"
	if err := os.WriteFile(env, []byte("# comment\nFROM_FILE=a b=c\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		stdin  string
		args   []string
		out    string
		errOut string
		exit   int
	}{
		{args: []string{"exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"}, out: "out\n", errOut: "err\n", exit: 7},
		{args: []string{"exec", "box", "--", "cat"}, stdin: "not passed on"},
		{args: []string{"exec", "-i", "box", "--", "cat"}, stdin: "passed on", out: "passed on"},
		{args: []string{"exec", "box", "--env", "A=1,2", "--env-file", env, "--", "sh", "-c", `echo "$A|$FROM_FILE"`}, out: "1,2|a b=c\n"},
		{args: []string{"exec", "box", "--", "kill -9 me"}, errOut: "fleet: box: kill -9 me: executable file not found in $PATH\n", exit: 127},
		{args: []string{"exec", "box", "--", "sh", "-c", "kill -9 $$"}, exit: 137},
		{args: []string{"exec", "box", "-w", "none", "--", "true"}, errOut: "fleet: no workspace is named \"none\"\n", exit: 255},
		{args: []string{"exec", "box", "--env", "A", "--", "true"}, errOut: "fleet: --env takes K=V\n", exit: 2},
		{args: []string{"attach", "box", "s_aaaaaaaaaa"}, errOut: "fleet: no such session\n", exit: 255},
		{args: []string{"kill", "box", "s_aaaaaaaaaa"}, errOut: "fleet: no such session\n", exit: 5},
	} {
		out, errOut, exit := m.front(x.stdin, x.args...)
		if out != x.out || errOut != x.errOut || exit != x.exit {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", x.args, exit, out, errOut)
		}
	}
}

func TestFrontSessions(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	out, errOut, exit := m.front("", "sessions", "box", "--json")
	var list wire.Sessions
	if exit != 0 || json.Unmarshal([]byte(out), &list) != nil || list.Sessions == nil || len(list.Sessions) != 0 {
		t.Fatal(exit, out, errOut)
	}
	out, errOut, exit = m.front("", "exec", "--detach", "box", "--", "sh", "-c", "echo one; sleep 1000; echo two")
	id := strings.TrimSpace(out)
	if exit != 0 || !strings.HasPrefix(id, "s_") {
		t.Fatal(exit, out, errOut)
	}
	out, _, exit = m.front("", "sessions", "box")
	if exit != 0 || !strings.Contains(out, id) || !strings.Contains(out, "running") {
		t.Fatal(exit, out)
	}
	for line := range strings.Lines(out) {
		if len(line) > 81 {
			t.Errorf("%d columns: %q", len(line), line)
		}
	}
	if _, _, exit = m.front("", "drain", "box", "--wait", "--timeout", "1s"); exit != 8 {
		t.Fatalf("exit %d of a drain that is waited out", exit)
	}
	if _, errOut, exit = m.front("", "exec", "box", "--", "true"); exit != 255 || !strings.Contains(errOut, "draining") {
		t.Fatal(exit, errOut)
	}
	if _, errOut, exit = m.front("", "kill", "box", id, "--signal", "KILL"); exit != 0 {
		t.Fatal(exit, errOut)
	}
	if out, errOut, exit = m.front("", "attach", "box", id); exit != 137 || out != "one\n" {
		t.Fatal(exit, out, errOut)
	}
	if _, errOut, exit = m.front("", "drain", "box", "--wait", "--timeout", "20s"); exit != 0 {
		t.Fatal(exit, errOut)
	}
	if _, errOut, exit = m.front("", "undrain", "box"); exit != 0 {
		t.Fatal(exit, errOut)
	}
	if out, errOut, exit = m.front("", "logs", "box", "-n", "1"); exit != 0 || strings.Count(out, "\n") != 1 {
		t.Fatal(exit, out, errOut)
	}
}

func TestFrontRestartStopStart(t *testing.T) { // R29
	m, p, _ := installed(t)
	b, _ := json.Marshal(wire.ServiceRecord{Schema: wire.SchemaService, Manager: "plain",
		Start: []string{"sh", "-c", fmt.Sprintf("nohup %s/current/agentd run --data %s --runtime %s >/dev/null 2>&1 & echo $! >%s/pid", m.data, m.data, m.run, m.root)}})
	if err := os.WriteFile(m.data+"/service.json", b, 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	p.Await(t, "a check", isCheck)
	if _, errOut, exit := m.front("", "restart", "box"); exit != 0 || !strings.Contains(errOut, "box: running") {
		t.Fatal(exit, errOut)
	}
	if _, errOut, exit := m.front("", "stop", "box"); exit != 0 || !strings.Contains(errOut, "box: stopped") {
		t.Fatal(exit, errOut)
	}
	m.ended()
	if _, errOut, exit := m.front("", "stop", "box"); exit != 0 || !strings.Contains(errOut, "box: stopped") {
		t.Fatal("stopping again", exit, errOut)
	}
	if _, errOut, exit := m.front("", "exec", "box", "--", "true"); exit != 255 {
		t.Fatal(exit, errOut)
	}
	if _, errOut, exit := m.front("", "start", "box"); exit != 0 || !strings.Contains(errOut, "box: running") {
		t.Fatal(exit, errOut)
	}
	if out, errOut, exit := m.front("", "exec", "box", "--", "echo", "back"); exit != 0 || out != "back\n" {
		t.Fatal(exit, out, errOut)
	}
	if _, errOut, exit := m.front("", "stop", "box"); exit != 0 {
		t.Fatal(exit, errOut)
	}
}
