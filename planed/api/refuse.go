package api

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/login"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/store"
)

// refusal is an answer that was decided on.
type refusal struct {
	status int
	detail wire.ErrorDetail
}

func (r *refusal) Error() string { return r.detail.Code + ": " + r.detail.Message }

func bad(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, wire.ErrorDetail{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...)}}
}

// limitedError says how long a source has to wait.
type limitedError struct {
	wait time.Duration
	why  string
}

func (e *limitedError) Error() string { return e.why }

var (
	// errUnauthorized is one answer for everybody: it says neither why nor
	// whether anything exists (R22).
	errUnauthorized = &refusal{http.StatusUnauthorized, wire.ErrorDetail{Code: wire.CodeUnauthorized}}
	errForbidden    = &refusal{http.StatusForbidden, wire.ErrorDetail{Code: wire.CodeForbidden, Message: "this principal may not do that"}}
	errTouch        = &refusal{http.StatusForbidden, wire.ErrorDetail{Code: wire.CodeTouchRequired,
		Message: "this plane admits machines only with a touch of your security key",
		Hint:    "add one with fleet person key add (ssh-keygen -t ed25519-sk makes it), load it into ssh-agent, and try again"}}
	errTooLarge = &refusal{http.StatusRequestEntityTooLarge, wire.ErrorDetail{Code: wire.CodeTooLarge, Message: "the request's body is too large"}}
	errShed     = &refusal{http.StatusServiceUnavailable, wire.ErrorDetail{Code: wire.CodeBusy, Message: "the plane has too much to do"}}
)

// explain turns any error into a status and a document. It is the only place
// that does.
func (a *API) explain(err error) (int, wire.ErrorDetail) {
	var r *refusal
	var gone *store.GoneError
	var limited *limitedError
	detail := func(code string) wire.ErrorDetail { return wire.ErrorDetail{Code: code, Message: err.Error()} }
	switch {
	case errors.As(err, &r):
		return r.status, r.detail
	case errors.As(err, &gone):
		return http.StatusGone, wire.ErrorDetail{Code: wire.CodeDeleted, Message: gone.Error(), Deleted: gone.Deleted}
	case errors.As(err, &limited):
		return http.StatusTooManyRequests, detail(wire.CodeBusy)
	case errors.Is(err, store.ErrNotFound):
		return http.StatusNotFound, detail(wire.CodeNotFound)
	case errors.Is(err, machine.ErrNotYours):
		return http.StatusForbidden, detail(wire.CodeForbidden)
	case errors.Is(err, rotation.ErrNone), errors.Is(err, rotation.ErrNarrowing), errors.Is(err, rotation.ErrNothing), errors.Is(err, rotation.ErrTooMany),
		errors.Is(err, rotation.ErrOther), errors.Is(err, rotation.ErrUnsigned), errors.As(err, new(*rotation.VersionError)):
		return http.StatusConflict, detail(wire.CodeConflict)
	case errors.Is(err, rotation.ErrDrill), errors.Is(err, rotation.ErrRotation):
		return http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict, Message: err.Error(), Hint: "fleet rotate gate --status shows it; --abort goes back"}
	case errors.Is(err, store.ErrNoPerson):
		return http.StatusNotFound, detail(wire.CodeNotFound)
	case errors.Is(err, store.ErrLastOwner):
		return http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict, Message: err.Error(),
			Hint: "invite another owner first: fleet person add NAME --role owner --out FILE"}
	case errors.Is(err, store.ErrOwnsMachines):
		return http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict, Message: err.Error(),
			Hint: "fleet transfer MACHINE… --to PERSON, or lock the person: fleet person lock NAME"}
	case errors.Is(err, store.ErrLocked):
		return http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict, Message: err.Error(), Hint: "fleet person unlock NAME"}
	case errors.Is(err, store.ErrKeyTaken), errors.Is(err, store.ErrTooManyKeys):
		return http.StatusConflict, detail(wire.CodeConflict)
	case errors.Is(err, login.ErrNoTouch):
		return errTouch.status, errTouch.detail
	case errors.Is(err, store.ErrExists), errors.Is(err, identity.ErrGeneration), errors.Is(err, identity.ErrReused),
		errors.Is(err, identity.ErrSuperseded):
		return http.StatusConflict, detail(wire.CodeConflict)
	case errors.Is(err, machine.ErrNoKind), errors.Is(err, machine.ErrTooManyLabels), errors.Is(err, identity.ErrNoDigest), errors.Is(err, login.ErrKey):
		return http.StatusBadRequest, detail(wire.CodeBadRequest)
	case errors.Is(err, store.ErrRefused), errors.Is(err, store.ErrSessionEnded), errors.Is(err, login.ErrNonce), errors.Is(err, login.ErrSignature):
		return errUnauthorized.status, errUnauthorized.detail
	case errors.Is(err, store.ErrStorage):
		a.Log.Error("cannot write the store", "error", err.Error())
		return http.StatusServiceUnavailable, wire.ErrorDetail{Code: wire.CodeBusy, Message: "the plane's store cannot write",
			Hint: "planed status on the plane's host says why"}
	case errors.Is(err, store.ErrFull):
		return http.StatusServiceUnavailable, detail(wire.CodeBusy)
	case errors.Is(err, store.ErrBusy), errors.Is(err, store.ErrClosed), errors.Is(err, login.ErrFull):
		return http.StatusServiceUnavailable, wire.ErrorDetail{Code: wire.CodeBusy, Message: "the plane has too much to do"}
	}
	a.Log.Error("cannot answer a request", "error", err.Error())
	return http.StatusInternalServerError, wire.ErrorDetail{Code: wire.CodeInternal, Message: "the plane cannot answer this request"}
}

func writeError(w http.ResponseWriter, status int, d wire.ErrorDetail) {
	writeJSON(w, status, wire.Error{Error: d})
}
