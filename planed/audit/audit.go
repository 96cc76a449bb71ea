// Package audit is the hash-chained record of every change: how an event
// becomes the next link, how a chain is verified, and how a copy of it leaves
// the plane. The store appends a link in the same transaction as the change
// that it tells of; there is no other way to append.
//
// An event never carries a secret, a digest or a network address. Its actor
// comes from the authenticated identity.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"fleet.example/fleet/core/wire"
)

// Event is one change, before it has a place in the chain.
type Event struct {
	At      time.Time
	Actor   string
	Action  string
	Subject string
	Detail  map[string]string
}

// Genesis is the head of an empty chain.
var Genesis = wire.AuditHead{Hash: strings.Repeat("0", 2*sha256.Size)}

// Link makes the event the entry after head.
func Link(head wire.AuditHead, e Event) wire.AuditEntry {
	entry := wire.AuditEntry{
		Seq: head.Seq + 1,
		// The hash covers what the wire carries, so no finer time is kept.
		At:      wire.Time{Time: e.At.UTC().Truncate(time.Millisecond)},
		Actor:   e.Actor,
		Action:  e.Action,
		Subject: e.Subject,
		Detail:  e.Detail,
		Prev:    head.Hash,
	}
	entry.Hash = hash(entry)
	return entry
}

func hash(e wire.AuditEntry) string {
	h := sha256.New()
	prev, err := hex.DecodeString(e.Prev)
	if err != nil || len(prev) != sha256.Size {
		prev = make([]byte, sha256.Size)
	}
	h.Write(prev)
	h.Write(e.Canonical())
	return hex.EncodeToString(h.Sum(nil))
}

// Head is the entry's place in the chain.
func Head(e wire.AuditEntry) wire.AuditHead { return wire.AuditHead{Seq: e.Seq, Hash: e.Hash} }

// Next returns the head after e, or an error if e does not follow head.
func Next(head wire.AuditHead, e wire.AuditEntry) (wire.AuditHead, error) {
	switch {
	case e.Seq != head.Seq+1:
		return head, fmt.Errorf("audit entry %d follows entry %d", e.Seq, head.Seq)
	case e.Prev != head.Hash:
		return head, fmt.Errorf("audit entry %d does not continue the chain: its prev is %s, entry %d has %s", e.Seq, e.Prev, head.Seq, head.Hash)
	case e.Hash != hash(e):
		return head, fmt.Errorf("audit entry %d was altered: its content does not have its hash", e.Seq)
	}
	return Head(e), nil
}
