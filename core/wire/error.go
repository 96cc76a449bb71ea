package wire

// Codes in error documents. A code is a promise; the words beside it are not.
const (
	CodeUnauthorized  = "unauthorized" // 401, the same for everybody
	CodeBehind        = "behind"       // 409, to the holder of a superseded credential
	CodeRevoked       = "revoked"      // 410, to the holder of a deleted machine's credential
	CodeBusy          = "busy"         // 503 and 429, with Retry-After
	CodeBadRequest    = "bad_request"
	CodeTooLarge      = "too_large"
	CodeNotFound      = "not_found"
	CodeForbidden     = "forbidden" // authenticated, but not allowed to
	CodeConflict      = "conflict"
	CodeDeferred      = "deferred" // it waits for sessions to end
	CodeDeleted       = "deleted"
	CodeInternal      = "internal"
	CodeLoginRequired = "login_required"
)

// Error is the body of every refusal over HTTP: {"error":{…}}.
type Error struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail says what was refused. Message and Hint are for people.
type ErrorDetail struct {
	Code    string   `json:"code"`
	Message string   `json:"message,omitempty"`
	Hint    string   `json:"hint,omitempty"`
	Machine string   `json:"machine,omitempty"` // with revoked: the machine it was
	Deleted *Deleted `json:"deleted,omitempty"` // with deleted
	// Want is, with not_found to a machine that asked for material, the version
	// that it is to hold.
	Want map[string]int64 `json:"want,omitempty"`
}

// Deleted says what became of a machine that was deleted.
type Deleted struct {
	Machine       string `json:"machine"`
	Name          string `json:"name,omitempty"`
	At            Time   `json:"at"`
	By            string `json:"by"`
	LastPresented *Time  `json:"last_presented"` // when its credential was last presented, before or after
}

// CLIError is what a program writes to stderr under --json or --jsonl.
type CLIError struct {
	Schema string         `json:"schema"` // SchemaError
	Error  CLIErrorDetail `json:"error"`
}

// CLIErrorDetail carries the exit code along, so that a pipeline sees both.
type CLIErrorDetail struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Exit    int    `json:"exit"`
}
