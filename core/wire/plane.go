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

// Schemas of what the front prints besides a machine's document.
const (
	SchemaDeleted     = "fleet.deleted/v1"
	SchemaMachineLeft = "fleet.machine-left/v1"
	SchemaVerified    = "fleet.audit-verified/v1"
)

// DeletedMachine is fleet.deleted/v1: what became of a machine.
type DeletedMachine struct {
	Schema string `json:"schema"`
	State  string `json:"state"` // deleted
	Deleted
}

// MachineLeft is fleet.machine-left/v1: a machine is no longer among those that
// a watched list selects, be it deleted or changed.
type MachineLeft struct {
	Schema string `json:"schema"`
	ID     string `json:"id"`
	Name   string `json:"name"`
}

// AuditVerified is fleet.audit-verified/v1.
type AuditVerified struct {
	Schema string     `json:"schema"`
	OK     bool       `json:"ok"`
	Head   AuditHead  `json:"head"`
	Before *AuditHead `json:"before"` // the head that was verified here before, null for none
}
