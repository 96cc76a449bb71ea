package bolt

import (
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/store"
)

func decodeEntry(b []byte) (wire.AuditEntry, error) {
	var e wire.AuditEntry
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("cannot read an audit entry: %s", err)
	}
	return e, nil
}

// Audit returns the entries that the filter selects, oldest first.
func (s *Store) Audit(_ context.Context, f store.AuditFilter) (wire.Audit, error) {
	a := wire.Audit{Schema: wire.SchemaAudit, Entries: []wire.AuditEntry{}}
	err := s.db.View(func(t *bbolt.Tx) error {
		var err error
		if a.Head, err = auditHead(t); err != nil {
			return err
		}
		c := t.Bucket(bucketAudit).Cursor()
		for k, v := c.Seek(seqKey(f.After + 1)); k != nil; k, v = c.Next() {
			if f.Limit > 0 && len(a.Entries) == f.Limit {
				return nil
			}
			e, err := decodeEntry(v)
			if err != nil {
				return err
			}
			who := "machine:" + f.Machine
			if e.At.Before(f.Since) || f.Machine != "" && e.Subject != who && e.Actor != who {
				continue
			}
			a.Entries = append(a.Entries, e)
		}
		return nil
	})
	return a, err
}

func auditHead(t *bbolt.Tx) (wire.AuditHead, error) {
	_, v := t.Bucket(bucketAudit).Cursor().Last()
	if v == nil {
		return audit.Genesis, nil
	}
	e, err := decodeEntry(v)
	return audit.Head(e), err
}

// AuditHead names the last entry.
func (s *Store) AuditHead(context.Context) (h wire.AuditHead, err error) {
	err = s.db.View(func(t *bbolt.Tx) error {
		h, err = auditHead(t)
		return err
	})
	return h, err
}

// AuditChanged returns a channel that is closed at the next append.
func (s *Store) AuditChanged() <-chan struct{} {
	s.auditMu.Lock()
	defer s.auditMu.Unlock()
	return s.auditChanged
}
