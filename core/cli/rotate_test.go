package cli

import (
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

// What a rotation waits for is said together with what a person can do. // R21, R22
func TestARotationSaysWhatItWaitsFor(t *testing.T) {
	full := func(m *wire.Machine) {
		m.Readiness.Blockers = []wire.Blocker{{Code: "credential_unwritable", Severity: wire.SeverityBlock, Detail: "no space left on device", Remedy: "make room"}}
	}
	for name, x := range map[string]struct {
		change       func(*wire.Machine)
		status, code string
		words        []string
	}{
		"full disk": {full, wire.StatusDeferred, "not_yet", []string{"no space left on device", "make room"}},
		"behind": {func(m *wire.Machine) {
			m.Presence, m.Credential.BehindAt = wire.Absent, &wire.Time{Time: m.LastCheck.Add(time.Minute)}
		}, wire.StatusRequested, wire.CodeBehind, []string{"superseded", "install it again"}},
		"full and silent since": {func(m *wire.Machine) { full(m); m.Presence = wire.Absent }, wire.StatusRequested, "not_yet", []string{"absent", "when it is back"}},
		"stopped": {func(m *wire.Machine) {
			m.Presence, m.Lifecycle.State = wire.Absent, wire.LifecycleStopped
		}, wire.StatusRequested, "not_yet", []string{"stopped", "fleet start web-1"}},
	} {
		p := newFake(t)
		x.change(&p.machines[0])
		out, errOut, exit := p.run("rotate", "web-1", "--json")
		if exit != 0 || !strings.Contains(out, `"status": "`+x.status+`"`) || !strings.Contains(out, x.words[0]) {
			t.Errorf("%s: exit %d: %s%s", name, exit, out, errOut)
		}
		out, errOut, exit = p.run("rotate", "web-1", "--wait", "--timeout", "10ms", "--json")
		if exit != 8 || !strings.Contains(out, `"status": "`+x.status+`"`) || !strings.Contains(errOut, `"code":"`+x.code+`"`) {
			t.Errorf("%s: exit %d: %s%s", name, exit, out, errOut)
		}
		for _, w := range x.words {
			if !strings.Contains(errOut, w) {
				t.Errorf("%s: %q is missing: %s", name, w, errOut)
			}
		}
	}
}

// A second run joins the first and does not wait for a rotation of its own. // R16
func TestASecondRotateJoinsTheFirst(t *testing.T) {
	p := newFake(t)
	for range 2 {
		if out, errOut, exit := p.run("rotate", "web-w", "--json"); exit != 0 || !strings.Contains(out, `"requested_at": "2026-01-02T03:04:05`) {
			t.Fatal(out, errOut, exit)
		}
	}
	if out, errOut, exit := p.run("rotate", "--all", "--wait", "--timeout", "20s", "--presence", "present"); exit != 2 {
		t.Fatal(out, errOut, exit)
	}
	if out, _, exit := p.run("rotate", "--presence", "present", "--wait"); exit != 0 || !strings.Contains(out, "done: generation 4") {
		t.Fatal(out, exit)
	}
}

// One machine's refusal leaves the others alone. // R8: the plane decides
func TestRotateGoesOnAfterARefusal(t *testing.T) {
	p := newFake(t)
	p.refuse[wire.PathMachines+"/"+idWeb2+"/requests"] = 403
	out, errOut, exit := p.run("rotate", "--all", "--json")
	if exit != 3 || strings.Count(out, `"status": "requested"`) != 4 || strings.Count(out, `"status": "failed"`) != 1 {
		t.Fatal(exit, out, errOut)
	}
	if p.asked[0] == "" || len(p.asked) != 2 {
		t.Fatal(p.asked)
	}
}
