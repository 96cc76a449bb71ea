package wire

import (
	"encoding/json"
	"unicode/utf8"
)

// PathFiles is followed by a path on the machine, escaped as one segment, so
// that it may have any bytes. A relative one, and ~/…, begins in the account's
// home directory.
const PathFiles = "/v1/files/"

// Schemas of documents about files.
const (
	SchemaFile  = "fleet.file/v1"
	SchemaFiles = "fleet.files/v1"
)

// Headers and trailers of a file's content, either way. HeaderSHA256 is a
// trailer: the SHA-256 of the bytes that were sent, in hexadecimal, which tells
// a whole content from one that was cut short.
const (
	HeaderSHA256 = "Fleet-Sha256"
	// HeaderFile is the description of the file that is sent, a FileInfo, as a
	// query would be escaped.
	HeaderFile = "Fleet-File"
	// HeaderFileState is a trailer: FileAsItWas, or CodeChanged for a file that
	// changed while it was read.
	HeaderFileState = "Fleet-File-State"
	FileAsItWas     = "as-it-was"
)

// Types of a file.
const (
	FileRegular   = "file"
	FileDirectory = "directory"
	FileSymlink   = "symlink"
	FileFIFO      = "fifo"
	FileSocket    = "socket"
	FileDevice    = "device"
)

// What becomes of a write where a file is already.
const (
	ConflictReplace   = "replace"
	ConflictMergeJSON = "merge-json" // top-level members are merged, and the written ones win
	ConflictFail      = "fail"
)

// Codes of refusals about files.
const (
	CodeNotAFile     = "not_a_file" // a directory, device, FIFO or socket
	CodeNotADir      = "not_a_directory"
	CodeExists       = "exists"
	CodeNotEmpty     = "not_empty"
	CodePrecondition = "precondition" // the file is not, or no longer, the one that was meant
	CodeChanged      = "changed"      // it changed while it was read
	CodeDiskFull     = "disk_full"
	CodeDamaged      = "damaged" // what arrived is not what was sent
	CodeBadRange     = "bad_range"
	CodeNotJSON      = "not_json"
)

// Bytes is a name as a file system has it: any bytes. In JSON it is a string,
// or, where it is no UTF-8, {"b64": "…"}.
type Bytes string

// MarshalJSON implements json.Marshaler.
func (b Bytes) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(b)) {
		return json.Marshal(string(b))
	}
	return json.Marshal(struct {
		B64 []byte `json:"b64"`
	}{[]byte(b)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err == nil {
		*b = Bytes(s)
		return nil
	}
	var o struct {
		B64 []byte `json:"b64"`
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	*b = Bytes(o.B64)
	return nil
}

// FileInfo is fleet.file/v1: what a file is. It is of the name itself, not of
// what a symbolic link leads to, unless that was asked for.
type FileInfo struct {
	Schema string `json:"schema,omitempty"`
	Name   Bytes  `json:"name"`           // the last element of its path
	Path   Bytes  `json:"path,omitempty"` // absolute; in a listing it is the directory's and this name
	Type   string `json:"type"`           // one of the File constants
	Size   int64  `json:"size"`           // bytes
	Mode   string `json:"mode"`           // octal, with setuid, setgid and sticky: 0644, 4755
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	// ModifiedAt is to the millisecond; ETag tells changes apart that it does not.
	ModifiedAt Time   `json:"modified_at"`
	Target     Bytes  `json:"target,omitempty"` // of a symbolic link
	ETag       string `json:"etag"`
}

// FileLine is a line of a directory's listing, which ends with one that says
// so: a listing without it was cut short.
type FileLine struct {
	File  *FileInfo    `json:"file,omitempty"`
	End   bool         `json:"end,omitempty"`
	Error *ErrorDetail `json:"error,omitempty"`
}

// Files is fleet.files/v1: a directory of a machine.
type Files struct {
	Schema  string     `json:"schema"`
	Machine string     `json:"machine"`
	Path    Bytes      `json:"path"`
	Files   []FileInfo `json:"files"`
}

// SchemaForward names the Forward document.
const SchemaForward = "fleet.forward/v1"

// Forward is fleet.forward/v1: a local port that leads to a machine.
type Forward struct {
	Schema  string `json:"schema"`
	Machine string `json:"machine"`
	Listen  string `json:"listen"` // address and port
	Port    int    `json:"port"`
	Target  string `json:"target"` // a port of the machine, or the path of a socket
}
