package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

func auditCommand() *command.Command {
	return &command.Command{Name: "audit", Group: groupAdmin, Args: "[verify]", Summary: "show the plane's audit log, or verify its chain", Max: 1,
		Help: `fleet audit verify recomputes the whole chain and compares it with the last head
that this fleet verified: an entry that was changed, or removed, makes it fail. A
plane that was restored from a backup has lost its latest entries; once you know
that this is why, --reset takes its chain as it is now.`,
		Flags: append(command.JSONFlags(true),
			command.DurationFlag("since", "entries of the last `D`", 0),
			&ufcli.StringFlag{Name: "machine", Usage: "entries about `MACHINE`; about a deleted one, by its id"},
			&ufcli.BoolFlag{Name: "reset", Usage: "verify without what was verified before"}),
		Run: func(ctx context.Context, c *command.Call) error {
			switch c.Arg(0) {
			case "verify":
				if c.IsSet("since") || c.IsSet("machine") {
					return fault.Usagef("audit verify looks at the whole chain and takes neither --since nor --machine")
				}
				return auditVerify(ctx, c)
			case "":
				if c.IsSet("reset") {
					return fault.Usagef("--reset goes with audit verify")
				}
				return auditList(ctx, c)
			}
			return fault.Usagef("audit takes verify or nothing, not %q", c.Arg(0))
		}}
}

func auditList(ctx context.Context, c *command.Call) error {
	if c.IsSet("machine") {
		if err := fanout.CheckWord(c.String("machine")); err != nil {
			return err
		}
	}
	return onPlane(c, func(p *planeclient.Client) error {
		var f planeclient.AuditFilter
		if d := c.Span("since"); d > 0 {
			f.Since = time.Now().Add(-d)
		}
		if word := c.String("machine"); word != "" {
			if f.Machine = word; !wire.IsMachineID(word) {
				m, err := fanout.AtPlane(ctx, p, word, false)
				if err != nil {
					return err
				}
				f.Machine = m.ID
			}
		}
		a, err := p.Audit(ctx, f)
		if err != nil {
			return err
		}
		switch {
		case c.Bool("jsonl"):
			for _, e := range a.Entries {
				if err := c.Print(e); err != nil {
					return err
				}
			}
			return nil
		case c.Bool("json"):
			if a.Schema = wire.SchemaAudit; a.Entries == nil {
				a.Entries = []wire.AuditEntry{}
			}
			return c.Print(a)
		case len(a.Entries) == 0:
			c.Notef("no entries")
			return nil
		}
		return auditGrid(a.Entries).write(screenOf(c))
	})
}

// auditGrid names machines by their bare ids: the log's own words are under
// --json.
func auditGrid(entries []wire.AuditEntry) *grid {
	g := &grid{head: []string{"SEQ", "AT", "ACTOR", "ACTION", "SUBJECT", "DETAIL"}, flex: []int{2, 4, 5}}
	for _, e := range entries {
		g.add(words(fmt.Sprint(e.Seq), e.At.UTC().Format("2006-01-02T15:04:05Z"), e.Actor, e.Action,
			strings.TrimPrefix(e.Subject, "machine:"), pairs(e.Detail))...)
	}
	return g
}

func auditVerify(ctx context.Context, c *command.Call) error {
	p, client, err := operator.Plane(c)
	if err != nil {
		return err
	}
	defer client.Close()
	a, err := client.Audit(ctx, planeclient.AuditFilter{})
	if err != nil {
		return err
	}
	known := p.AuditHead()
	if c.Bool("reset") {
		known = wire.AuditHead{}
	}
	head, err := verifyChain(a, known)
	if err != nil {
		return err
	}
	if err := p.SetAuditHead(ctx, head); err != nil {
		return err
	}
	if c.WantsJSON() {
		doc := wire.AuditVerified{Schema: wire.SchemaVerified, OK: true, Head: head}
		if known.Seq > 0 {
			doc.Before = &known
		}
		return c.Print(doc)
	}
	before := "none was verified here before"
	if known.Seq > 0 {
		before = fmt.Sprintf("entry %d, verified here before, is in it", known.Seq)
	}
	_, err = fmt.Fprintf(c.Stdout, "%d entries, the chain holds; %s\nhead %s\n", head.Seq, before, head.Hash)
	return err
}

// verifyChain recomputes a whole chain. known is a head that was verified
// before: the chain must still go through it.
func verifyChain(a wire.Audit, known wire.AuditHead) (wire.AuditHead, error) {
	broken := func(format string, args ...any) (wire.AuditHead, error) {
		return wire.AuditHead{}, fault.New(fault.Failure, "audit_broken", "the audit log does not hold: "+format, args...).
			WithHint("keep what the plane answers now (fleet audit --jsonl), and compare it with the plane's audit sink;\n" +
				"if the plane was restored from a backup, --reset begins with the log as it is now")
	}
	prev := strings.Repeat("0", 2*sha256.Size)
	head := wire.AuditHead{Hash: prev}
	for i, e := range a.Entries {
		if e.Seq != uint64(i)+1 {
			return broken("entry %d stands where %d should", e.Seq, i+1)
		}
		if e.Prev != prev {
			return broken("entry %d does not follow the one before it", e.Seq)
		}
		before, err := hex.DecodeString(e.Prev)
		if err != nil || len(before) != sha256.Size {
			return broken("entry %d has no hash before it", e.Seq)
		}
		sum := sha256.Sum256(append(before, e.Canonical()...))
		if hex.EncodeToString(sum[:]) != e.Hash {
			return broken("entry %d was altered", e.Seq)
		}
		if e.Seq == known.Seq && e.Hash != known.Hash {
			return broken("entry %d is not the one that was verified here before", e.Seq)
		}
		prev, head = e.Hash, wire.AuditHead{Seq: e.Seq, Hash: e.Hash}
	}
	if head.Seq < known.Seq {
		return broken("it ends at entry %d, and entry %d was verified here before", head.Seq, known.Seq)
	}
	if a.Head.Seq != head.Seq || head.Seq > 0 && a.Head.Hash != head.Hash {
		return broken("the plane names entry %d as its head, and sent entries up to %d", a.Head.Seq, head.Seq)
	}
	return head, nil
}
