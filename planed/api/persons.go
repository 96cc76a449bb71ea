package api

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/store"
)

const (
	sessionLife    = 12 * time.Hour
	invitationLife = 24 * time.Hour
	maxInvitation  = 30 * 24 * time.Hour
	maxTokenLife   = 366 * 24 * time.Hour
)

func (a *API) healthz(c *call) error {
	c.w.Header()["Content-Type"] = []string{"text/plain; charset=utf-8"}
	c.w.Write([]byte("ok\n"))
	return nil
}

func (a *API) version(c *call) error {
	return c.answer(wire.Version{Schema: wire.SchemaVersion, Version: a.Version})
}

func (a *API) challenge(c *call) error { return c.answer(a.nonces.Challenge()) }

// login is POST /v1/login. An unknown key, a bad signature, a used nonce and a
// dead invitation are refused alike.
func (a *API) login(c *call) error {
	if wait, ok := a.failures.Allow(c.r.RemoteAddr); !ok {
		return &limitedError{wait, "too many failed logins"}
	}
	var req wire.LoginRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	if u, err := wire.PlaneURL(req.URL); err != nil || u != a.url() && !slices.Contains(a.ownURLs(), u) {
		return &refusal{http.StatusBadRequest, wire.ErrorDetail{
			Code:    wire.CodeBadRequest,
			Message: "this plane is " + a.url() + ", which is not the URL that was dialled",
			Hint:    "log in to " + a.url(),
		}}
	}
	key, err := a.nonces.Verify(req)
	if err != nil {
		a.failures.Fail(c.r.RemoteAddr)
		a.Log.Warn("login refused", "reason", err.Error())
		return err
	}
	token := secret.New("fs_")
	now := a.Now()
	l := store.Login{
		Fingerprint: key.Fingerprint, Key: key.Authorized,
		Session: token.Digest(), At: now, ExpiresAt: now.Add(sessionLife),
	}
	if inv := secret.Of(req.Invite); !inv.Empty() {
		l.Invitation = inv.Digest()
	}
	p, err := a.Store.Login(c.ctx(), l)
	if err != nil {
		if errors.Is(err, store.ErrRefused) {
			a.failures.Fail(c.r.RemoteAddr)
			a.Log.Warn("login refused", "reason", "unknown key", "key", key.Fingerprint)
		}
		return err
	}
	return c.answer(wire.LoginAnswer{Token: token.Reveal(), Person: p.Name, Role: p.Role, ExpiresAt: wire.Time{Time: l.ExpiresAt}})
}

func (a *API) logout(c *call) error {
	token, _ := bearer(c.r)
	if err := a.Store.Logout(c.ctx(), token.Digest(), a.Now()); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return c.answer(struct{}{})
}

func (a *API) whoami(c *call) error {
	w := wire.Whoami{
		Schema: wire.SchemaWhoami, Plane: a.url(), Kind: c.who.Kind, Name: c.who.Name,
		Key: c.who.Key, ExpiresAt: wire.TimeOf(c.who.ExpiresAt),
	}
	if c.who.Kind == "person" {
		w.Role = c.who.Role
	} else {
		w.Scopes = c.who.Scopes
	}
	return c.answer(w)
}

// invite is POST /v1/persons.
func (a *API) invite(c *call) error {
	var req wire.PersonRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	if err := wire.CheckName(req.Name); err != nil {
		return bad("name: %s", err)
	}
	if req.Role != wire.RoleOwner && req.Role != wire.RoleMember {
		return bad("role is owner or member, not %.64q", req.Role)
	}
	life, err := span(req.ExpiresS, maxInvitation)
	if req.ExpiresS == 0 {
		life, err = invitationLife, nil
	}
	if err != nil {
		return err
	}
	inv := secret.New("fi_")
	now := a.Now()
	i := store.Invitation{Actor: c.by().Actor, Session: c.with, Digest: inv.Digest(), Person: req.Name, Role: req.Role, At: now, ExpiresAt: now.Add(life)}
	if err := a.Store.Invite(c.ctx(), i); err != nil {
		return err
	}
	return c.answer(wire.PersonInvited{Name: i.Person, Role: i.Role, Invitation: inv.Reveal(), ExpiresAt: wire.Time{Time: i.ExpiresAt}})
}

// span reads a number of seconds from now.
func span(s float64, limit time.Duration) (time.Duration, error) {
	if math.IsNaN(s) || s < 1 || s > limit.Seconds() {
		return 0, bad("expires_s is between 1 and %.0f seconds", limit.Seconds())
	}
	return time.Duration(s * float64(time.Second)), nil
}

func (a *API) createToken(c *call) error {
	var req wire.TokenRequest
	if err := c.decodeStrict(&req); err != nil {
		return err
	}
	if err := wire.CheckName(req.Name); err != nil {
		return bad("name: %s", err)
	}
	if len(req.Scopes) == 0 {
		return bad("scopes: a token has at least one of read, rotate, order, logs")
	}
	scopes := slices.Clone(req.Scopes)
	slices.Sort(scopes)
	scopes = slices.Compact(scopes)
	for _, s := range scopes {
		switch s {
		case wire.ScopeRead, wire.ScopeRotate, wire.ScopeOrder, wire.ScopeLogs:
		default:
			return bad("scopes: %.64q is none of read, rotate, order, logs", s)
		}
	}
	life, err := span(req.ExpiresS, maxTokenLife)
	if err != nil {
		return err
	}
	sec := secret.New("ft_")
	now := a.Now()
	k := store.Token{Name: req.Name, Owner: c.who.Person, Scopes: scopes, CreatedAt: now, ExpiresAt: now.Add(life)}
	if err := a.Store.CreateToken(c.ctx(), k, sec.Digest(), c.by()); err != nil {
		if errors.Is(err, store.ErrExists) {
			return &refusal{http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict, Message: "there is a token " + req.Name + " already"}}
		}
		return err
	}
	out := wire.TokenCreated{Token: tokenView(k), Secret: sec.Reveal()}
	out.Schema = wire.SchemaToken
	return c.answer(out)
}

func tokenView(k store.Token) wire.Token {
	return wire.Token{
		Name: k.Name, Owner: k.Owner, Scopes: k.Scopes,
		CreatedAt: wire.Time{Time: k.CreatedAt}, ExpiresAt: wire.Time{Time: k.ExpiresAt}, LastUsed: wire.TimeOf(k.LastUsed),
	}
}

// tokens lists a member's own tokens, or all of them to an owner.
func (a *API) tokens(c *call) error {
	all, err := a.Store.Tokens(c.ctx())
	if err != nil {
		return err
	}
	out := wire.Tokens{Schema: wire.SchemaTokens, Tokens: []wire.Token{}}
	for _, k := range all {
		if c.by().Owner || k.Owner == c.who.Person {
			out.Tokens = append(out.Tokens, tokenView(k))
		}
	}
	return c.answer(out)
}

func (a *API) deleteToken(c *call) error {
	name := c.r.PathValue("name")
	if err := a.Store.DeleteToken(c.ctx(), name, c.by(), a.Now()); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return &refusal{http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: "there is no such token"}}
		}
		return err
	}
	return c.answer(struct{}{})
}

const (
	auditPage    = 1000
	auditPageMax = 5000
)

// audit is GET /v1/audit: query since (RFC 3339), machine (an id), after (a
// sequence number) and limit.
func (a *API) audit(c *call) error {
	f := store.AuditFilter{Limit: auditPage}
	for k, v := range c.r.URL.Query() {
		var err error
		switch k {
		case "since":
			f.Since, err = time.Parse(time.RFC3339Nano, v[0])
		case "after":
			f.After, err = strconv.ParseUint(v[0], 10, 63)
		case "limit":
			f.Limit, err = strconv.Atoi(v[0])
			if f.Limit < 1 || f.Limit > auditPageMax {
				return bad("limit is between 1 and %d", auditPageMax)
			}
		case "machine":
			if f.Machine = v[0]; !wire.IsMachineID(f.Machine) {
				return bad("machine is a machine's id")
			}
		default:
			return bad("entries cannot be selected by %.64q", k)
		}
		if err != nil || len(v) != 1 {
			return bad("%s is malformed", k)
		}
	}
	out, err := a.Store.Audit(c.ctx(), f)
	if err != nil {
		return err
	}
	return c.answer(out)
}

func (a *API) auditHead(c *call) error {
	h, err := a.Store.AuditHead(c.ctx())
	if err != nil {
		return err
	}
	return c.answer(h)
}
