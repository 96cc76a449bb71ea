package bolt

import (
	"context"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// Kinds of sessions. A program's has none.
const (
	kindLink = "link" // opens a browser's session, once
	kindWeb  = "web"
)

// MakeLink stores a one-time link.
func (s *Store) MakeLink(ctx context.Context, by machine.By, key string, link secret.Digest, now, expires time.Time) error {
	return s.do(ctx, func(t *tx) error {
		if err := t.live(by.Session); err != nil {
			return err
		}
		var void []secret.Digest
		s.people.mu.RLock()
		for d, r := range s.people.sessions {
			if r.Person == by.Person && r.Kind == kindLink {
				void = append(void, d)
			}
		}
		s.people.mu.RUnlock()
		rec := sessionRecord{Person: by.Person, Key: key, Kind: kindLink, CreatedAt: now.UTC(), ExpiresAt: expires.UTC()}
		if err := s.replaceSessions(t, void, link, rec); err != nil {
			return err
		}
		return t.append(audit.Event{At: now, Actor: by.Actor, Action: "person.web_link", Subject: "person:" + by.Person})
	})
}

// replaceSessions drops sessions and adds one.
func (s *Store) replaceSessions(t *tx, drop []secret.Digest, add secret.Digest, rec sessionRecord) error {
	for _, d := range drop {
		if err := t.del(bucketSession, []byte(d.Hex())); err != nil {
			return err
		}
	}
	t.after = append(t.after, func() {
		s.people.mu.Lock()
		defer s.people.mu.Unlock()
		for _, d := range drop {
			delete(s.people.sessions, d)
		}
		s.people.sessions[add] = rec
	})
	return t.put(bucketSession, []byte(add.Hex()), mustJSON(rec))
}

// session finds a living session of one kind in memory.
func (s *Store) session(d secret.Digest, kind string, now time.Time) (sessionRecord, personRecord, error) {
	p := &s.people
	p.mu.RLock()
	defer p.mu.RUnlock()
	r, ok := p.sessions[d]
	person, known := p.persons[r.Person]
	if !ok || !known || person.locked() || r.Kind != kind || !now.Before(r.ExpiresAt) {
		return r, person, store.ErrNotFound
	}
	return r, person, nil
}

// LinkOwner says whose a link is.
func (s *Store) LinkOwner(_ context.Context, link secret.Digest, now time.Time) (string, error) {
	r, _, err := s.session(link, kindLink, now)
	if err != nil {
		return "", err
	}
	return r.Person, nil
}

// Browser says whose a browser's session is.
func (s *Store) Browser(_ context.Context, session secret.Digest, now time.Time) (store.Principal, error) {
	r, p, err := s.session(session, kindWeb, now)
	if err != nil {
		return store.Principal{}, err
	}
	return store.Principal{Kind: "person", Name: r.Person, Person: r.Person, Role: p.Role, Key: r.Key, ExpiresAt: r.ExpiresAt}, nil
}

// SpendLink opens a browser's session.
func (s *Store) SpendLink(ctx context.Context, link, session secret.Digest, now, expires time.Time) (store.Person, error) {
	var out store.Person
	err := s.do(ctx, func(t *tx) error {
		r, ok, err := get[sessionRecord](t.Tx, bucketSession, link.Hex())
		if err != nil {
			return err
		}
		if !ok || r.Kind != kindLink || !now.Before(r.ExpiresAt) {
			return store.ErrNotFound
		}
		p, ok, err := get[personRecord](t.Tx, bucketPerson, r.Person)
		if err != nil {
			return err
		}
		if !ok || p.locked() {
			return store.ErrNotFound
		}
		out = p.person(r.Person)
		drop := append(s.people.surplus(t, r.Person), link)
		rec := sessionRecord{Person: r.Person, Key: r.Key, Kind: kindWeb, CreatedAt: now.UTC(), ExpiresAt: expires.UTC()}
		if err := s.replaceSessions(t, drop, session, rec); err != nil {
			return err
		}
		who := "person:" + r.Person
		return t.append(audit.Event{At: now, Actor: who, Action: "person.web_login", Subject: who})
	})
	if err != nil {
		return store.Person{}, err
	}
	return out, nil
}
