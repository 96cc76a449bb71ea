package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// rotate runs fleet rotate for one machine.
func (w *world) rotate(exit int, args ...string) wire.Rotation {
	w.t.Helper()
	r := w.run("fleet", append([]string{"rotate", "box", "--json"}, args...)...)
	var doc wire.Rotation
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.exit != exit || doc.Schema != wire.SchemaRotation {
		w.t.Fatalf("fleet rotate box %v: want exit %d: %s", args, exit, r)
	}
	return doc
}

// TestRotateARealMachine: a machine under systemd rotates when it is asked,
// whatever is in the way at that moment. // R16, R20, R21
func TestRotateARealMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.install(h, "dana", "box", "--label", "env=prod")
	generation := func(want int64) func() error {
		return func() error {
			if m := w.show("box"); m.Credential.Generation != want || m.Credential.NextPending || m.Requests.Rotate != nil {
				return fmt.Errorf("%+v, %+v", m.Credential, m.Requests)
			}
			return nil
		}
	}
	w.poll("generation 2", generation(2))

	if doc := w.rotate(0, "--wait", "--timeout", "60s"); doc.Status != wire.StatusDone || doc.Generation != 3 || doc.RequestedAt != nil {
		t.Errorf("%+v", doc)
	}
	w.must("fleet", "exec", "box", "--", "true") // the data path goes on with the new row

	t.Run("a young one is left alone", func(t *testing.T) {
		if doc := w.rotate(0, "--older-than", "1h"); doc.Status != wire.StatusDone || doc.Generation != 3 || doc.RequestedAt != nil {
			t.Errorf("%+v", doc)
		}
		w.poll("generation 3 to be 2 s old", func() error {
			if doc := w.rotate(0, "--older-than", "2s", "--wait", "--timeout", "60s"); doc.Generation != 4 {
				return fmt.Errorf("%+v", doc)
			}
			return nil
		})
	})

	t.Run("a stopped one rotates once it is started, however often it was asked", func(t *testing.T) {
		w.must("fleet", "stop", "box")
		w.must("fleet", "wait", "box", "--for", "stopped", "--timeout", "60s")
		first := w.rotate(0)
		second := w.rotate(0)
		if first.Status != wire.StatusRequested || second.RequestedAt == nil || !second.RequestedAt.Equal(first.RequestedAt.Time) || !strings.Contains(first.Detail, "stopped") {
			t.Errorf("%+v, then %+v", first, second)
		}
		if doc := w.rotate(8, "--wait", "--timeout", "1s"); doc.Status != wire.StatusRequested {
			t.Errorf("%+v", doc)
		}
		w.must("fleet", "start", "box")
		if doc := w.rotate(0, "--wait", "--timeout", "60s"); doc.Generation != 5 {
			// A request that was answered before this one came is another's.
			w.poll("one generation a request", generation(doc.Generation))
		}
	})

	t.Run("a machine that was cut off while its plane was killed", func(t *testing.T) {
		before := w.show("box").Credential.Generation
		if err := h.PowerOff(t.Context()); err != nil {
			t.Fatal(err)
		}
		if doc := w.rotate(0); doc.Status != wire.StatusRequested || doc.RequestedAt == nil {
			t.Errorf("%+v", doc)
		}
		w.endPlane(syscall.SIGKILL)
		w.fails(7, "", "rotate", "box")
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.startPlane()
		w.poll("the answer of the machine that came back", generation(before+1))
	})

	t.Run("one that cannot write is deferred, and rotates once it can", func(t *testing.T) {
		before := w.show("box").Credential.Generation
		w.sh(h, "dana", "chmod 500 ~/.local/share/fleet-agent/*/")
		defer w.sh(h, "dana", "chmod 700 ~/.local/share/fleet-agent/*/")
		w.poll("a blocker that says why", func() error {
			if doc := w.rotate(0); doc.Status != wire.StatusDeferred || doc.Generation != before {
				return fmt.Errorf("%+v", doc)
			}
			return nil
		})
		r := w.fails(8, "cannot write its next secret", "rotate", "box", "--wait", "--timeout", "1s")
		if !strings.Contains(r.err, "make room") {
			t.Error(r)
		}
		w.sh(h, "dana", "chmod 700 ~/.local/share/fleet-agent/*/")
		w.poll("a rotation", generation(before+1))
		w.poll("the blocker to go", func() error {
			if m := w.show("box"); m.Readiness.State != wire.Ready {
				return fmt.Errorf("%+v", m.Readiness)
			}
			return nil
		})
	})

	t.Run("from cron, by a token", func(t *testing.T) {
		before := w.show("box").Credential.Generation
		token, less := filepath.Join(w.dir, "rotator"), filepath.Join(w.dir, "reader")
		w.must("fleet", "token", "add", "rotator", "--scope", "read,rotate", "--expires", "1h", "--out", token)
		w.must("fleet", "token", "add", "reader", "--scope", "read", "--expires", "1h", "--out", less)
		w.fails(9, "may not", "--token-file", less, "rotate", "box") // R8
		out := w.must("fleet", "--token-file", token, "rotate", "--all", "--wait", "--timeout", "60s", "--jsonl")
		lines := bufio.NewScanner(strings.NewReader(out))
		var res wire.Result
		var sum wire.Summary
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &res) != nil || !lines.Scan() || json.Unmarshal(lines.Bytes(), &sum) != nil ||
			!res.OK || res.Status != wire.StatusDone || sum.OK != 1 || sum.Failed != 0 {
			t.Error(out)
		}
		w.poll("one generation more", generation(before+1))
	})

	// R20: what is superseded stays so, and is kept one step longer.
	files := w.sh(h, "dana", `cd ~/.local/share/fleet-agent/*/ && grep -ho '"generation":[0-9]*' credential credential.previous && ls`)
	g := w.show("box").Credential.Generation
	if want := fmt.Sprintf("\"generation\":%d\n\"generation\":%d\n", g, g-1); !strings.HasPrefix(files, want) || strings.Contains(files, "credential.next") || strings.Contains(files, ".damaged") {
		t.Errorf("generation %d: %s", g, files)
	}
}
