package planeclient

import (
	"context"
	"net/url"

	"fleet.example/fleet/core/wire"
)

func personPath(name string) string { return wire.PathPersons + "/" + url.PathEscape(name) }

// Persons lists persons and the invitations that wait.
func (c *Client) Persons(ctx context.Context) (p wire.Persons, err error) {
	err = c.do(ctx, "GET", wire.PathPersons, nil, &p)
	return p, err
}

// Person shows one person.
func (c *Client) Person(ctx context.Context, name string) (p wire.Person, err error) {
	err = c.do(ctx, "GET", personPath(name), nil, &p)
	return p, err
}

// LockPerson ends a person's sessions and tokens and refuses their keys.
func (c *Client) LockPerson(ctx context.Context, name string) (p wire.PersonChanged, err error) {
	err = c.do(ctx, "POST", personPath(name)+"/lock", struct{}{}, &p)
	return p, err
}

// UnlockPerson lets a locked person log in again.
func (c *Client) UnlockPerson(ctx context.Context, name string) (p wire.PersonChanged, err error) {
	err = c.do(ctx, "POST", personPath(name)+"/unlock", struct{}{}, &p)
	return p, err
}

// RemovePerson removes a person, or the invitation of one who has not come.
func (c *Client) RemovePerson(ctx context.Context, name string) (p wire.PersonChanged, err error) {
	err = c.do(ctx, "DELETE", personPath(name), nil, &p)
	return p, err
}

// AddKey gives a person one more key, in authorized_keys form.
func (c *Client) AddKey(ctx context.Context, name, key string) (p wire.PersonChanged, err error) {
	err = c.do(ctx, "POST", personPath(name)+"/keys", wire.KeyRequest{PublicKey: key}, &p)
	return p, err
}

// RemoveKey takes a key from a person, by its fingerprint, and ends the
// sessions that it opened.
func (c *Client) RemoveKey(ctx context.Context, name, fingerprint string) (p wire.PersonChanged, err error) {
	err = c.do(ctx, "DELETE", personPath(name)+"/keys/"+url.PathEscape(fingerprint), nil, &p)
	return p, err
}

// Transfer gives a machine to another person.
func (c *Client) Transfer(ctx context.Context, id, to string) (m wire.Machine, err error) {
	err = c.do(ctx, "POST", machinePath(id)+"/transfer", wire.TransferRequest{To: to}, &m)
	return m, err
}
