// Package mux is the front's way to machines: a fleet-host process that owns
// the SSH connections and listens on a private UNIX socket. It is shared by all
// commands of a person, or private to one command (see Open).
//
// A client connects, sends a Hello, reads Answers until one that is final, and,
// for a stream, the connection then is the byte stream to the agent's socket.
// A copy it makes itself, if it can, from and to what the client has opened (see
// CopyOrder), so that content does not pass the socket at all.
// The server keeps connections by the digest of the resolved configuration; only
// for one that it does not have yet it asks for the configuration itself, which
// the client has resolved in its own environment, so that no agent's socket and
// no file name goes stale in a long-lived process.
//
// This package is the front's side and the agreement between the two. It links
// no SSH.
package mux

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/wire"
)

// What a client may ask for.
const (
	OpStream  = "stream"  // a stream to the agent's API socket, and a token for it
	OpCopy    = "copy"    // a copy that the server makes: see CopyOrder
	OpToken   = "token"   // an API token
	OpControl = "control" // run `agentd start` or `agentd stop` on the machine
	OpStatus  = "status"  // what the server has open
	OpStop    = "stop"    // end
	OpForget  = "forget"  // drop the tokens of a plane and the connections that were used for it
)

// MaxMessage bounds a message, in bytes.
const MaxMessage = 256 << 10

// Hello is a client's first message.
type Hello struct {
	Op      string `json:"op"`
	Build   Build  `json:"build"`
	Verbose bool   `json:"verbose,omitempty"` // send Notes
	Hears   bool   `json:"hears,omitempty"`   // send what is Said

	Key     string `json:"key,omitempty"` // KeyOf the route
	Host    string `json:"host,omitempty"`
	Plane   string `json:"plane,omitempty"`
	Machine string `json:"machine,omitempty"`
	DataDir string `json:"data_dir,omitempty"`
	Runtime string `json:"runtime_dir,omitempty"`
	Renew   bool   `json:"renew,omitempty"` // with OpToken: the last one was refused
	Fresh   bool   `json:"fresh,omitempty"` // with OpStream: none that was kept ready
	Verb    string `json:"verb,omitempty"`  // with OpControl

	// Updates says what becomes of a machine that runs something older than what
	// lies here (settings.Updates), and Artifacts where else to look for it.
	Updates   string `json:"updates,omitempty"`
	Artifacts string `json:"artifacts,omitempty"`
}

// Answer is a server's message. All but a Note, what is Said, Need and
// Superseded are final.
type Answer struct {
	Note string `json:"note,omitempty"` // for the person, under -v
	// Said is what a program on the way wrote on its standard error.
	Said []byte `json:"said,omitempty"`
	// Need asks for the route, as the client's next message.
	Need bool `json:"need,omitempty"`
	// Superseded says that the client's fleet is newer: this server ends when
	// its clients have, and another one is to be started.
	Superseded bool `json:"superseded,omitempty"`

	Error   *wire.CLIErrorDetail `json:"error,omitempty"`
	Token   string               `json:"token,omitempty"`
	Status  *wire.AgentStatus    `json:"status,omitempty"`
	Warning string               `json:"warning,omitempty"`
	Mux     *wire.Mux            `json:"mux,omitempty"`
}

// Build tells one fleet-host program from another.
type Build struct {
	Version string `json:"version"`
	// Program is when the program was written, in Unix nanoseconds: of two
	// builds the one that was installed later is the newer.
	Program int64 `json:"program"`
}

// Supersedes reports whether a client of build b should not go on with a
// server of build old.
func (b Build) Supersedes(old Build) bool { return b.Program > old.Program }

// KeyOf is the digest of everything that makes one connection another: for
// each hop the host, port, user, keys, agent and algorithms.
func KeyOf(c *sshconfig.Chain) (string, error) {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, hop := range c.Hops() {
		if err := enc.Encode(hop); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// WriteMessage sends one message: its length in four bytes, then JSON.
func WriteMessage(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > MaxMessage {
		return fmt.Errorf("a message of %d bytes", len(b))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...))
	return err
}

// ErrMalformed is in the chain of an error about bytes that are no message.
var ErrMalformed = errors.New("malformed message")

// ReadMessage reads one message and not one byte more: what follows may be the
// stream's.
func ReadMessage(r io.Reader, v any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > MaxMessage {
		return fmt.Errorf("%w: %d bytes", ErrMalformed, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// Exit is the wire form of an error.
func Exit(err error) *wire.CLIErrorDetail {
	if err == nil {
		return nil
	}
	f := fault.Of(err)
	return &wire.CLIErrorDetail{Code: f.Code, Message: f.Msg, Hint: f.Hint, Exit: f.Exit}
}
