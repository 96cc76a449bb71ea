package planed_test

import (
	"errors"
	"net/http"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

func exitOf(err error) int {
	if err == nil {
		return 0
	}
	return fault.Of(err).Exit
}

func TestAMachineFromAdmissionToDeletion(t *testing.T) { // R5, R14, R23
	p := newPlane(t)
	owner := p.owner()
	ctx := t.Context()

	b := p.newBox()
	if a := b.admit(owner, ""); a.Status != wire.AdmitNew || a.Generation != 1 || a.Owner != "dana" {
		t.Fatalf("%+v", a)
	}
	if m, err := owner.Machine(ctx, b.id); err != nil || m.Presence != wire.Never || m.Lifecycle.State != wire.LifecycleNever || m.Accepting {
		t.Fatalf("%+v %v", m, err)
	}
	if a := b.mustCheck(running); a.Machine != b.id || a.Generation != 1 || a.IntervalS != 30 || a.MinGapS != 10 || a.Mark == "" || a.TestFloorS != 0 {
		t.Fatalf("%+v", a)
	}
	m, err := owner.Machine(ctx, b.id)
	if err != nil || m.Presence != wire.Present || m.Lifecycle.State != wire.LifecycleRunning || m.Readiness.State != wire.Ready || !m.Accepting || m.Name != "box" {
		t.Fatalf("%+v %v", m, err)
	}

	if m, err = owner.Rename(ctx, b.id, "web-1"); err != nil || m.Name != "web-1" {
		t.Fatal(m, err)
	}
	if _, err = owner.Label(ctx, b.id, wire.LabelRequest{Set: map[string]string{"env": "prod"}}); err != nil {
		t.Fatal(err)
	}
	for sel, n := range map[string]int{"": 1, "env=prod": 1, "env!=prod": 0, "env=prod,zone!=a": 1, "zone=a": 0} {
		if l, err := owner.Machines(ctx, wire.MachineFilter{Selector: sel}); err != nil || len(l.Machines) != n {
			t.Errorf("selector %q: %d machines, %v", sel, len(l.Machines), err)
		}
	}
	for _, match := range []string{b.id, "web-1", "web", b.id[:6]} {
		if l, err := owner.Machines(ctx, wire.MachineFilter{Match: match}); err != nil || len(l.Machines) != 1 {
			t.Errorf("match %q: %+v, %v", match, l, err)
		}
	}

	// A repeated admission of a living machine changes nothing (R6).
	old := b.secret
	b.secret = secret.New("fm_")
	if a := b.admit(owner, ""); a.Status != wire.AdmitLiving {
		t.Fatalf("%+v", a)
	}
	if status, _, _ := b.check(running); status != http.StatusUnauthorized {
		t.Fatalf("a second credential was made: %d", status)
	}
	b.secret = old

	stop := `{"lifecycle":{"state":"stopping","reason":"person"},"readiness":null}`
	b.mustCheck(stop)
	m, err = owner.Machine(ctx, b.id)
	if err != nil || m.Lifecycle.State != wire.LifecycleStopped || *m.Lifecycle.Reason != "person" || m.Readiness.State != wire.Ready || m.Accepting {
		t.Fatalf("%+v %v", m, err) // R12, R15
	}
	b.mustCheck(running)
	if m, err = owner.Machine(ctx, b.id); err != nil || m.Lifecycle.State != wire.LifecycleRunning {
		t.Fatalf("%+v %v", m, err)
	}

	if d, err := owner.Delete(ctx, b.id); err != nil || d.Name != "web-1" {
		t.Fatal(d, err)
	}
	if status, _, e := b.check(running); status != http.StatusGone || e.Error.Code != wire.CodeRevoked || e.Error.Machine != b.id {
		t.Fatal(status, e)
	}
	_, err = owner.Machine(ctx, b.id)
	var gone *planeclient.DeletedError
	if !errors.As(err, &gone) || exitOf(err) != fault.NotFound || gone.Deleted.By != "person:dana" || gone.Deleted.LastPresented == nil {
		t.Fatalf("%v", err)
	}
	if l, err := owner.Machines(ctx, wire.MachineFilter{}); err != nil || len(l.Machines) != 0 || l.Machines == nil {
		t.Fatalf("%+v %v", l, err)
	}
	// The installation is free again.
	b2 := p.newBox()
	b2.installation = b.installation
	if a := b2.admit(owner, ""); a.Status != wire.AdmitNew || a.Machine == b.id {
		t.Fatalf("%+v", a)
	}
	b2.mustCheck(running)
	if out, errOut, exit := planed(t, "check", "--data", p.dir); exit != 0 {
		t.Fatal(out, errOut)
	}
	if code := p.term(); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.log)
	}
}
