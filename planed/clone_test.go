package planed_test

import (
	"net/http"
	"testing"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

// TestACopiedDiskIsNoticedAndSettled: both machines are named as one identity
// within three checks of each, over a restart of the plane too; a rotation
// leaves the identity to one, and the other is refused.
func TestACopiedDiskIsNoticedAndSettled(t *testing.T) { // R28
	p := newPlane(t)
	key := newKey(t)
	owner, err := p.login(key, p.invite)
	if err != nil {
		t.Fatal(err)
	}
	first := p.newBox()
	first.admit(owner, "web")
	suspected := func() bool {
		t.Helper()
		m, err := owner.Machine(t.Context(), first.id)
		if err != nil {
			t.Fatal(err)
		}
		if m.CloneSuspected && m.Accepting {
			t.Error("work may begin on a machine that is two")
		}
		return m.CloneSuspected
	}
	for range 4 {
		first.mustCheck(running)
	}
	first.instance, first.seq, first.mark = "i2", 0, "" // a restart
	for range 3 {
		first.mustCheck(running)
	}
	if suspected() {
		t.Fatal("a restart is taken for a copy")
	}
	copied := *first
	copied.instance, copied.seq, copied.mark = "i3", 0, ""
	n := 0
	for ; n < 3 && !suspected(); n++ {
		copied.mustCheck(running)
		first.mustCheck(running)
	}
	if !suspected() {
		t.Fatal("the copy was not noticed")
	}
	a, err := owner.Audit(t.Context(), planeclient.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	noted := 0
	for _, e := range a.Entries {
		if e.Action == "machine.clone_suspected" {
			noted++
		}
	}
	if noted != 1 {
		t.Errorf("noted %d times", noted)
	}
	p.kill()
	p.start()
	if !suspected() {
		t.Fatal("a restart of the plane forgets it")
	}
	first.rotated(2)
	if suspected() {
		t.Error("it is one machine again, and still suspected")
	}
	if status, _, e := copied.check(running); status != http.StatusConflict || e.Error.Code != wire.CodeBehind {
		t.Error("the copy is served:", status, e)
	}
	for range 4 {
		first.mustCheck(running)
	}
	if suspected() {
		t.Error("suspected again")
	}
}

// TestAMachineThatWentBackIsHeard: taken back to an earlier state with its
// memory, an agent counts its checks from there; it is present all the same.
func TestAMachineThatWentBackIsHeard(t *testing.T) { // R28
	p := newPlane(t)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "web")
	b.mustCheck(running)
	snapshot := *b
	for range 50 {
		b.mustCheck(running)
	}
	last := func() wire.Machine {
		t.Helper()
		m, err := owner.Machine(t.Context(), b.id)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	before := last()
	*b = snapshot
	b.mustCheck(running)
	b.mustCheck(running)
	if m := last(); !m.LastCheck.After(before.LastCheck.Time) || m.CloneSuspected {
		t.Fatalf("%v, then %v; suspected: %v", before.LastCheck, m.LastCheck, m.CloneSuspected)
	}
	stopping := `{"name":"box","lifecycle":{"state":"stopping","reason":"person"},"readiness":{"blockers":[]}}`
	b.mustCheck(stopping)
	if m := last(); m.Lifecycle.State != wire.LifecycleStopped {
		t.Errorf("what it says is not heard: %+v", m.Lifecycle)
	}
}
