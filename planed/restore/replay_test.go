package restore

import (
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
)

// FuzzChain: whatever stands in a log, only entries that follow the backup's
// head, each with its own hash, are taken.
func FuzzChain(f *testing.F) {
	head := audit.Genesis
	var entries []wire.AuditEntry
	for _, action := range []string{"machine.admit", "machine.delete", "person.lock"} {
		e := audit.Link(head, audit.Event{At: time.Unix(1, 0), Actor: "person:dana", Action: action, Subject: "machine:m"})
		head, entries = audit.Head(e), append(entries, e)
	}
	f.Add(uint8(1), uint8(1), uint64(2), "", "machine.delete")
	f.Add(uint8(0), uint8(2), uint64(3), "x", "person.lock")
	f.Fuzz(func(t *testing.T, from, which uint8, seq uint64, hash, action string) {
		start := audit.Genesis
		if n := int(from) % (len(entries) + 1); n > 0 {
			start = audit.Head(entries[n-1])
		}
		c := chain{head: start}
		list := append([]wire.AuditEntry(nil), entries...)
		e := &list[int(which)%len(list)]
		e.Seq, e.Action = seq, action
		if hash != "" {
			e.Hash = hash
		}
		for _, e := range list {
			if c.add(e) != nil {
				break
			}
		}
		want := start
		for _, e := range c.entries {
			next, err := audit.Next(want, e)
			if err != nil {
				t.Fatal(err)
			}
			want = next
		}
		if want != c.head {
			t.Fatal(want, c.head)
		}
	})
}
