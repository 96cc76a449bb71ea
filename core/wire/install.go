package wire

// Install is fleet.install/v1: the result of fleet install.
type Install struct {
	Schema  string   `json:"schema"`
	Host    string   `json:"host"`
	Machine *Machine `json:"machine"`
	HostKey *HostKey `json:"host_key"`
	// Jumps are the hosts on the way, nearest first; none where it is direct.
	Jumps    []JumpHost       `json:"jumps,omitempty"`
	Artifact *InstallArtifact `json:"artifact"`
	Steps    []Step           `json:"steps"`
	Matched  Matched          `json:"matched"`
	// Error stands here when the result is one line among many.
	Error *CLIErrorDetail `json:"error,omitempty"`
}

// Matched are the three facts that must agree before execution opens (R5).
type Matched struct {
	Account  bool `json:"account"`
	HostKey  bool `json:"host_key"`
	PlaneRow bool `json:"plane_row"`
}

// HostKey is a host's key and what speaks for it.
type HostKey struct {
	Type        string        `json:"type"`
	Fingerprint string        `json:"fingerprint"`
	Evidence    []KeyEvidence `json:"evidence"`
}

// KeyEvidence is one line of a known_hosts file that speaks of a key.
type KeyEvidence struct {
	Kind     string `json:"kind"` // known_hosts | cert-authority | known_hosts_other
	File     string `json:"file"`
	Line     int    `json:"line"`
	Expected string `json:"expected,omitempty"`
}

// JumpHost is a host on the way to a machine.
type JumpHost struct {
	Host    string   `json:"host"` // user@host:port
	HostKey *HostKey `json:"host_key"`
	// Confirmed says what the key counts by: pinned, prompt, fingerprint,
	// known_hosts, cert-authority; empty if it was refused.
	Confirmed string `json:"confirmed"`
}

// InstallArtifact is the artifact that a machine runs. SHA256 is the content
// hash that names its version directory.
type InstallArtifact struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Sent    bool   `json:"sent"`
}

// Statuses of a step.
const (
	StepOK      = "ok"
	StepSkipped = "skipped" // there was nothing to do
	StepFailed  = "failed"
	StepWarn    = "warn" // of fleet test: works, with a loss that detail names
)

// Step is one step of an install or of a test.
type Step struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	MS     int64  `json:"ms"`
	Detail string `json:"detail,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Test is fleet.test/v1: what an install would meet.
type Test struct {
	Schema  string   `json:"schema"`
	Host    string   `json:"host"`
	OK      bool     `json:"ok"` // an install could go on from here, the key's confirmation apart
	HostKey *HostKey `json:"host_key"`
	// Jumps are the hosts on the way as far as they were met, nearest first.
	Jumps  []JumpHost `json:"jumps,omitempty"`
	Pinned bool       `json:"pinned"`
	Steps  []Step     `json:"steps"`
}
