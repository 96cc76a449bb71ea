package bolt

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// live refuses a session or token that ended after its request was let in: a
// lock, a removal or a logout that has been answered is followed by nothing.
func (t *tx) live(d secret.Digest) error {
	if d.IsZero() {
		return nil
	}
	who := ""
	if r, ok, err := get[sessionRecord](t.Tx, bucketSession, d.Hex()); err != nil {
		return err
	} else if ok {
		who = r.Person
	} else if r, ok, err := get[tokenRecord](t.Tx, bucketToken, d.Hex()); err != nil {
		return err
	} else if ok {
		who = r.Owner
	}
	p, ok, err := get[personRecord](t.Tx, bucketPerson, who)
	switch {
	case err != nil:
		return err
	case !ok || p.locked():
		return store.ErrSessionEnded
	}
	return nil
}

// receives refuses a person who cannot be given a machine.
func (t *tx) receives(name string) error {
	p, ok, err := get[personRecord](t.Tx, bucketPerson, name)
	switch {
	case err != nil:
		return err
	case !ok:
		return store.ErrNoPerson
	case p.locked():
		return store.ErrLocked
	}
	return nil
}

// keysOf are a person's keys by fingerprint.
func keysOf(t *bbolt.Tx, person string) ([]store.Key, error) {
	var keys []store.Key
	err := each(t, bucketKey, func(k string, r keyRecord) error {
		if r.Person == person {
			keys = append(keys, store.Key{Fingerprint: k, Key: r.Key, AddedAt: r.AddedAt, LastUsed: r.LastUsed})
		}
		return nil
	})
	return keys, err
}

// Persons lists persons and invitations.
func (s *Store) Persons(_ context.Context, now time.Time) (all []store.PersonInfo, waiting []store.Invited, err error) {
	err = s.db.View(func(t *bbolt.Tx) error {
		at := map[string]int{}
		err := each(t, bucketPerson, func(k string, r personRecord) error {
			at[k] = len(all)
			all = append(all, store.PersonInfo{Person: r.person(k)})
			return nil
		})
		if err != nil {
			return err
		}
		of := func(person string, f func(*store.PersonInfo)) {
			if i, ok := at[person]; ok {
				f(&all[i])
			}
		}
		err = each(t, bucketKey, func(k string, r keyRecord) error {
			of(r.Person, func(p *store.PersonInfo) {
				p.Keys = append(p.Keys, store.Key{Fingerprint: k, Key: r.Key, AddedAt: r.AddedAt, LastUsed: r.LastUsed})
			})
			return nil
		})
		if err != nil {
			return err
		}
		err = each(t, bucketSession, func(_ string, r sessionRecord) error {
			if now.Before(r.ExpiresAt) && r.Kind != kindLink {
				of(r.Person, func(p *store.PersonInfo) { p.Sessions++ })
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = each(t, bucketToken, func(_ string, r tokenRecord) error {
			of(r.Owner, func(p *store.PersonInfo) { p.Tokens = append(p.Tokens, r.Name) })
			return nil
		})
		if err != nil {
			return err
		}
		return each(t, bucketInvitation, func(_ string, r invitationRecord) error {
			if now.Before(r.ExpiresAt) {
				waiting = append(waiting, store.Invited{Person: r.Person, Role: r.Role, By: r.By, ExpiresAt: r.ExpiresAt})
			}
			return nil
		})
	})
	for i := range all {
		slices.Sort(all[i].Tokens)
	}
	slices.SortFunc(waiting, func(a, b store.Invited) int { return strings.Compare(a.Person, b.Person) })
	return all, waiting, err
}

// KeyOwner says whose a key is.
func (s *Store) KeyOwner(_ context.Context, fingerprint string) (person string, err error) {
	err = s.db.View(func(t *bbolt.Tx) error {
		r, ok, err := get[keyRecord](t, bucketKey, fingerprint)
		if err == nil && !ok {
			err = store.ErrNotFound
		}
		person = r.Person
		return err
	})
	return person, err
}

// ChangePerson applies a change to a person.
func (s *Store) ChangePerson(ctx context.Context, c store.PersonChange) (store.PersonChanged, error) {
	var out store.PersonChanged
	err := s.do(ctx, func(t *tx) error {
		out = store.PersonChanged{}
		if err := t.live(c.By.Session); err != nil {
			return err
		}
		own := c.By.Person == c.Name && (c.AddKey != nil || c.RemoveKey != "")
		if !c.By.Owner && !own {
			return machine.ErrNotYours
		}
		p, ok, err := get[personRecord](t.Tx, bucketPerson, c.Name)
		if err != nil {
			return err
		}
		if !ok {
			if c.Remove {
				return s.uninvite(t, c, &out)
			}
			return store.ErrNoPerson
		}
		switch {
		case c.Lock:
			return s.lock(t, c, p, &out)
		case c.Unlock:
			return s.unlock(t, c, p)
		case c.Remove:
			return s.removePerson(t, c, &out)
		case c.AddKey != nil:
			return s.addKey(t, c)
		case c.RemoveKey != "":
			return s.removeKey(t, c, &out)
		}
		return errors.New("the change is empty")
	})
	return out, err
}

func (c *change) event(action string, detail map[string]string) audit.Event {
	return audit.Event{At: c.At, Actor: c.By.Actor, Action: action, Subject: "person:" + c.Name, Detail: detail}
}

// change gives store.PersonChange its audit events.
type change store.PersonChange

// guarded refuses a change that leaves no owner who can log in. without is the
// person who no longer counts, or key their only key that goes.
func (t *tx) guarded(without, key string) error {
	keyed := map[string]bool{}
	err := each(t.Tx, bucketKey, func(k string, r keyRecord) error {
		if k != key {
			keyed[r.Person] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	left := false
	err = each(t.Tx, bucketPerson, func(k string, r personRecord) error {
		left = left || k != without && r.Role == wire.RoleOwner && !r.locked() && keyed[k]
		return nil
	})
	if err == nil && !left {
		err = store.ErrLastOwner
	}
	return err
}

func (s *Store) lock(t *tx, c store.PersonChange, p personRecord, out *store.PersonChanged) error {
	if p.locked() {
		return nil
	}
	if err := t.guarded(c.Name, ""); err != nil {
		return err
	}
	e, err := t.endings(c.Name, "", true)
	if err != nil {
		return err
	}
	p.LockedAt, p.LockedBy = c.At.UTC(), c.By.Actor
	if err := t.put(bucketPerson, []byte(c.Name), mustJSON(p)); err != nil {
		return err
	}
	*out = e.changed()
	t.after = append(t.after, func() {
		s.people.mu.Lock()
		s.people.persons[c.Name] = p
		s.people.mu.Unlock()
	})
	return s.end(t, c, e, "person.lock")
}

func (s *Store) unlock(t *tx, c store.PersonChange, p personRecord) error {
	if !p.locked() {
		return nil
	}
	p.LockedAt, p.LockedBy = time.Time{}, ""
	if err := t.put(bucketPerson, []byte(c.Name), mustJSON(p)); err != nil {
		return err
	}
	t.after = append(t.after, func() {
		s.people.mu.Lock()
		s.people.persons[c.Name] = p
		s.people.mu.Unlock()
	})
	return t.append((*change)(&c).event("person.unlock", nil))
}

func (s *Store) removePerson(t *tx, c store.PersonChange, out *store.PersonChanged) error {
	if err := t.guarded(c.Name, ""); err != nil {
		return err
	}
	if owns, err := t.owns(c.Name); err != nil {
		return err
	} else if owns {
		return store.ErrOwnsMachines
	}
	e, err := t.endings(c.Name, "", true)
	if err != nil {
		return err
	}
	keys, err := keysOf(t.Tx, c.Name)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := t.del(bucketKey, []byte(k.Fingerprint)); err != nil {
			return err
		}
	}
	if err := t.del(bucketPerson, []byte(c.Name)); err != nil {
		return err
	}
	*out = e.changed()
	t.after = append(t.after, func() {
		s.people.mu.Lock()
		delete(s.people.persons, c.Name)
		s.people.mu.Unlock()
	})
	return s.end(t, c, e, "person.remove")
}

// uninvite voids the invitation of somebody who has not come yet.
func (s *Store) uninvite(t *tx, c store.PersonChange, out *store.PersonChanged) error {
	e, err := t.endings(c.Name, "", true)
	if err != nil {
		return err
	}
	if len(e.invitations) == 0 {
		return store.ErrNoPerson
	}
	*out = e.changed()
	return s.end(t, c, e, "person.uninvite")
}

// owns reports whether a living machine belongs to the person.
func (t *tx) owns(person string) (bool, error) {
	hint := []byte(`"owner":` + strconv.Quote(person))
	found := false
	err := t.Bucket(bucketMachine).ForEach(func(k, v []byte) error {
		if found || !bytes.Contains(v, hint) {
			return nil // decoding all of them would cost the writer too much
		}
		r, _, err := decode(string(k), v)
		found = err == nil && r.Deleted == nil && r.Owner == person
		return err
	})
	return found, err
}

func (s *Store) addKey(t *tx, c store.PersonChange) error {
	r, taken, err := get[keyRecord](t.Tx, bucketKey, c.AddKey.Fingerprint)
	switch {
	case err != nil:
		return err
	case taken && r.Person == c.Name:
		return nil
	case taken:
		return store.ErrKeyTaken
	}
	held, err := keysOf(t.Tx, c.Name)
	if err != nil {
		return err
	}
	if len(held) >= store.MaxKeys {
		return store.ErrTooManyKeys
	}
	rec := keyRecord{Person: c.Name, Key: c.AddKey.Key, AddedAt: c.At.UTC()}
	if err := t.put(bucketKey, []byte(c.AddKey.Fingerprint), mustJSON(rec)); err != nil {
		return err
	}
	return t.append((*change)(&c).event("person.key_add", map[string]string{"key": c.AddKey.Fingerprint}))
}

// removeKey ends the sessions that the key opened with it.
func (s *Store) removeKey(t *tx, c store.PersonChange, out *store.PersonChanged) error {
	r, ok, err := get[keyRecord](t.Tx, bucketKey, c.RemoveKey)
	if err != nil {
		return err
	}
	if !ok || r.Person != c.Name {
		return store.ErrNotFound
	}
	if err := t.guarded("", c.RemoveKey); err != nil {
		return err
	}
	e, err := t.endings(c.Name, c.RemoveKey, false)
	if err != nil {
		return err
	}
	if err := t.del(bucketKey, []byte(c.RemoveKey)); err != nil {
		return err
	}
	*out = e.changed()
	return s.end(t, c, e, "person.key_remove")
}

// endings are what ends with a person or a key.
type endings struct {
	sessions, tokens, invitations []string
	names                         []string // of the tokens
}

func (e *endings) changed() store.PersonChanged {
	return store.PersonChanged{Sessions: len(e.sessions), Tokens: e.names, Invitations: len(e.invitations)}
}

// endings finds the person's sessions, of one key where key is set, and with
// everything their tokens, the invitations for them, and those that they made:
// whoever took their session over may have.
func (t *tx) endings(person, key string, everything bool) (*endings, error) {
	e := &endings{}
	err := each(t.Tx, bucketSession, func(k string, r sessionRecord) error {
		if r.Person == person && (key == "" || r.Key == key) {
			e.sessions = append(e.sessions, k)
		}
		return nil
	})
	if err != nil || !everything {
		return e, err
	}
	err = each(t.Tx, bucketToken, func(k string, r tokenRecord) error {
		if r.Owner == person {
			e.tokens, e.names = append(e.tokens, k), append(e.names, r.Name)
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	slices.Sort(e.names)
	return e, each(t.Tx, bucketInvitation, func(k string, r invitationRecord) error {
		if r.Person == person || r.By == "person:"+person {
			e.invitations = append(e.invitations, k)
		}
		return nil
	})
}

// end removes them and records it all.
func (s *Store) end(t *tx, c store.PersonChange, e *endings, action string) error {
	detail := map[string]string{}
	if c.RemoveKey != "" {
		detail["key"] = c.RemoveKey
	}
	for _, part := range []struct {
		bucket []byte
		keys   []string
		name   string
	}{{bucketSession, e.sessions, "sessions"}, {bucketToken, e.tokens, "tokens"}, {bucketInvitation, e.invitations, "invitations"}} {
		for _, k := range part.keys {
			if err := t.del(part.bucket, []byte(k)); err != nil {
				return err
			}
		}
		if n := len(part.keys); n > 0 {
			detail[part.name] = strconv.Itoa(n)
		}
	}
	t.after = append(t.after, func() {
		s.people.mu.Lock()
		defer s.people.mu.Unlock()
		for _, k := range e.sessions {
			if d, err := secret.ParseDigest(k); err == nil {
				delete(s.people.sessions, d)
			}
		}
		for _, k := range e.tokens {
			if d, err := secret.ParseDigest(k); err == nil {
				delete(s.people.tokens, d)
			}
		}
	})
	events := []audit.Event{(*change)(&c).event(action, detail)}
	for _, name := range e.names {
		events = append(events, audit.Event{At: c.At, Actor: c.By.Actor, Action: "token.delete", Subject: "token:" + name,
			Detail: map[string]string{"because": action}})
	}
	return t.append(events...)
}
