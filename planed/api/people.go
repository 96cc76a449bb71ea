package api

import (
	"net/http"
	"strings"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/login"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// touched holds the plane's policy: with RequireTouch a session is not enough
// to admit or approve, so one that was stolen lets nothing in.
func (a *API) touched(c *call, t *wire.Touch, subject string) error {
	if !a.RequireTouch {
		return nil
	}
	if t == nil {
		return errTouch
	}
	key, err := a.nonces.Touch(*t, subject)
	if err != nil {
		a.Log.Warn("touch refused", "person", c.who.Person, "reason", err.Error())
		return errTouch
	}
	owner, err := a.Store.KeyOwner(c.ctx(), key.Fingerprint)
	if err != nil || owner != c.who.Person {
		a.Log.Warn("touch refused", "person", c.who.Person, "reason", "the key is not theirs", "key", key.Fingerprint)
		return errTouch
	}
	return nil
}

func personView(p store.PersonInfo) wire.Person {
	v := wire.Person{
		Name: p.Name, Role: p.Role, Locked: !p.LockedAt.IsZero(), LockedAt: wire.TimeOf(p.LockedAt), LockedBy: p.LockedBy,
		CreatedAt: wire.Time{Time: p.CreatedAt}, LastLogin: wire.TimeOf(p.LastLogin), Sessions: p.Sessions,
		Keys: make([]wire.PersonKey, 0, len(p.Keys)), Tokens: p.Tokens,
	}
	if v.Tokens == nil {
		v.Tokens = []string{}
	}
	for _, k := range p.Keys {
		kind, _, _ := strings.Cut(k.Key, " ")
		v.Keys = append(v.Keys, wire.PersonKey{Fingerprint: k.Fingerprint, Type: kind,
			AddedAt: wire.Time{Time: k.AddedAt}, LastUsed: wire.TimeOf(k.LastUsed)})
	}
	return v
}

// persons is GET /v1/persons.
func (a *API) persons(c *call) error {
	all, waiting, err := a.Store.Persons(c.ctx(), a.Now())
	if err != nil {
		return err
	}
	out := wire.Persons{Schema: wire.SchemaPersons, Persons: make([]wire.Person, 0, len(all)), Invitations: make([]wire.Invitation, 0, len(waiting))}
	for _, p := range all {
		out.Persons = append(out.Persons, personView(p))
	}
	for _, i := range waiting {
		out.Invitations = append(out.Invitations, wire.Invitation{Name: i.Person, Role: i.Role, By: i.By, ExpiresAt: wire.Time{Time: i.ExpiresAt}})
	}
	return c.answer(out)
}

// personName is the person that the path names.
func (c *call) personName() (string, error) {
	name := c.r.PathValue("name")
	if err := wire.CheckName(name); err != nil {
		return "", bad("name: %s", err)
	}
	return name, nil
}

// person is GET /v1/persons/{name}.
func (a *API) person(c *call) error {
	name, err := c.personName()
	if err != nil {
		return err
	}
	all, _, err := a.Store.Persons(c.ctx(), a.Now())
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Name != name {
			continue
		}
		v := personView(p)
		n, err := a.ownedBy(c, name)
		if err != nil {
			return err
		}
		v.Schema, v.Machines = wire.SchemaPerson, &n
		return c.answer(v)
	}
	return &refusal{http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: "there is no person " + name}}
}

func (a *API) ownedBy(c *call, person string) (n int, err error) {
	err = a.Store.EachMachine(c.ctx(), func(r *machine.Row) error {
		if r.Owner == person {
			n++
		}
		return nil
	})
	return n, err
}

func (a *API) lockPerson(c *call) error {
	return a.changePerson(c, store.PersonChange{Lock: true}, wire.PersonLocked)
}

func (a *API) unlockPerson(c *call) error {
	return a.changePerson(c, store.PersonChange{Unlock: true}, wire.PersonUnlocked)
}

func (a *API) removePerson(c *call) error {
	return a.changePerson(c, store.PersonChange{Remove: true}, wire.PersonRemoved)
}

// addKey is POST /v1/persons/{name}/keys: an owner's for anybody, a member's
// for themselves.
func (a *API) addKey(c *call) error {
	var req wire.KeyRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	key, err := login.ParseKey(req.PublicKey)
	if err != nil {
		return err
	}
	return a.changePerson(c, store.PersonChange{AddKey: &store.Key{Fingerprint: key.Fingerprint, Key: key.Authorized}}, wire.PersonKeyAdded)
}

func (a *API) removeKey(c *call) error {
	fp := c.r.PathValue("fingerprint")
	if !strings.HasPrefix(fp, "SHA256:") || len(fp) > 64 {
		return bad("a key is named by its fingerprint, SHA256:…")
	}
	return a.changePerson(c, store.PersonChange{RemoveKey: fp}, wire.PersonKeyRemoved)
}

func (a *API) changePerson(c *call, ch store.PersonChange, word string) error {
	name, err := c.personName()
	if err != nil {
		return err
	}
	ch.By, ch.At, ch.Name = c.by(), a.Now(), name
	did, err := a.Store.ChangePerson(c.ctx(), ch)
	if err != nil {
		return err
	}
	out := wire.PersonChanged{Schema: wire.SchemaPersonChanged, Name: name, Change: word,
		Sessions: did.Sessions, Tokens: did.Tokens, Invitations: did.Invitations}
	if out.Tokens == nil {
		out.Tokens = []string{}
	}
	if ch.Lock || ch.Remove {
		if out.Machines, err = a.ownedBy(c, name); err != nil {
			return err
		}
	}
	return c.answer(out)
}
