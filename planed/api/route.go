package api

import (
	"net/http"

	"fleet.example/fleet/core/wire"
)

// Who says which kind of principal may call a route.
type Who int

const (
	Public    Who = iota // anybody; the answer says nothing about the fleet
	Machine              // a machine's credential, judged by the store in the transaction that acts; behind the gate
	Enrolling            // a machine that has no credential yet; behind the gate
	Sleeper              // a machine's credential, in front of the gate: whoever holds a retired gate token gets in again here
	Person               // a person's session
	Owner                // a person's session with the role owner
	Scoped               // a person's session, or a token with one of the route's scopes
	AnyOne               // a person's session, or any token
)

// gated reports whether the gate stands in front of the route.
func (w Who) gated() bool { return w == Machine || w == Enrolling }

// own reports whether the route's handler authenticates the caller itself.
func (w Who) own() bool { return w == Public || w == Sleeper || w.gated() }

// Route is one line of the table.
type Route struct {
	Method  string
	Path    string // a pattern of http.ServeMux
	Who     Who
	Scopes  []string // with Scoped
	MaxBody int64    // 0: a body is refused
	handle  func(*API, *call) error
}

const (
	smallBody = 8 << 10
	loginBody = 64 << 10
	adminBody = 64 << 10
)

var readScope = []string{wire.ScopeRead}

// Routes is the whole interface.
var Routes = []Route{
	{"GET", wire.PathHealthz, Public, nil, 0, (*API).healthz},
	{"GET", wire.PathVersion, Public, nil, 0, (*API).version},

	{"POST", wire.PathCheck, Machine, nil, wire.MaxCheckBody, (*API).check},
	{"POST", wire.PathRotate, Machine, nil, smallBody, (*API).rotate},
	{"GET", wire.PathMaterial + "/{kind}/{version}", Sleeper, nil, 0, (*API).material},

	{"POST", wire.PathCertificate, Sleeper, nil, smallBody, (*API).certify},
	{"GET", wire.PathTrustBundle, Public, nil, 0, (*API).trustBundle},

	{"POST", wire.PathEnroll, Enrolling, nil, smallBody, (*API).enroll},
	{"POST", wire.PathEnrollPoll, Enrolling, nil, smallBody, (*API).poll},
	{"POST", wire.PathEnrollmentLook, Person, nil, smallBody, (*API).lookAtCode},
	{"POST", wire.PathEnrollmentApprove, Person, nil, loginBody, (*API).approve},
	{"POST", wire.PathEnrollmentDeny, Person, nil, smallBody, (*API).deny},
	{"POST", wire.PathWebLinks, Person, nil, smallBody, (*API).webLink},

	{"POST", wire.PathChallenge, Public, nil, smallBody, (*API).challenge},
	{"POST", wire.PathLogin, Public, nil, loginBody, (*API).login},
	{"POST", wire.PathLogout, Person, nil, smallBody, (*API).logout},
	{"GET", wire.PathWhoami, AnyOne, nil, 0, (*API).whoami},

	{"GET", wire.PathMachines, Scoped, readScope, 0, (*API).machines},
	{"POST", wire.PathMachines, Person, nil, adminBody, (*API).admit},
	{"GET", wire.PathMachines + "/{id}", Scoped, readScope, 0, (*API).machine},
	{"DELETE", wire.PathMachines + "/{id}", Person, nil, smallBody, (*API).remove},
	{"POST", wire.PathMachines + "/{id}/rename", Person, nil, adminBody, (*API).rename},
	{"POST", wire.PathMachines + "/{id}/transfer", Person, nil, smallBody, (*API).transfer},
	{"POST", wire.PathMachines + "/{id}/labels", Person, nil, adminBody, (*API).label},
	{"POST", wire.PathMachines + "/{id}/requests", Scoped, []string{wire.ScopeRotate, wire.ScopeLogs}, smallBody, (*API).ask},

	{"GET", wire.PathRotations + "/{kind}", Scoped, readScope, 0, (*API).rotation},
	{"POST", wire.PathRotations + "/{kind}", Scoped, []string{wire.ScopeRotate}, loginBody, (*API).steer},

	{"GET", wire.PathAudit, Scoped, readScope, 0, (*API).audit},
	{"GET", wire.PathAuditHead, Scoped, readScope, 0, (*API).auditHead},

	{"POST", wire.PathPersons, Owner, nil, smallBody, (*API).invite},
	{"GET", wire.PathPersons, Person, nil, 0, (*API).persons},
	{"GET", wire.PathPersons + "/{name}", Person, nil, 0, (*API).person},
	{"DELETE", wire.PathPersons + "/{name}", Owner, nil, smallBody, (*API).removePerson},
	{"POST", wire.PathPersons + "/{name}/lock", Owner, nil, smallBody, (*API).lockPerson},
	{"POST", wire.PathPersons + "/{name}/unlock", Owner, nil, smallBody, (*API).unlockPerson},
	{"POST", wire.PathPersons + "/{name}/keys", Person, nil, loginBody, (*API).addKey},
	{"DELETE", wire.PathPersons + "/{name}/keys/{fingerprint}", Person, nil, smallBody, (*API).removeKey},
	{"GET", wire.PathTokens, Person, nil, 0, (*API).tokens},
	{"POST", wire.PathTokens, Person, nil, smallBody, (*API).createToken},
	{"DELETE", wire.PathTokens + "/{name}", Person, nil, smallBody, (*API).deleteToken},
}

// Handler serves the table and the pages.
func (a *API) Handler() http.Handler { return a.handler(func(*Route) bool { return true }, a.Pages) }

// MachineHandler serves what machines ask, for the listener that asks them for
// a certificate.
func (a *API) MachineHandler() http.Handler {
	return a.handler(func(rt *Route) bool { return rt.Who == Machine || rt.Who == Sleeper || rt.Path == wire.PathHealthz }, nil)
}

func (a *API) handler(serves func(*Route) bool, pages map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	var check http.Handler
	for i := range Routes {
		rt := &Routes[i]
		if !serves(rt) {
			continue
		}
		h := a.serve(rt)
		mux.Handle(rt.Method+" "+rt.Path, h)
		if rt.Path == wire.PathCheck {
			check = h
		}
	}
	for pattern, page := range pages {
		mux.Handle(pattern, page)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.metrics.unknown.Inc()
		a.metrics.refusals.WithLabelValues(wire.CodeNotFound).Inc()
		writeError(w, http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: "there is no such path"})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A request with both Transfer-Encoding and Content-Length is read by the
		// former, and net/http does not tell that the latter was there. Something in
		// front of the plane may have gone by the latter, so nothing that follows on
		// the connection can be told apart from it (RFC 9112, 6.1). Fleet's own
		// programs never send chunks.
		if len(r.TransferEncoding) > 0 {
			w.Header()["Connection"] = closeHeader
		}
		// Nearly every request is a check and needs no search.
		if r.Method == http.MethodPost && r.URL.Path == wire.PathCheck {
			check.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
