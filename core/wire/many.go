package wire

// Summary is the last line of many results.
type Summary struct {
	Schema   string `json:"schema"`
	OK       int    `json:"ok"`
	Failed   int    `json:"failed"`
	NotBegun int    `json:"not_begun,omitempty"` // left out by --max-failed or an interrupt
}

// Statuses of a Result, where it has one.
const (
	StatusDryRun   = "dry_run"   // it would be done
	StatusNotBegun = "not_begun" // left out by --max-failed or an interrupt; counts as neither
)

// Statuses of a rotation, and of a Result of one.
const (
	StatusDone      = "done"      // it has rotated, or its credential is young enough
	StatusRequested = "requested" // the request waits at the plane for the machine
	StatusDeferred  = "deferred"  // the machine is there and says that it cannot yet; it tries on
	StatusFailed    = "failed"
)

// Result is one machine's line among many.
type Result struct {
	Machine string `json:"machine"`
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	// Exit is the remote command's own where there is one, else what the
	// command would exit with for this machine alone.
	Exit int `json:"exit"`
	// Error is null, too, when only the remote command failed.
	Error  *CLIErrorDetail `json:"error"`
	Status string          `json:"status,omitempty"`
	// Document is what the command prints under --json for one machine.
	Document any `json:"document,omitempty"`
}

// Rotation is fleet.rotation/v1: what became of a request to rotate.
type Rotation struct {
	Schema  string `json:"schema"`
	Machine string `json:"machine"`
	Name    string `json:"name"`
	Status  string `json:"status"`
	Kind    string `json:"kind"` // of its credential now: bearer | mtls
	// Generation is the machine's current one.
	Generation int64 `json:"generation"`
	IssuedAt   *Time `json:"issued_at"`
	// RequestedAt is the request's value, as long as it waits.
	RequestedAt *Time `json:"requested_at"`
	// Detail says what the machine waits for, or why nothing was to be done.
	Detail string `json:"detail,omitempty"`
}

// Results is fleet.results/v1: many results as one document, by name and then
// id.
type Results struct {
	Schema   string   `json:"schema"`
	Results  []Result `json:"results"`
	OK       int      `json:"ok"`
	Failed   int      `json:"failed"`
	NotBegun int      `json:"not_begun,omitempty"`
}

// Streams of an Output.
const (
	StreamStdout = "stdout"
	StreamStderr = "stderr"
)

// Output is a piece of what a machine wrote, as a JSON Line: a line with its
// line break, or a part of one that is long. The pieces of a stream put
// together are its bytes. Data holds them where they are UTF-8, else DataB64
// does, in base64; never both.
type Output struct {
	Machine string `json:"machine"`
	Name    string `json:"name"`
	Stream  string `json:"stream"`
	Data    string `json:"data,omitempty"`
	DataB64 []byte `json:"data_b64,omitempty"`
}
