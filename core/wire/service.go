package wire

// Schemas of the documents that stand in a machine's data directory or pass
// between its programs.
const (
	SchemaService    = "fleet.service/v1"
	SchemaFindings   = "fleet.findings/v1"
	SchemaIdentity   = "fleet.identity/v1"
	SchemaAgentFacts = "fleet.agent-facts/v1"
)

// ServiceRecord is DATA/service.json: how the service was registered, written
// once by the installer. It is how agentd, started from a login shell, finds
// the runtime directory and the command that starts the service again.
type ServiceRecord struct {
	Schema  string `json:"schema"`
	Scope   string `json:"scope"`   // user | system
	Manager string `json:"manager"` // a plugin's name without its prefix: systemd, launchd, plain, …
	Unit    string `json:"unit"`    // the manager's name for the service, as fleet-agent.service
	Account string `json:"account"`

	DataDir    string `json:"data_dir"`
	RuntimeDir string `json:"runtime_dir"`

	// Start, Stop and Restart are exact commands, no shell, run as the account:
	// ["systemctl","--user","start","fleet-agent.service"]. An empty one means
	// that the account cannot do it by itself.
	Start   []string `json:"start"`
	Stop    []string `json:"stop,omitempty"`
	Restart []string `json:"restart,omitempty"`

	// StayWhenStopped is set for a manager that does not see the latch and
	// would start agentd again at once: a latched agentd then stays up, silent,
	// in place of ending.
	StayWhenStopped bool `json:"stay_when_stopped,omitempty"`
}

// SchemaRegistered names the Registered document.
const SchemaRegistered = "fleet.registered/v1"

// Registered is fleet.registered/v1: what the plugin binary says when it has
// registered the agent on its own machine.
type Registered struct {
	Schema  string   `json:"schema"`
	Manager string   `json:"manager"`
	Unit    string   `json:"unit"`
	Caveats []string `json:"caveats"`
	Stopped bool     `json:"stopped"` // a person stopped the agent: it was not started
}

// Findings is what agentd-probes prints: the complete result of one run.
type Findings struct {
	Schema string          `json:"schema"` // SchemaFindings
	Probes []ProbeFindings `json:"probes"`
}

// ProbeFindings is one probe's result. With OK false the probe could not tell,
// and what it found before still stands.
type ProbeFindings struct {
	Name     string    `json:"name"`
	OK       bool      `json:"ok"`
	Error    string    `json:"error,omitempty"`
	Findings []Finding `json:"findings"`
}

// AgentFacts is DATA/facts.json: what agentd knows and a probe cannot find out
// for itself. agentd writes it before each run of the probes.
type AgentFacts struct {
	Schema string `json:"schema"` // SchemaAgentFacts
	// ClockOffsetMS is the plane's clock minus the machine's, as the last
	// answered check showed it; null before the first.
	ClockOffsetMS *float64 `json:"clock_offset_ms"`
	// CredentialError says why the last write of a credential did not succeed.
	CredentialError string `json:"credential_error,omitempty"`
}

// StopRequest is the body of POST /v1/stop. With ReasonPerson agentd leaves
// the latch and ends. With ReasonUpdate or ReasonRestart it only remembers the
// reason for the stop that the service manager is about to make.
type StopRequest struct {
	Reason string `json:"reason"`
}

// More paths of the agent's socket API.
const (
	PathDrain   = "/v1/drain"
	PathUndrain = "/v1/undrain"
	PathRestart = "/v1/restart" // say so, then become the program that current names, in the same process
	PathProbe   = "/v1/probe"   // run the probes now
	PathReload  = "/v1/reload"  // on the mint socket only: read the credential files again
)

// HeaderSession carries the session's id in the answer to a creation that
// became its stream at once (POST /v1/sessions with Upgrade).
const HeaderSession = "Fleet-Session"

// HeaderFirst carries how many bytes of SessionRequest.First were taken. An
// agent that knows no such field leaves it out.
const HeaderFirst = "Fleet-First"

// Codes of refusals on the agent's socket.
const (
	CodeDraining         = "draining"
	CodeSessionUnusable  = "session_unusable"
	CodeWorkspaceMissing = "workspace_missing"
	CodeCannotTell       = "cannot_tell"
	CodeNoListener       = "no_listener" // nothing listens where a forward leads
)

// Spool policies: what happens to a command whose unread output reaches the limit.
const (
	SpoolBlock      = "block"       // it waits
	SpoolDropOldest = "drop_oldest" // the oldest output is lost and counted
)

// SpoolPolicy bounds what a session keeps of its output on the machine's disk.
type SpoolPolicy struct {
	LimitBytes int64  `json:"limit_bytes,omitempty"` // 0 means the agent's default
	Policy     string `json:"policy,omitempty"`      // empty: block when Attached, else drop_oldest
}
