package wire

// Paths of the agent's socket API. Every request carries an API token, and
// without a valid one every path answers the same 401 (R31).
const (
	PathIdentity = "/v1/identity"
	PathStatus   = "/v1/status"
	PathSessions = "/v1/sessions"
	PathLogs     = "/v1/logs"
	PathStop     = "/v1/stop"
	PathStart    = "/v1/start"
	PathTokens   = "/v1/tokens" // on the mint socket only

	// UpgradeSession names the protocol that a session's stream speaks after
	// its HTTP Upgrade: the frames of package core/frame.
	UpgradeSession = "fleet-session/1"

	// PathForward becomes a connection to what its query names with `to`: a TCP
	// port of the machine, or the path of a UNIX socket. UpgradeForward is what it
	// speaks: the bytes, either way, with half-closes.
	PathForward    = "/v1/forward"
	UpgradeForward = "fleet-forward/1"
)

// States of the machine's own credential, as the agent last learnt them.
const (
	CredentialOK           = "ok"
	CredentialUnproven     = "unproven" // never accepted yet
	CredentialBehind       = "behind"
	CredentialRevoked      = "revoked"
	CredentialUnauthorized = "unauthorized"
	CredentialMissing      = "missing"
)

// Identity answers GET /v1/identity: which row of which plane this agent
// confirmed last, and whether that confirmation is recent. It is the machine's
// half of the three-way match (R5).
type Identity struct {
	Schema        string       `json:"schema"` // fleet.identity/v1
	Machine       string       `json:"machine"`
	Account       string       `json:"account"`
	UID           int          `json:"uid"`
	Host          string       `json:"host"`
	Plane         string       `json:"plane"`
	Credential    string       `json:"credential"` // one of the Credential constants
	Generation    int64        `json:"generation"`
	Row           *IdentityRow `json:"row"` // null: no check has ever succeeded
	OrderAudience string       `json:"order_audience"`
	Version       string       `json:"version"`
}

// IdentityRow is the row that the plane's last answer named.
type IdentityRow struct {
	Machine     string  `json:"machine"`
	ConfirmedAt Time    `json:"confirmed_at"`
	AgeS        float64 `json:"age_s"`
	Fresh       bool    `json:"fresh"` // within twice the interval and 20 s
}

// AgentStatus is fleet.agent/v1: what agentd status --json prints and GET
// /v1/status answers.
type AgentStatus struct {
	Schema     string `json:"schema"`
	State      string `json:"state"` // running | stopped | revoked | absent
	Latched    bool   `json:"latched"`
	Machine    string `json:"machine"`
	Version    string `json:"version"`
	Artifact   string `json:"artifact,omitempty"` // content hash of the version directory that runs
	PID        int    `json:"pid"`
	StartedAt  *Time  `json:"started_at"`
	Plane      string `json:"plane"`
	Credential string `json:"credential"`
	Generation int64  `json:"generation"`
	// CredentialKind is KindBearer or KindMTLS, and ExpiresAt the certificate's.
	CredentialKind string `json:"credential_kind"`
	ExpiresAt      *Time  `json:"expires_at"`

	LastCheck *LastCheck `json:"last_check"`
	Blockers  []Blocker  `json:"blockers"`
	Probed    bool       `json:"probed"`
	Sessions  int        `json:"sessions"`           // running ones
	Forwards  int        `json:"forwards,omitempty"` // connections that are forwarded
	Copies    int        `json:"copies,omitempty"`   // copies of files that are under way
	Draining  bool       `json:"draining"`
	DataDir   string     `json:"data_dir"`
	Socket    string     `json:"socket"`
	Listen    string     `json:"listen,omitempty"` // the port of the loopback interface that is served, too
}

// LastCheck is the outcome of the last check that was made.
type LastCheck struct {
	At        Time    `json:"at"`
	OK        bool    `json:"ok"`
	Error     string  `json:"error,omitempty"` // words, never a secret
	NextInS   float64 `json:"next_in_s"`
	IntervalS float64 `json:"interval_s"`
	OKAt      *Time   `json:"ok_at"` // last success
}

// TokenMint is the body of POST /v1/tokens on the mint socket.
type TokenMint struct {
	Workspace string `json:"workspace,omitempty"`
	// LifetimeS is in seconds; 0 means the agent's default.
	LifetimeS float64 `json:"lifetime_s,omitempty"`
}

// TokenMinted is its answer.
type TokenMinted struct {
	Token     string `json:"token"`
	ExpiresAt Time   `json:"expires_at"`
}

// SessionRequest is the body of POST /v1/sessions.
type SessionRequest struct {
	// ID is the session's, made by the client (NewSessionID), so that a request
	// whose answer was lost may be sent again: a session that exists already is
	// the answer. Without it the agent makes one.
	ID        string            `json:"id,omitempty"`
	Argv      []string          `json:"argv"`                // exact, no shell; empty with Shell
	Shell     bool              `json:"shell,omitempty"`     // the account's login shell
	Env       map[string]string `json:"env,omitempty"`       // added to the agent's clean environment
	Dir       string            `json:"dir,omitempty"`       // default: the home directory
	Workspace string            `json:"workspace,omitempty"` // run in a workspace
	Stdin     bool              `json:"stdin,omitempty"`     // false: /dev/null
	PTY       *PTY              `json:"pty,omitempty"`
	// Attached says that a client will attach to the stream before the command
	// may produce output that nobody reads; it changes nothing about what runs.
	Attached bool         `json:"attached,omitempty"`
	Spool    *SpoolPolicy `json:"spool,omitempty"`
	// First are the stream's first bytes, sent along so that attaching takes no
	// round trip of its own. The answer's HeaderFirst says how many were taken.
	First []byte `json:"first,omitempty"`
}

// PTY asks for a pseudo terminal. Rows and Cols are in characters.
type PTY struct {
	Term string `json:"term"`
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// States of a session.
const (
	SessionStarting = "starting"
	SessionRunning  = "running"
	SessionExited   = "exited"
	SessionGone     = "gone"    // the shim is confirmed gone without an exit record
	SessionUnclear  = "unclear" // cannot tell whether the shim lives
)

// Session is fleet.session/v1.
type Session struct {
	Schema    string       `json:"schema,omitempty"`
	ID        string       `json:"id"`
	Machine   string       `json:"machine"`
	Host      string       `json:"host"`
	Workspace string       `json:"workspace"`
	Argv0     string       `json:"argv0"`
	State     string       `json:"state"`
	StartedAt Time         `json:"started_at"`
	UptimeS   float64      `json:"uptime_s"`
	Clients   int          `json:"clients"`
	PTY       bool         `json:"pty"`
	PID       int          `json:"pid"`
	LostBytes int64        `json:"lost_bytes"`
	Exit      *SessionExit `json:"exit"`
}

// SessionExit is how a session's command ended.
type SessionExit struct {
	Code    int     `json:"code"`             // exit status, or 128 plus the signal's number
	Signal  string  `json:"signal,omitempty"` // KILL, TERM, … when a signal ended it
	Core    bool    `json:"core,omitempty"`
	At      Time    `json:"at"`
	UserS   float64 `json:"user_s"`
	SystemS float64 `json:"system_s"`
	MaxRSS  int64   `json:"max_rss_bytes"`
	Error   string  `json:"error,omitempty"` // the command could not be started
}

// Sessions is fleet.sessions/v1.
type Sessions struct {
	Schema   string    `json:"schema"`
	Sessions []Session `json:"sessions"`
}

// SignalRequest is the body of POST /v1/sessions/{id}/signal.
type SignalRequest struct {
	Signal string `json:"signal"` // a name without SIG, as TERM
}
