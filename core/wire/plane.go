package wire

// Paths of the plane's person endpoints. A machine's path is PathMachines and
// "/" and its id, with /rename, /labels or /requests after it.
const (
	PathChallenge = "/v1/login/challenge"
	PathLogin     = "/v1/login"
	PathLogout    = "/v1/logout"
	PathWhoami    = "/v1/whoami"
	PathMachines  = "/v1/machines"
	PathAudit     = "/v1/audit"
	PathAuditHead = "/v1/audit/head"
	PathPersons   = "/v1/persons"
	PathHealthz   = "/healthz"
	PathVersion   = "/version"
)

// Roles of persons. An owner manages every machine and makes principals; a
// member sees every machine and manages its own.
const (
	RoleOwner  = "owner"
	RoleMember = "member"
)

// PersonRequest is the body of POST /v1/persons: an owner invites a person.
type PersonRequest struct {
	Name     string  `json:"name"`
	Role     string  `json:"role"`
	ExpiresS float64 `json:"expires_s,omitempty"` // of the invitation; 0 means the plane's default
}

// PersonInvited is its answer: the only time the invitation is shown.
type PersonInvited struct {
	Name       string `json:"name"`
	Role       string `json:"role"`
	Invitation string `json:"invitation"`
	ExpiresAt  Time   `json:"expires_at"`
}

// Version is fleet.version/v1.
type Version struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
}
