package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// many is what a command on many machines printed under --jsonl.
type many struct {
	outputs []wire.Output
	results map[string]wire.Result
	sum     wire.Summary
}

func parseMany(t *testing.T, out string) many {
	t.Helper()
	m := many{results: map[string]wire.Result{}}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, l := range lines {
		var kind struct{ Schema, Stream string }
		if err := json.Unmarshal([]byte(l), &kind); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		var err error
		switch {
		case kind.Schema == wire.SchemaSummary:
			if err = json.Unmarshal([]byte(l), &m.sum); i != len(lines)-1 {
				t.Errorf("the summary is not the last line: %s", out)
			}
		case kind.Stream != "":
			var o wire.Output
			err = json.Unmarshal([]byte(l), &o)
			m.outputs = append(m.outputs, o)
		case kind.Schema == "":
			var r wire.Result
			err = json.Unmarshal([]byte(l), &r)
			m.results[r.Name] = r
		}
		if err != nil {
			t.Fatalf("%v: %s", err, l)
		}
	}
	if m.sum.Schema == "" {
		t.Errorf("no summary: %s", out)
	}
	return m
}

func sortedLines(s string) string {
	l := strings.SplitAfter(s, "\n")
	slices.Sort(l)
	return strings.Join(l, "")
}

// TestManyMachines selects two accounts' machines on one host.
func TestManyMachines(t *testing.T) {
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana"}, {Name: "erin"}}})
	w.install(h, "dana", "box-1", "--label", "env=prod")
	w.install(h, "erin", "box-2", "--label", "env=prod")
	accepted := func() string { return w.sh(h, "root", "journalctl --no-pager -q | grep -c 'Accepted publickey'") }

	w.accountsApart(h)

	t.Run("exec names each line's machine", func(t *testing.T) {
		r := w.run("fleet", "exec", "-l", "env=prod", "--", "sh", "-c", "id -un; echo oops >&2")
		if r.exit != 0 || sortedLines(r.out) != "box-1: dana\nbox-2: erin\n" ||
			sortedLines(r.err) != "2 ok, 0 failed\nbox-1: oops\nbox-2: oops\n" {
			t.Error(r)
		}
	})

	t.Run("one that fails hides no other", func(t *testing.T) {
		r := w.fails(3, "box-2: exit status 4\n1 ok, 1 failed\n", "exec", "--all", "--parallel", "1", "--", "sh", "-c", "echo here; test $(id -un) = dana || exit 4")
		if r.out != "box-1: here\nbox-2: here\n" {
			t.Error(r)
		}
		r = w.fails(3, "", "exec", "--all", "--jsonl", "--", "sh", "-c", `printf '\377\000%s' $(id -un); test $(id -un) = dana || exit 4`)
		m := parseMany(t, r.out)
		if m.sum.OK != 1 || m.sum.Failed != 1 || !m.results["box-1"].OK || m.results["box-2"].Exit != 4 || m.results["box-2"].Error != nil || len(m.outputs) != 2 {
			t.Error(r)
		}
		for _, o := range m.outputs {
			account := map[string]string{"box-1": "dana", "box-2": "erin"}[o.Name]
			if o.Data != "" || string(o.DataB64) != "\xff\x00"+account || !strings.Contains(r.out, base64.StdEncoding.EncodeToString(o.DataB64)) {
				t.Errorf("%+v", o)
			}
		}
		if r := w.run("fleet", "exec", "--jsonl", "box-2", "--", "sh", "-c", "exit 9"); r.exit != 9 || strings.Count(r.out, "\n") != 1 || !strings.Contains(r.out, `"name":"box-2","ok":false,"exit":9,"error":null}`) {
			t.Error(r)
		}
	})

	t.Run("much output loses nothing and no connection", func(t *testing.T) {
		const line = "0123456789012345678901234567890123456789012345678901234567890123456789\n"
		r := w.run("fleet", "exec", "--all", "--", "sh", "-c", "yes "+strings.TrimSpace(line)+" | head -n 200000")
		if r.exit != 0 || r.err != "2 ok, 0 failed\n" || strings.Count(r.out, "box-1: "+line) != 200000 || strings.Count(r.out, "box-2: "+line) != 200000 ||
			len(r.out) != 400000*len("box-1: "+line) {
			t.Errorf("exit %d, %d bytes: %s", r.exit, len(r.out), r.err)
		}
	})

	t.Run("a failure can be the last", func(t *testing.T) {
		r := w.fails(3, "", "exec", "--all", "--parallel", "1", "--max-failed", "1", "--jsonl", "--", "false")
		m := parseMany(t, r.out)
		if m.sum.OK != 0 || m.sum.Failed != 1 || m.sum.NotBegun != 1 || m.results["box-2"].Status != wire.StatusNotBegun {
			t.Error(r)
		}
	})

	t.Run("a dry run reaches nobody", func(t *testing.T) {
		before := accepted()
		for _, c := range []string{"exec --all --dry-run -- false", "stop --all --dry-run", "update --all --dry-run", "uninstall --all --dry-run",
			"uninstall box-1 box-2 --dry-run", "delete --all --dry-run", "label --all --dry-run env=test", "logs --all -f --dry-run --parallel 1", "drain -l env=prod --dry-run"} {
			if r := w.run("fleet", strings.Fields(c)...); r.exit != 0 || strings.Count(r.out, "  would ") != 2 || !strings.Contains(r.err, "dry run, nothing was done: 2 ok, 0 failed\n") {
				t.Errorf("%s: %s", c, r)
			}
		}
		if after := accepted(); after != before {
			t.Errorf("logins before %s, after %s", before, after)
		}
		if m := w.machines(); len(m) != 2 || m[0].Labels["env"] != "prod" || m[0].Lifecycle.State != wire.LifecycleRunning {
			t.Errorf("%+v", m)
		}
	})

	t.Run("what makes no sense on many is refused", func(t *testing.T) {
		w.fails(2, "-i is for one machine", "exec", "--all", "-i", "--", "cat")
		w.fails(2, "-t is for one machine", "exec", "--all", "-t", "--", "cat")
		w.fails(2, "--jsonl prints it as it comes", "exec", "--all", "--json", "--", "true")
		w.fails(2, "has no end", "logs", "--all", "-f", "--parallel", "1")
		w.fails(2, "needs --yes", "uninstall", "--all")
		w.fails(5, "takes no prefix", "uninstall", "box-")
		w.fails(2, "ambiguous", "stop", "box", "--json")
	})

	t.Run("their agents stop, start, restart, drain", func(t *testing.T) {
		both := func(words string, args ...string) {
			t.Helper()
			r := w.run("fleet", args...)
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			if r.exit != 0 || len(lines) != 2 || !strings.Contains(lines[0], "  box-1  "+words) || !strings.Contains(lines[1], "  box-2  "+words) || !strings.HasSuffix(r.err, "2 ok, 0 failed\n") {
				t.Errorf("fleet %v: %s", args, r)
			}
		}
		both("draining, 0 sessions run", "drain", "--all", "--wait")
		both("running", "undrain", "--all")
		both("running", "restart", "-l", "env=prod")
		both("stopped", "stop", "--all")
		both("present  stopped  ", "wait", "--all", "--for", "stopped", "--timeout", "30s")
		both("running", "start", "--lifecycle", "stopped")
		both("present  running  ", "wait", "--all", "--for", "present", "--timeout", "30s")
		both("labelled", "label", "--all", "tier=front")
		both("s_", "exec", "--all", "--detach", "--", "true")
		w.fails(3, "0 ok, 2 failed", "wait", "--all", "--for", "absent", "--timeout", "100ms")
	})

	t.Run("logs and sessions", func(t *testing.T) {
		r := w.run("fleet", "logs", "--all", "-n", "1")
		if lines := strings.Split(sortedLines(r.out), "\n"); r.exit != 0 || len(lines) != 3 || !strings.HasPrefix(lines[0], "box-1: ") || !strings.HasPrefix(lines[1], "box-2: ") {
			t.Error(r)
		}
		m := parseMany(t, w.must("fleet", "logs", "--all", "-n", "1", "--jsonl"))
		if len(m.outputs) != 2 || m.sum.OK != 2 {
			t.Errorf("%+v", m)
		}
		r = w.run("fleet", "sessions", "--all")
		if r.exit != 0 || !strings.HasPrefix(r.out, "NAME ") || !strings.Contains(r.out, "\nbox-1 ") || !strings.Contains(r.out, "\nbox-2 ") {
			t.Error(r)
		}
		out := w.must("fleet", "sessions", "--all", "--jsonl")
		if m := parseMany(t, out); m.sum.OK != 2 || !strings.Contains(out, `{"schema":"fleet.session/v1"`) {
			t.Error(out)
		}
	})

	t.Run("an interrupt goes to every command", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := w.cmd(ctx, "fleet", "exec", "--all", "--jsonl", "--", "sh", "-c", "echo up; exec sleep 600")
		var out lockedBuffer
		c.Stdout = &out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		w.poll("both commands", func() error {
			if n := strings.Count(out.String(), `"data":"up\n"`); n != 2 {
				return fmt.Errorf("%d run", n)
			}
			return nil
		})
		c.Process.Signal(syscall.SIGINT)
		c.Wait()
		m := parseMany(t, out.String())
		if c.ProcessState.ExitCode() != 130 || m.sum.Failed != 2 || m.results["box-1"].Exit != 130 || m.results["box-2"].Exit != 130 {
			t.Errorf("exit %d: %s", c.ProcessState.ExitCode(), out.String())
		}
		if r := w.run("fleet", "exec", "box-1", "--", "pgrep", "-x", "sleep"); r.exit != 1 {
			t.Error("the command goes on: ", r)
		}
	})

	t.Run("a machine that is down fails alone", func(t *testing.T) {
		w.must("fleet", "stop", "box-2")
		r := w.fails(3, "", "exec", "--all", "--jsonl", "--", "true")
		if m := parseMany(t, r.out); !m.results["box-1"].OK || m.results["box-2"].Exit != 255 || m.results["box-2"].Error.Code != "stopped" {
			t.Error(r)
		}
		w.must("fleet", "start", "box-2")
		w.must("fleet", "wait", "box-2", "--timeout", "30s")
	})

	t.Run("update, rollback, uninstall", func(t *testing.T) {
		var doc wire.Results
		if err := json.Unmarshal([]byte(w.must("fleet", "update", "box-2", "box-1", "--json")), &doc); err != nil ||
			doc.Schema != wire.SchemaResults || doc.OK != 2 || len(doc.Results) != 2 || doc.Results[0].Name != "box-1" || doc.Results[0].Document == nil {
			t.Errorf("%+v %v", doc, err)
		}
		r := w.fails(3, "", "rollback", "--all", "--jsonl")
		if m := parseMany(t, r.out); m.sum.Failed != 2 || m.results["box-1"].Error.Code != "no_former_version" {
			t.Error(r)
		}
		w.must("fleet", "host", "unlink", "box-2")
		w.must("fleet", "rename", "box-2", "box")
		// The link box-1 begins so, and another machine is called so.
		if r := w.run("fleet", "exec", "box", "--", "true"); r.exit != 255 || !strings.Contains(r.err, "no SSH destination is known for box\n") {
			t.Error(r)
		}
		w.must("fleet", "rename", "box", "box-2")
		w.must("fleet", "exec", "box", "--", "true")
		r = w.fails(3, "", "uninstall", "--all", "--yes", "--jsonl")
		if m := parseMany(t, r.out); m.sum.OK != 1 || m.results["box-2"].Error.Code != "no_destination" || m.results["box-2"].Exit != 5 {
			t.Error(r)
		}
		if m := w.machines(); len(m) != 1 || m[0].Name != "box-2" {
			t.Errorf("%+v", m)
		}
	})
}
