package bolt

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

type personRecord struct {
	Role      string    `json:"role"`
	CreatedAt time.Time `json:"created_at"`
	LastLogin time.Time `json:"last_login,omitzero"`
	LockedAt  time.Time `json:"locked_at,omitzero"`
	LockedBy  string    `json:"locked_by,omitempty"`
}

func (r personRecord) locked() bool { return !r.LockedAt.IsZero() }

func (r personRecord) person(name string) store.Person {
	return store.Person{Name: name, Role: r.Role, CreatedAt: r.CreatedAt, LastLogin: r.LastLogin, LockedAt: r.LockedAt, LockedBy: r.LockedBy}
}

type keyRecord struct {
	Person   string    `json:"person"`
	Key      string    `json:"key"` // authorized_keys form
	AddedAt  time.Time `json:"added_at"`
	LastUsed time.Time `json:"last_used,omitzero"`
}

type sessionRecord struct {
	Person    string    `json:"person"`
	Key       string    `json:"key"` // fingerprint
	Kind      string    `json:"kind,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

type invitationRecord struct {
	Person    string    `json:"person"`
	Role      string    `json:"role"`
	By        string    `json:"by"`
	ExpiresAt time.Time `json:"expires_at"`
}

type tokenRecord struct {
	Name      string    `json:"name"`
	Owner     string    `json:"owner"`
	Scopes    []string  `json:"scopes"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
	LastUsed  time.Time `json:"last_used,omitzero"`
}

func (r tokenRecord) token() store.Token {
	return store.Token{Name: r.Name, Owner: r.Owner, Scopes: r.Scopes, CreatedAt: r.CreatedAt, ExpiresAt: r.ExpiresAt, LastUsed: r.LastUsed}
}

// maxSessions bounds the sessions of one person; the oldest goes.
const maxSessions = 64

// people is memory's copy of the small buckets. It is changed by the writer
// only, except for the times that tokens were last used.
type people struct {
	mu       sync.RWMutex
	persons  map[string]personRecord
	sessions map[secret.Digest]sessionRecord
	tokens   map[secret.Digest]tokenRecord
	used     map[secret.Digest]time.Time // since the last flush
}

func (p *people) load(t *bbolt.Tx) error {
	p.persons = map[string]personRecord{}
	p.sessions = map[secret.Digest]sessionRecord{}
	p.tokens = map[secret.Digest]tokenRecord{}
	p.used = map[secret.Digest]time.Time{}
	if err := each(t, bucketPerson, func(k string, r personRecord) error { p.persons[k] = r; return nil }); err != nil {
		return err
	}
	if err := each(t, bucketSession, func(k string, r sessionRecord) error { return putDigest(p.sessions, k, r) }); err != nil {
		return err
	}
	return each(t, bucketToken, func(k string, r tokenRecord) error { return putDigest(p.tokens, k, r) })
}

func each[R any](t *bbolt.Tx, bucket []byte, f func(k string, r R) error) error {
	return t.Bucket(bucket).ForEach(func(k, v []byte) error {
		var r R
		if err := json.Unmarshal(v, &r); err != nil {
			return fmt.Errorf("cannot read a record of %s: %s", bucket, err)
		}
		return f(string(k), r)
	})
}

func putDigest[R any](m map[secret.Digest]R, k string, r R) error {
	d, err := secret.ParseDigest(k)
	if err == nil {
		m[d] = r
	}
	return err
}

func get[R any](t *bbolt.Tx, bucket []byte, k string) (r R, ok bool, err error) {
	v := t.Bucket(bucket).Get([]byte(k))
	if v == nil {
		return r, false, nil
	}
	err = json.Unmarshal(v, &r)
	return r, err == nil, err
}

// Principal says who holds the secret with this digest now.
func (s *Store) Principal(_ context.Context, d secret.Digest, now time.Time) (store.Principal, error) {
	p := &s.people
	p.mu.RLock()
	if r, ok := p.sessions[d]; ok {
		person, known := p.persons[r.Person]
		p.mu.RUnlock()
		if !known || person.locked() || r.Kind != "" || !now.Before(r.ExpiresAt) {
			return store.Principal{}, store.ErrNotFound
		}
		return store.Principal{Kind: "person", Name: r.Person, Person: r.Person, Role: person.Role, Key: r.Key, ExpiresAt: r.ExpiresAt}, nil
	}
	r, ok := p.tokens[d]
	person, known := p.persons[r.Owner]
	p.mu.RUnlock()
	if !ok || !known || person.locked() || !now.Before(r.ExpiresAt) {
		return store.Principal{}, store.ErrNotFound
	}
	p.mu.Lock()
	p.used[d] = now
	p.mu.Unlock()
	return store.Principal{Kind: "token", Name: r.Name, Person: r.Owner, Role: person.Role, Scopes: r.Scopes, ExpiresAt: r.ExpiresAt}, nil
}

func (p *people) takeUsed() map[secret.Digest]time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := p.used
	p.used = map[secret.Digest]time.Time{}
	for d, at := range used {
		if r, ok := p.tokens[d]; ok {
			r.LastUsed = at
			p.tokens[d] = r
		}
	}
	return used
}

func (p *people) returnUsed(used map[secret.Digest]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d, at := range used {
		if _, newer := p.used[d]; !newer {
			p.used[d] = at
		}
	}
}

func (p *people) putUsed(t *tx, used map[secret.Digest]time.Time) error {
	for d, at := range used {
		// Updates, never inserts: a token that was deleted stays deleted (R25).
		r, ok, err := get[tokenRecord](t.Tx, bucketToken, d.Hex())
		if err != nil || !ok {
			continue
		}
		r.LastUsed = at.UTC()
		if err := t.put(bucketToken, []byte(d.Hex()), mustJSON(r)); err != nil {
			return err
		}
	}
	return nil
}

func (p *people) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d, r := range p.sessions {
		if !now.Before(r.ExpiresAt) {
			delete(p.sessions, d)
		}
	}
}

// Login opens a session for the person whose key signed, or whose invitation
// the key's holder has.
func (s *Store) Login(ctx context.Context, l store.Login) (store.Person, error) {
	var out store.Person
	err := s.do(ctx, func(t *tx) error {
		var events []audit.Event
		key, known, err := get[keyRecord](t.Tx, bucketKey, l.Fingerprint)
		if err != nil {
			return err
		}
		inv, invited, err := get[invitationRecord](t.Tx, bucketInvitation, l.Invitation.Hex())
		if err != nil {
			return err
		}
		invited = invited && l.At.Before(inv.ExpiresAt)
		// A known key needs no invitation. One for the same person is used all
		// the same: it may raise the role.
		if known && invited && inv.Person != key.Person {
			invited = false
		}
		if !known && !invited {
			return store.ErrRefused
		}
		name := key.Person
		if !known {
			name = inv.Person
		}
		person, exists, err := get[personRecord](t.Tx, bucketPerson, name)
		if err != nil {
			return err
		}
		if person.locked() {
			return store.ErrRefused
		}
		actor := "person:" + name
		event := func(action string, detail map[string]string) {
			events = append(events, audit.Event{At: l.At, Actor: actor, Action: action, Subject: actor, Detail: detail})
		}
		if invited {
			if !exists {
				person = personRecord{Role: inv.Role, CreatedAt: l.At.UTC()}
				event("person.create", map[string]string{"role": inv.Role, "invited_by": inv.By})
			} else if person.Role != wire.RoleOwner && inv.Role == wire.RoleOwner {
				person.Role = inv.Role
				event("person.role", map[string]string{"role": inv.Role, "invited_by": inv.By})
			}
			if !known {
				event("person.key_add", map[string]string{"key": l.Fingerprint, "invited_by": inv.By})
			}
		} else if !exists {
			return store.ErrRefused
		}
		event("person.login", map[string]string{"key": l.Fingerprint})
		drop := s.people.surplus(t, name)
		if !known {
			held, err := keysOf(t.Tx, name)
			if err != nil {
				return err
			}
			if len(held) >= store.MaxKeys {
				return store.ErrTooManyKeys
			}
			key = keyRecord{Person: name, Key: l.Key, AddedAt: l.At.UTC()}
		}
		person.LastLogin, key.LastUsed = l.At.UTC(), l.At.UTC()

		if err := t.put(bucketPerson, []byte(name), mustJSON(person)); err != nil {
			return err
		}
		if err := t.put(bucketKey, []byte(l.Fingerprint), mustJSON(key)); err != nil {
			return err
		}
		if invited {
			if err := t.del(bucketInvitation, []byte(l.Invitation.Hex())); err != nil {
				return err
			}
		}
		for _, d := range drop {
			if err := t.del(bucketSession, []byte(d.Hex())); err != nil {
				return err
			}
		}
		rec := sessionRecord{Person: name, Key: l.Fingerprint, CreatedAt: l.At.UTC(), ExpiresAt: l.ExpiresAt.UTC()}
		if err := t.put(bucketSession, []byte(l.Session.Hex()), mustJSON(rec)); err != nil {
			return err
		}
		out = person.person(name)
		t.after = append(t.after, func() {
			s.people.mu.Lock()
			defer s.people.mu.Unlock()
			s.people.persons[name] = person
			s.people.sessions[l.Session] = rec
			for _, d := range drop {
				delete(s.people.sessions, d)
			}
		})
		return t.append(events...)
	})
	if err != nil {
		return store.Person{}, err
	}
	return out, nil
}

// surplus returns the person's oldest sessions beyond the bound, one more
// about to be made.
func (p *people) surplus(t *tx, person string) []secret.Digest {
	type dated struct {
		d  secret.Digest
		at time.Time
	}
	p.mu.RLock()
	var all []dated
	for d, r := range p.sessions {
		if r.Person == person {
			all = append(all, dated{d, r.CreatedAt})
		}
	}
	p.mu.RUnlock()
	if len(all) < maxSessions {
		return nil
	}
	slices.SortFunc(all, func(a, b dated) int { return a.at.Compare(b.at) })
	var drop []secret.Digest
	for _, a := range all[:len(all)-maxSessions+1] {
		drop = append(drop, a.d)
	}
	return drop
}

// Logout ends a session.
func (s *Store) Logout(ctx context.Context, session secret.Digest, now time.Time) error {
	return s.do(ctx, func(t *tx) error {
		r, ok, err := get[sessionRecord](t.Tx, bucketSession, session.Hex())
		if err != nil {
			return err
		}
		if !ok {
			return store.ErrNotFound
		}
		if err := t.del(bucketSession, []byte(session.Hex())); err != nil {
			return err
		}
		t.after = append(t.after, func() {
			s.people.mu.Lock()
			delete(s.people.sessions, session)
			s.people.mu.Unlock()
		})
		who := "person:" + r.Person
		return t.append(audit.Event{At: now, Actor: who, Action: "person.logout", Subject: who})
	})
}

// Invite stores an invitation. One that waits for the same person is void then.
func (s *Store) Invite(ctx context.Context, i store.Invitation) error {
	return s.do(ctx, func(t *tx) error {
		if err := t.live(i.Session); err != nil {
			return err
		}
		if p, _, err := get[personRecord](t.Tx, bucketPerson, i.Person); err != nil {
			return err
		} else if p.locked() {
			return store.ErrLocked
		}
		var void []string
		err := each(t.Tx, bucketInvitation, func(k string, r invitationRecord) error {
			if r.Person == i.Person || !i.At.Before(r.ExpiresAt) {
				void = append(void, k)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, k := range void {
			if err := t.del(bucketInvitation, []byte(k)); err != nil {
				return err
			}
		}
		rec := invitationRecord{Person: i.Person, Role: i.Role, By: i.Actor, ExpiresAt: i.ExpiresAt.UTC()}
		if err := t.put(bucketInvitation, []byte(i.Digest.Hex()), mustJSON(rec)); err != nil {
			return err
		}
		return t.append(audit.Event{At: i.At, Actor: i.Actor, Action: "person.invite", Subject: "person:" + i.Person,
			Detail: map[string]string{"role": i.Role, "expires": wire.Time{Time: i.ExpiresAt}.String()}})
	})
}

// CreateToken stores an automation token under a name that no other has.
func (s *Store) CreateToken(ctx context.Context, k store.Token, d secret.Digest, by machine.By) error {
	return s.do(ctx, func(t *tx) error {
		if err := t.live(by.Session); err != nil {
			return err
		}
		taken := false
		err := each(t.Tx, bucketToken, func(_ string, r tokenRecord) error {
			taken = taken || r.Name == k.Name
			return nil
		})
		if err != nil {
			return err
		}
		if taken {
			return store.ErrExists
		}
		rec := tokenRecord{Name: k.Name, Owner: k.Owner, Scopes: k.Scopes, CreatedAt: k.CreatedAt.UTC(), ExpiresAt: k.ExpiresAt.UTC()}
		if err := t.put(bucketToken, []byte(d.Hex()), mustJSON(rec)); err != nil {
			return err
		}
		t.after = append(t.after, func() {
			s.people.mu.Lock()
			s.people.tokens[d] = rec
			s.people.mu.Unlock()
		})
		return t.append(audit.Event{At: k.CreatedAt, Actor: by.Actor, Action: "token.create", Subject: "token:" + k.Name,
			Detail: map[string]string{"scopes": strings.Join(k.Scopes, ","), "expires": wire.Time{Time: k.ExpiresAt}.String()}})
	})
}

// DeleteToken deletes a token by name.
func (s *Store) DeleteToken(ctx context.Context, name string, by machine.By, now time.Time) error {
	return s.do(ctx, func(t *tx) error {
		if err := t.live(by.Session); err != nil {
			return err
		}
		var digest, owner string
		err := each(t.Tx, bucketToken, func(k string, r tokenRecord) error {
			if r.Name == name {
				digest, owner = k, r.Owner
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case digest == "":
			return store.ErrNotFound
		case !by.Owner && by.Person != owner:
			return machine.ErrNotYours
		}
		if err := t.del(bucketToken, []byte(digest)); err != nil {
			return err
		}
		t.after = append(t.after, func() {
			if d, err := secret.ParseDigest(digest); err == nil {
				s.people.mu.Lock()
				delete(s.people.tokens, d)
				s.people.mu.Unlock()
			}
		})
		return t.append(audit.Event{At: now, Actor: by.Actor, Action: "token.delete", Subject: "token:" + name})
	})
}

// Tokens lists the tokens by name.
func (s *Store) Tokens(context.Context) ([]store.Token, error) {
	p := &s.people
	p.mu.RLock()
	defer p.mu.RUnlock()
	all := make([]store.Token, 0, len(p.tokens))
	for d, r := range p.tokens {
		k := r.token()
		if at, ok := p.used[d]; ok {
			k.LastUsed = at
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b store.Token) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
