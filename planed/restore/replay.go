package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// chain follows a log's entries and collects those after a head.
type chain struct {
	head    wire.AuditHead // first the backup's, then the last entry's
	met     bool           // the log goes through the backup's head
	at      *wire.Time
	entries []wire.AuditEntry
}

func (c *chain) add(e wire.AuditEntry) error {
	if !c.met {
		switch {
		case e.Seq == c.head.Seq && e.Hash == c.head.Hash:
			c.met, c.at = true, &e.At
			return nil
		case e.Seq == c.head.Seq:
			return fmt.Errorf("entry %d is another one than the backup's: the log is another plane's, or was cut and continued", e.Seq)
		case e.Seq < c.head.Seq:
			return nil
		}
		c.met = e.Seq == c.head.Seq+1 // a copy may begin right after the backup
	}
	head, err := audit.Next(c.head, e)
	if err != nil {
		return err
	}
	c.head, c.at = head, &e.At
	c.entries = append(c.entries, e)
	return nil
}

// store is what a replay changes.
type target interface {
	store.Machines
	store.Principals
	store.Persons
}

// fate is what became of a machine since the backup.
type fate struct {
	admitted bool // or admitted again: with a secret that the backup does not know
	promoted int
	deleted  bool
}

type replay struct {
	st       target
	out      *Replayed
	machines map[string]*fate
	order    []string
}

func (p *replay) fate(id string) *fate {
	f := p.machines[id]
	if f == nil {
		f = &fate{}
		p.machines[id] = f
		p.order = append(p.order, id)
	}
	return f
}

// apply re-applies an entry that ends something, and takes note of what
// happened to machines.
func (p *replay) apply(ctx context.Context, e wire.AuditEntry) error {
	by := machine.By{Actor: e.Actor, Owner: true}
	kind, name, _ := strings.Cut(e.Subject, ":")
	switch {
	case kind == "machine":
		return p.machine(ctx, e, name, by)
	case kind == "person":
		return p.person(ctx, e, name, by)
	case e.Action == "token.delete":
		err := p.st.DeleteToken(ctx, name, by, e.At.Time)
		if err == nil {
			p.out.Tokens = append(p.out.Tokens, name)
		}
		return ignore(err, store.ErrNotFound) // made since, or gone with its person
	}
	return nil
}

func (p *replay) machine(ctx context.Context, e wire.AuditEntry, id string, by machine.By) error {
	switch e.Action {
	case "machine.admit", "machine.readmit":
		f := p.fate(id)
		f.admitted, f.promoted = true, 0
	case "credential.promote":
		p.fate(id).promoted++
	case "machine.transfer":
		to := e.Detail["owner"]
		_, err := p.st.Edit(ctx, id, store.Change{By: by, At: e.At.Time, Transfer: &to})
		if errors.Is(err, store.ErrNoPerson) || errors.Is(err, store.ErrLocked) {
			p.not(e, err.Error())
			return nil
		}
		return p.unknown(err)
	case "machine.delete":
		p.fate(id).deleted = true
		_, err := p.st.Edit(ctx, id, store.Change{By: by, At: e.At.Time, Delete: true})
		if err == nil {
			p.out.Deleted = append(p.out.Deleted, id)
		}
		return p.unknown(err)
	}
	return nil
}

// unknown passes over machines that the backup does not have, or that it has
// deleted already.
func (p *replay) unknown(err error) error {
	var gone *store.GoneError
	if errors.As(err, &gone) {
		return nil
	}
	return ignore(err, store.ErrNotFound)
}

func (p *replay) person(ctx context.Context, e wire.AuditEntry, name string, by machine.By) error {
	change := store.PersonChange{By: by, At: e.At.Time, Name: name}
	var list *[]string
	word := name
	switch e.Action {
	case "person.lock":
		change.Lock, list = true, &p.out.Locked
	case "person.unlock":
		change.Unlock = true
	case "person.remove":
		change.Remove, list = true, &p.out.Removed
	case "person.key_remove":
		word = e.Detail["key"]
		change.RemoveKey, list = word, &p.out.Keys
	default:
		return nil
	}
	_, err := p.st.ChangePerson(ctx, change)
	if errors.Is(err, store.ErrOwnsMachines) {
		// They were given to somebody since who is not there. Locked, nobody is
		// served by the name.
		p.not(e, "the person owns machines in the backup, and is locked instead")
		change.Remove, change.Lock, list = false, true, &p.out.Locked
		_, err = p.st.ChangePerson(ctx, change)
	}
	switch {
	case errors.Is(err, store.ErrLastOwner):
		p.not(e, "the backup has no other owner")
		return nil
	case err == nil && list != nil:
		*list = append(*list, word)
	case err == nil:
		p.out.Locked = slices.DeleteFunc(p.out.Locked, func(s string) bool { return s == name }) // unlocked again
	}
	return ignore(ignore(err, store.ErrNoPerson), store.ErrNotFound)
}

func (p *replay) not(e wire.AuditEntry, why string) {
	p.out.NotApplied = append(p.out.NotApplied, NotApplied{Seq: e.Seq, Action: e.Action, Subject: e.Subject, Why: why})
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// name says which machines the plane does not know any more.
func (p *replay) name(ctx context.Context) error {
	for _, id := range p.order {
		f := p.machines[id]
		if f.deleted {
			continue
		}
		r, err := p.st.Machine(ctx, id)
		if err := p.unknown(err); err != nil {
			return err
		}
		lost := Lost{Machine: id}
		known := 1 // generations that it may have gone on by
		if r != nil {
			lost.Name = r.Name
			if !r.Credential.Next.IsZero() {
				known = 2
			}
		}
		switch {
		case r == nil:
			lost.Why = "it was admitted after the backup"
		case f.admitted:
			lost.Why = "it was admitted again after the backup"
		case f.promoted > known:
			lost.Why = fmt.Sprintf("it rotated %d times after the backup", f.promoted)
		default:
			continue
		}
		p.out.Lost = append(p.out.Lost, lost)
	}
	return nil
}
