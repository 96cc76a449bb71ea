package api

import (
	"errors"
	"fmt"
	"net/http"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/login"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/signed"
	"fleet.example/fleet/planed/store"
)

// url is where the plane is now.
func (a *API) url() string {
	if a.Place == nil {
		return a.URL
	}
	return a.Place.Current()
}

// ownURLs are all that lead or led here.
func (a *API) ownURLs() []string {
	if a.Place == nil {
		return []string{a.URL}
	}
	return a.Place.Own()
}

// now is what machines are to hold of a kind that a person signs.
func (a *API) now(kind string) *signed.Now {
	switch {
	case kind == wire.MaterialURL && a.Place != nil:
		return a.Place.Now()
	case kind == wire.MaterialTrust && a.Trust != nil:
		return a.Trust.Now()
	}
	return nil
}

// rightPlace decides whether a machine came to a URL that is accepted.
func (a *API) rightPlace(c *call) bool {
	retiring, refused := a.Place.Judge(c.r.Host)
	if c.r.Context().Value(proof{}) != nil {
		return !refused
	}
	c.old = retiring && !refused
	return !refused
}

// signing reads the statement of a request to rotate what a person signs. It is
// refused here where machines would not take it; that they do not take it for
// the plane's word is theirs to see to.
func (a *API) signing(c *call, kind string, req wire.RotationRequest) (*rotation.Signing, error) {
	given := rotation.Signed{Statement: req.Statement, Signature: req.Signature}
	if kind == wire.MaterialGate || req.Action == wire.RotationLeave {
		if !given.IsZero() {
			return nil, bad("nobody signs for this")
		}
		return nil, nil
	}
	if req.Drill {
		return nil, bad("what a person signs is not rehearsed")
	}
	if given.IsZero() {
		if req.Action == wire.RotationAbort {
			return nil, nil
		}
		return nil, &refusal{http.StatusBadRequest, wire.ErrorDetail{Code: wire.CodeBadRequest, Message: rotation.ErrUnsigned.Error()}}
	}
	if len(given.Statement) > wire.MaxStatement || len(given.Signature) > wire.MaxStatement {
		return nil, errTooLarge
	}
	st, signing, err := signed.Read(kind, given)
	if err != nil {
		return nil, bad("%s", err)
	}
	if req.Action == wire.RotationStart {
		// One that is under way is joined, whatever holds by then.
		s, err := a.Store.RotationState(c.ctx(), kind)
		if err != nil {
			return nil, err
		}
		if !s.Running() {
			if err := a.fits(kind, st); err != nil {
				return nil, conflict("cannot use the statement: %s", err)
			}
		}
	}
	key, err := login.Signer(wire.NamespaceMaterial, given.Statement, given.Signature)
	if err != nil {
		return nil, bad("cannot use the statement: %s", err)
	}
	if _, err := a.Store.KeyOwner(c.ctx(), key); errors.Is(err, store.ErrNotFound) {
		return nil, conflict("the statement is signed by %s, which is nobody's key here", key)
	} else if err != nil {
		return nil, err
	}
	return &signing, nil
}

func (a *API) fits(kind string, st *wire.Statement) error {
	if kind == wire.MaterialURL {
		return a.Place.Check(st)
	}
	return a.Trust.Check(st)
}

func conflict(format string, args ...any) error {
	return &refusal{http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict, Message: fmt.Sprintf(format, args...)}}
}

// signedView adds what the next statement has to say.
func (a *API) signedView(doc *wire.MaterialRotation, s rotation.State) {
	if doc.Kind == wire.MaterialGate {
		return
	}
	value := func(g rotation.Signed) string {
		if st, _, err := signed.Read(doc.Kind, g); err == nil {
			return st.Value()
		}
		return ""
	}
	doc.Next, doc.Planes = s.High+1, a.ownURLs()
	doc.Value = a.inUse(doc.Kind)
	if r := s.Run; r != nil {
		doc.FromValue, doc.ToValue = value(r.FromSigned), value(r.ToSigned)
		if doc.FromValue == "" && s.Running() {
			doc.FromValue = doc.Value // which changes last
		}
	}
}

// inUse is the value that the plane's host has: until the very end of a rotation
// the one before it.
func (a *API) inUse(kind string) string {
	if kind == wire.MaterialURL {
		return a.Place.Own()[0]
	}
	return a.Trust.InUse()
}
