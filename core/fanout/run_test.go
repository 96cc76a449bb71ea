package fanout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

// machines are n machines with names and links.
func machines(n int) []Machine {
	out := make([]Machine, n)
	for i := range out {
		out[i] = Machine{ID: fmt.Sprintf("m_%026d", i), Name: fmt.Sprintf("box-%d", i), Link: &state.Link{}}
	}
	return out
}

// use is a command line with the machines that its selector found.
type use struct {
	spec     Spec
	machines []Machine
	do       Do
	table    func([]Done) error
	stdout   io.Writer          // instead of a buffer
	cancel   context.CancelFunc // of the command, once it runs
}

func (u *use) run(t *testing.T, line string) (out, errOut string, exit int) {
	t.Helper()
	app := &command.App{Name: "fleet", Commands: []*command.Command{{
		Name: "do", Args: "MACHINE", Max: -1, Flags: append(command.JSONFlags(true), u.spec.Flags()...), FailureExit: u.spec.FailureExit,
		Run: func(ctx context.Context, c *command.Call) error {
			ctx, u.cancel = context.WithCancel(ctx)
			defer u.cancel()
			sel, err := u.spec.Parse(c)
			if err != nil {
				return err
			}
			return sel.Each(ctx, c, u.machines, u.do, u.table)
		}}}}
	var o, e bytes.Buffer
	std := command.IO{Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Getenv: func(string) string { return "" }}
	if u.stdout != nil {
		std.Stdout = u.stdout
	}
	exit = app.Main(append([]string{"fleet", "do"}, strings.Fields(line)...), std)
	return o.String(), e.String(), exit
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got:\n%s\nwant:\n%s", path, got, want)
	}
}

// mixed goes well on even machines. Of the odd ones, 1 fails by fleet's own
// doing and 3 by the remote command's.
func mixed(_ context.Context, o *One) (Outcome, error) {
	switch o.Name {
	case "box-1":
		return Outcome{}, fault.New(fault.Unreachable, "ssh_unreachable", "cannot reach box-1.example.org port 22:\nno route to \x1b[31mhost, and this goes on for longer than a line").
			WithHint("fleet test box-1.example.org")
	case "box-3":
		return Outcome{Exit: 7}, nil
	}
	return Outcome{Document: map[string]string{"state": "stopped"}, Words: "stopped"}, nil
}

// One machine's failure hides nobody else's result, whatever the form.
func TestEveryMachineHasItsResult(t *testing.T) {
	many := append(machines(4), Machine{ID: "m_" + strings.Repeat("z", 26), Name: strings.Repeat("long-", 12) + "end"})
	for name, line := range map[string]string{"many": "--all", "many-json": "--all --json", "many-jsonl": "--all --jsonl --parallel 1",
		"many-dry": "--all --dry-run", "many-dry-jsonl": "--all --dry-run --jsonl"} {
		u := &use{spec: Spec{Does: "stop", Linked: true}, machines: many, do: mixed}
		out, errOut, exit := u.run(t, line)
		if exit != fault.Partial {
			t.Errorf("%s: exit %d", name, exit)
		}
		for l := range strings.Lines(out + errOut) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(l, "\n")); n > 80 && !strings.Contains(name, "json") {
				t.Errorf("%s: %d characters: %s", name, n, l)
			}
		}
		golden(t, name, "$ fleet do "+line+"\n"+out+"--- stderr\n"+errOut)
	}
}

func TestResultsStandInOrderWhicheverEndsFirst(t *testing.T) {
	const n = 8
	turn := make([]chan struct{}, n+1)
	for i := range turn {
		turn[i] = make(chan struct{})
	}
	close(turn[n])
	u := &use{spec: Spec{}, machines: machines(n), do: func(_ context.Context, o *One) (Outcome, error) {
		var i int
		fmt.Sscanf(o.Name, "box-%d", &i)
		<-turn[i+1] // the last one ends first
		close(turn[i])
		return Outcome{Words: "done"}, nil
	}}
	out, _, _ := u.run(t, "--all")
	var names []string
	for l := range strings.Lines(out) {
		names = append(names, strings.Fields(l)[1])
	}
	if len(names) != n || !slices.IsSorted(names) {
		t.Error(names)
	}
}

func TestNoMoreAtOnceThanParallel(t *testing.T) {
	for _, limit := range []int32{1, 3} {
		var now, most atomic.Int32
		gate := make(chan struct{})
		var once sync.Once
		u := &use{machines: machines(9), do: func(context.Context, *One) (Outcome, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if n == limit {
				once.Do(func() { close(gate) }) // as many as may be are there
			}
			<-gate
			return Outcome{}, nil
		}}
		if _, errOut, exit := u.run(t, fmt.Sprintf("--all --parallel %d", limit)); exit != 0 || most.Load() != limit || errOut != "9 ok, 0 failed\n" {
			t.Errorf("exit %d, %d at once, want %d: %s", exit, most.Load(), limit, errOut)
		}
	}
}

// What is under way ends by itself; what was never begun is said to be that.
func TestMaxFailedBeginsNoMore(t *testing.T) {
	begun := 0
	u := &use{spec: Spec{}, machines: machines(5), do: func(ctx context.Context, o *One) (Outcome, error) {
		begun++
		if ctx.Err() != nil {
			t.Error("a deed under way was cut off")
		}
		return Outcome{}, errors.New("no")
	}}
	out, _, exit := u.run(t, "--all --jsonl --parallel 1 --max-failed 2")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if exit != fault.Partial || begun != 2 || len(lines) != 6 {
		t.Fatalf("exit %d, %d begun: %s", exit, begun, out)
	}
	var sum wire.Summary
	if err := json.Unmarshal([]byte(lines[5]), &sum); err != nil || sum != (wire.Summary{Schema: wire.SchemaSummary, Failed: 2, NotBegun: 3}) {
		t.Errorf("%+v %v", sum, err)
	}
	var r wire.Result
	if err := json.Unmarshal([]byte(lines[3]), &r); err != nil || r.OK || r.Status != wire.StatusNotBegun || r.Error.Message != "left out: 2 machines failed" {
		t.Errorf("%s: %v", lines[3], err)
	}
	if _, errOut, _ := u.run(t, "--all --parallel 1 --max-failed 2"); !strings.HasSuffix(errOut, "\n0 ok, 2 failed, 3 not begun\n") || strings.Count(errOut, "\n") != 3 {
		t.Error(errOut)
	}
}

// Waiting holds nothing, so it is ended rather than waited for.
func TestMaxFailedEndsWhatOnlyWaits(t *testing.T) {
	u := &use{spec: Spec{Cheap: true}, machines: machines(40), do: func(ctx context.Context, o *One) (Outcome, error) {
		if o.Name == "box-7" {
			return Outcome{}, errors.New("gone")
		}
		<-ctx.Done()
		return Outcome{}, ctx.Err()
	}}
	if _, errOut, exit := u.run(t, "--all --max-failed 1"); exit != fault.Partial || !strings.HasSuffix(errOut, "0 ok, 1 failed, 39 not begun\n") {
		t.Errorf("exit %d: %s", exit, errOut)
	}
}

func TestAnInterruptBeginsNoMore(t *testing.T) {
	u := &use{machines: machines(4)}
	u.do = func(ctx context.Context, o *One) (Outcome, error) {
		if o.Name == "box-1" {
			u.cancel()
			<-ctx.Done()
			return Outcome{}, ctx.Err()
		}
		return Outcome{Words: "done"}, nil
	}
	out, errOut, exit := u.run(t, "--all --parallel 1")
	if exit != fault.Interrupted || strings.Count(out, "done") != 1 || !strings.Contains(errOut, "1 ok, 1 failed, 2 not begun\n") {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no reader") }

func TestNobodyReadsAnyMore(t *testing.T) {
	begun := 0
	u := &use{spec: Spec{Streams: true}, machines: machines(50), stdout: broken{}, do: func(_ context.Context, o *One) (Outcome, error) {
		begun++
		_, err := io.WriteString(o.Out, "line\n")
		return Outcome{}, err
	}}
	if _, errOut, exit := u.run(t, "--all --parallel 1"); exit != fault.Failure || begun != 1 || !strings.Contains(errOut, "cannot write output: no reader") {
		t.Errorf("exit %d, %d begun: %s", exit, begun, errOut)
	}
}

func TestOneNamedMachineFailsAsTheCommand(t *testing.T) {
	u := &use{spec: Spec{Does: "stop", FailureExit: fault.ExecFailure}, machines: machines(1), do: func(context.Context, *One) (Outcome, error) {
		return Outcome{}, fault.New(fault.NotFound, "no_destination", "no way")
	}}
	if out, errOut, exit := u.run(t, "box"); exit != 255 || out != "" || errOut != "fleet: no way\n" {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
	if out, _, exit := u.run(t, "--all --jsonl"); exit != fault.Partial || !strings.Contains(out, `"ok":false,"exit":255,"error":{"code":"no_destination","message":"no way","exit":255}}`) {
		t.Errorf("exit %d: %s", exit, out)
	}
	u.do = func(context.Context, *One) (Outcome, error) { return Outcome{Exit: 42}, nil }
	if out, errOut, exit := u.run(t, "box"); exit != 42 || out+errOut != "" {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
	u.do = func(context.Context, *One) (Outcome, error) {
		return Outcome{Document: map[string]int{"x": 1}, Words: "stopped"}, nil
	}
	if out, errOut, exit := u.run(t, "box"); exit != 0 || out != "" || errOut != "box-0: stopped\n" {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
	if out, errOut, exit := u.run(t, "box --jsonl"); exit != 0 || out != "{\"x\":1}\n" || errOut != "" {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
	u.do = nil
	if out, _, exit := u.run(t, "box --dry-run"); exit != 0 || out != "m_00000000000000000000000000  box-0  would stop\n" {
		t.Errorf("exit %d: %s", exit, out)
	}
}

// An empty list is no failure.
func TestNothingSelectedIsNoFailure(t *testing.T) {
	u := &use{spec: Spec{Does: "stop"}}
	for line, want := range map[string]string{"--all": "no machines\n", "--all --jsonl": `{"schema":"fleet.summary/v1","ok":0,"failed":0}` + "\n",
		"--all --json": "{\n  \"schema\": \"fleet.results/v1\",\n  \"results\": [],\n  \"ok\": 0,\n  \"failed\": 0\n}\n"} {
		if out, errOut, exit := u.run(t, line); exit != 0 || out+errOut != want {
			t.Errorf("%s: exit %d: %s%s", line, exit, out, errOut)
		}
	}
}

// Names that are not told apart by themselves are by ids.
func TestSharedNamesAreToldApart(t *testing.T) {
	two := machines(2)
	two[1].Name = two[0].Name
	u := &use{spec: Spec{Streams: true}, machines: two, do: func(_ context.Context, o *One) (Outcome, error) {
		_, err := io.WriteString(o.Out, "x")
		return Outcome{}, err
	}}
	if out, _, _ := u.run(t, "--all --parallel 1"); out != two[0].ID+": x\n"+two[1].ID+": x\n" {
		t.Error(out)
	}
}

func TestUsage(t *testing.T) {
	one, several, gone, wait := Spec{}, Spec{Several: true}, Spec{Several: true, Destructive: true}, Spec{Cheap: true}
	for _, x := range []struct {
		spec  Spec
		line  string
		words string // "" is taken
	}{
		{one, "a", ""}, {one, "-l env=prod", ""}, {one, "--all --parallel 3 --max-failed 1", ""}, {several, "a b --parallel 2", ""},
		{several, "a --parallel 2", ""}, {gone, "a b", ""}, {gone, "--all --yes", ""}, {gone, "--all --dry-run", ""}, {gone, "a --yes", ""},
		{wait, "--presence absent --lifecycle unknown --blocker disk_low --agent-version 1", ""},
		{one, "", "MACHINE is missing"}, {one, "a -l x=y", "not both"}, {one, "a --all", "not both"}, {one, "--all -l x=y", "do not go together"},
		{one, "a --parallel 2", "--parallel is for many machines"}, {one, "a --max-failed 2", "--max-failed is for many machines"},
		{one, "--all --parallel 0", "--parallel takes a number from 1"}, {one, "--all --max-failed -1", "one from 0"}, {one, "--all --parallel x", `--parallel takes a whole number, not "x"`},
		{gone, "--all", "needs --yes"}, {gone, "-l x=y", "needs --yes"}, {one, "--all --yes", "unknown flag --yes"}, {wait, "--all --parallel 2", "unknown flag"},
		{one, "--presence lost", "--presence is one of present, absent, never"}, {one, "--lifecycle dead", "--lifecycle is one of"},
		// An empty variable in a script must not come to mean something else.
		{gone, "--selector= --yes", "--selector is empty"}, {one, "a --selector=", "--selector is empty"}, {one, "--presence=", "--presence is one of"},
		{one, "--blocker=", "--blocker is empty"}, {one, "--agent-version=", "--agent-version is empty"},
	} {
		u := &use{spec: x.spec, machines: machines(1), do: func(context.Context, *One) (Outcome, error) { return Outcome{}, nil }}
		_, errOut, exit := u.run(t, x.line)
		if x.words == "" && exit != 0 || x.words != "" && (exit != fault.Usage || !strings.Contains(errOut, x.words)) {
			t.Errorf("%q: exit %d, want %q: %s", x.line, exit, x.words, errOut)
		}
	}
}
