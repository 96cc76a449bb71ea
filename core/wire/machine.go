package wire

// Schemas of the documents that the programs print.
const (
	SchemaError      = "fleet.error/v1"
	SchemaMachine    = "fleet.machine/v1"
	SchemaMachines   = "fleet.machines/v1"
	SchemaSession    = "fleet.session/v1"
	SchemaSessions   = "fleet.sessions/v1"
	SchemaInstall    = "fleet.install/v1"
	SchemaTest       = "fleet.test/v1"
	SchemaSummary    = "fleet.summary/v1"
	SchemaRotation   = "fleet.rotation/v1"
	SchemaResults    = "fleet.results/v1"
	SchemaPlane      = "fleet.plane/v1"
	SchemaCredential = "fleet.credential/v1"
	SchemaWhoami     = "fleet.whoami/v1"
	SchemaAudit      = "fleet.audit/v1"
	SchemaTokens     = "fleet.tokens/v1"
	SchemaToken      = "fleet.token/v1"
	SchemaVersion    = "fleet.version/v1"
	SchemaTrust      = "fleet.trust/v1"
	SchemaLinks      = "fleet.links/v1"
	SchemaPlugins    = "fleet.plugins/v1"
	SchemaArtifact   = "fleet.artifact/v1"
	SchemaSSHConfig  = "fleet.ssh-config/v1"
	SchemaAgent      = "fleet.agent/v1" // agentd status and id
)

// Presence words.
const (
	Present = "present"
	Absent  = "absent"
	Never   = "never"
)

// Lifecycle words as the plane shows them.
const (
	LifecycleRunning = "running"
	LifecycleStopped = "stopped"
	LifecycleUnknown = "unknown"
	LifecycleNever   = "never"
)

// Readiness words.
const (
	Ready            = "ready"
	Blocked          = "blocked"
	ReadinessUnknown = "unknown"
)

// Machine is fleet.machine/v1: what the plane knows of one machine. Presence,
// lifecycle and readiness are three facts and never folded into one.
type Machine struct {
	Schema         string            `json:"schema,omitempty"`
	ID             string            `json:"id"`
	Name           string            `json:"name"`
	Owner          string            `json:"owner"`
	Labels         map[string]string `json:"labels"`
	Presence       string            `json:"presence"`
	LastCheck      *Time             `json:"last_check"`
	LastCheckAgeS  *float64          `json:"last_check_age_s"`
	IntervalS      float64           `json:"interval_s"`
	Lifecycle      MachineLifecycle  `json:"lifecycle"`
	Readiness      MachineReadiness  `json:"readiness"`
	Accepting      bool              `json:"accepting"`
	Credential     MachineCredential `json:"credential"`
	Agent          MachineAgent      `json:"agent"`
	Orders         MachineOrders     `json:"orders"`
	Requests       MachineRequests   `json:"requests"`
	CloneSuspected bool              `json:"clone_suspected"`
}

// MachineLifecycle pairs what the machine last said with whether it kept checking.
type MachineLifecycle struct {
	State  string  `json:"state"`
	Said   *string `json:"said"`
	Reason *string `json:"reason"`
	Since  *Time   `json:"since"`
}

// MachineReadiness is the last probed set of blockers, and when it was reported.
type MachineReadiness struct {
	State    string    `json:"state"`
	Blockers []Blocker `json:"blockers"`
	At       *Time     `json:"at"`
}

// Blocker is one finding as the plane shows it.
type Blocker struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Detail   string `json:"detail"`
	Remedy   string `json:"remedy"`
	Since    *Time  `json:"since"`
}

// Kinds of a machine's credential.
const (
	KindBearer = "bearer"
	KindMTLS   = "mtls"
)

// MachineCredential says which generation is current, never a secret or digest.
type MachineCredential struct {
	Kind        string `json:"kind"` // bearer | mtls
	Generation  int64  `json:"generation"`
	NextPending bool   `json:"next_pending"`
	IssuedAt    *Time  `json:"issued_at"`
	ExpiresAt   *Time  `json:"expires_at"`
	StagedAt    *Time  `json:"staged_at"` // since when the next one is pending
	// BehindAt is when a superseded generation was presented last, as far as
	// the plane that runs now remembers: by a machine whose disk went back, or
	// by a copy of it.
	BehindAt *Time `json:"behind_at"`
	// BarredAt is when the bearer of a machine on the mtls rung was presented
	// last where a certificate is wanted: perhaps by a thief.
	BarredAt *Time `json:"barred_at"`
}

// MachineAgent is what the machine says of the program that it runs.
type MachineAgent struct {
	Version        string `json:"version"`
	OS             string `json:"os"`
	Arch           string `json:"arch"`
	Scope          string `json:"scope"`
	ServiceManager string `json:"service_manager"`
}

// MachineOrders counts orders by state.
type MachineOrders struct {
	Waiting int `json:"waiting"`
	Running int `json:"running"`
}

// MachineRequests are the requests that the machine has not answered yet.
type MachineRequests struct {
	Logs   *Time `json:"logs"`
	Rotate *Time `json:"rotate"`
	// RotateKind is the kind of credential that the machine shall have then.
	RotateKind *string `json:"rotate_kind,omitempty"`
}

// Machines is fleet.machines/v1.
type Machines struct {
	Schema    string `json:"schema"`
	PlaneTime Time   `json:"plane_time"`
	// GateRefused says that requests are turned away at the gate, while they are:
	// machines whose token does not fit look absent.
	GateRefused *GateRefused `json:"gate_refused,omitempty"`
	Machines    []Machine    `json:"machines"`
}

// GateRefused counts requests that were turned away at the gate.
type GateRefused struct {
	Requests int64 `json:"requests"`
	Since    Time  `json:"since"`
}

// MachineFilter selects machines in GET /v1/machines. Every field that is set
// must match. Query parameters carry the names given here.
type MachineFilter struct {
	Match        string // match: an exact id, else exact names, else unique-prefix candidates
	Selector     string // selector: k=v,k2!=v2
	Presence     string // presence
	Lifecycle    string // lifecycle
	Blocker      string // blocker
	AgentVersion string // agent_version
}

// AdmitRequest is the body of POST /v1/machines. The secret is made on the
// operator's side and only its digest reaches the plane, so that repeating a
// lost request is the same request, and the plane never holds what it could
// leak. Only a person's session may send it (R8).
type AdmitRequest struct {
	InstallationDigest string            `json:"installation_digest"` // SHA-256 of the installation id's 32 hex digits, hex
	CredentialDigest   string            `json:"credential_digest"`   // SHA-256 of the secret, hex
	Name               string            `json:"name,omitempty"`      // a person's choice; wins over what the machine suggests
	Labels             map[string]string `json:"labels,omitempty"`
	Scope              string            `json:"scope,omitempty"`
	ServiceManager     string            `json:"service_manager,omitempty"`
	Touch              *Touch            `json:"touch,omitempty"` // where the plane demands one; over AdmitSubject
}

// Outcomes of an admission.
const (
	AdmitNew      = "new"      // a row was made; the digest is its generation 1
	AdmitReplaced = "replaced" // the row was there but its credential had never succeeded; the digest replaces it
	AdmitSame     = "same"     // the row already has exactly this digest
	AdmitLiving   = "living"   // the row's credential works or has worked; nothing was changed
)

// AdmitAnswer is the answer to an admission.
type AdmitAnswer struct {
	Machine    string `json:"machine"`
	Generation int64  `json:"generation"`
	Status     string `json:"status"`
	Name       string `json:"name"`
	Owner      string `json:"owner"`
	// Gate is the gate token that the machine is to hold, where the plane has one.
	Gate *CredentialGate `json:"gate,omitempty"`
}

// RenameRequest is the body of POST /v1/machines/{id}/rename.
type RenameRequest struct {
	Name string `json:"name"`
}

// LabelRequest is the body of POST /v1/machines/{id}/labels.
type LabelRequest struct {
	Set    map[string]string `json:"set,omitempty"`
	Remove []string          `json:"remove,omitempty"`
}

// AskRequest is the body of POST /v1/machines/{id}/requests.
type AskRequest struct {
	Kind string `json:"kind"` // logs | rotate
	// OlderThanS, with rotate, asks only a machine whose credential was issued
	// at least so long ago, by the plane's clock.
	OlderThanS float64 `json:"older_than_s,omitempty"`
	// CredentialKind, with rotate, is the kind that the machine shall have then;
	// empty leaves it as it is.
	CredentialKind string `json:"credential_kind,omitempty"`
}

// DeleteAnswer is the answer to DELETE /v1/machines/{id}.
type DeleteAnswer struct {
	Machine string `json:"machine"`
	Name    string `json:"name"`
	At      Time   `json:"at"`
}
