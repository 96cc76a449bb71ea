package wire

// PathTree takes a copy of files or directories: a POST of a TreeRequest
// becomes a connection that speaks UpgradeTree, the frames of package core/tree.
const (
	PathTree    = "/v1/tree"
	UpgradeTree = "fleet-tree/1"
)

// What an agent does in a copy.
const (
	TreeSend    = "send"
	TreeReceive = "receive"
	TreeLane    = "lane" // a further connection of a copy that is under way
)

// Where a copy goes: into a directory, under the source's name, or under the
// name that was given. An agent that receives says which it is in the header
// HeaderTreeAs of its answer, since the copy itself changes what is there.
const (
	TreeInside   = "inside"
	TreeNamed    = "named"
	HeaderTreeAs = "Fleet-Tree-As"
)

// TreeSumXXH64 asks for content to be sent with its XXH64, eight bytes
// big-endian and 24 zeros, instead of its SHA-256. An agent that knows it says
// so in the header HeaderTreeSum of its answer; for any other it is SHA-256.
const (
	TreeSumXXH64  = "xxh64"
	HeaderTreeSum = "Fleet-Tree-Sum"
)

// TreeRequest asks an agent for its part of a copy.
type TreeRequest struct {
	Op   string `json:"op"` // one of the Tree constants
	ID   string `json:"id"` // of the copy: 32 hexadecimal digits, the client's choice
	Path Bytes  `json:"path,omitempty"`
	// Base is what the source is called: its name in a directory that receives it.
	Base Bytes `json:"base,omitempty"`
	// From is the id of the copy that sends, where that is a machine's: were it
	// this one, a directory could go into itself.
	From string `json:"from,omitempty"`
	// As is "" or, with Again, what the answer to the first attempt said.
	As        string `json:"as,omitempty"`
	Recursive bool   `json:"recursive,omitempty"`
	// Again says that an attempt of this copy was cut. What is left of that one
	// on the machine is ended first.
	Again bool `json:"again,omitempty"`
	// Sum is "" or TreeSumXXH64.
	Sum string `json:"sum,omitempty"`
}

// IsTreeID reports whether s can be a copy's id.
func IsTreeID(s string) bool {
	if len(s) != 32 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// SchemaCopy names the Copy document.
const SchemaCopy = "fleet.copy/v1"

// CopyProblem is an entry that was not copied, and why.
type CopyProblem struct {
	Path    Bytes  `json:"path"` // on the side where the trouble is
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Copy is fleet.copy/v1: what became of a copy.
type Copy struct {
	Schema      string `json:"schema"`
	Source      Bytes  `json:"source"`      // as it was given
	Destination Bytes  `json:"destination"` // as it was given
	Files       int64  `json:"files"`
	Directories int64  `json:"directories"`
	Symlinks    int64  `json:"symlinks"`
	Bytes       int64  `json:"bytes"`      // of the files' content
	KeptBytes   int64  `json:"kept_bytes"` // of these, what a cut attempt had brought
	// Failed counts what was not copied. Problems names it, the first thousand.
	Failed   int64         `json:"failed"`
	Problems []CopyProblem `json:"problems"`
	ElapsedS float64       `json:"elapsed_s"`
}
