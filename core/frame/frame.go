// Package frame is the protocol of a session's stream, fleet-session/1: what
// passes between a client and a session's shim after the HTTP Upgrade. agentd
// stands between them and only splices bytes.
//
// A frame is one type byte, a four-byte big-endian length, and that many bytes
// of payload, MaxPayload at most. Numbers in payloads are big-endian.
//
//	client → shim
//	  Attach    JSON Attach; the first frame, once
//	  Stdin     u64 offset, bytes; offset counts this writer's bytes
//	  StdinEOF  u64 offset
//	  Signal    name without SIG, as TERM
//	  Resize    u16 rows, u16 cols
//	  Ack       u64 offset: everything below it need not be kept for this client
//	  Ping      up to 64 bytes, which come back as Pong
//	shim → client
//	  Attached  JSON Attached; the answer to Attach
//	  Stdout    u64 offset, bytes
//	  Stderr    u64 offset, bytes
//	  Lost      u64 from, u64 to: output that the spool no longer holds
//	  StdinAck  u64 offset: this writer's bytes below it were taken
//	  Exit      JSON Exit; the last frame of a session that ended
//	  Error     JSON Error; the last frame of a stream that was refused
//	  Pong      what Ping carried
//
// Output offsets count the bytes of both output streams together, in the order
// in which the shim read them. A client that saw everything below N attaches
// again with From N and receives the rest byte for byte. Input offsets count
// within one Writer, so that a client that lost its connection sends again
// what was not acknowledged and the shim drops what it has; two clients that
// type into one session have two Writers. At most Window bytes of input may be
// unacknowledged.
//
// The protocol is frozen: a shim outlives the agentd that started it. New
// frame types may be added; a receiver skips the types that it does not know.
//
// The package knows nothing of sockets, processes or files.
package frame

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"fleet.example/fleet/core/wire"
)

// Type is a frame's first byte.
type Type byte

// Frames that a client sends.
const (
	Attach   Type = 'A'
	Stdin    Type = 'i'
	StdinEOF Type = 'e'
	Signal   Type = 's'
	Resize   Type = 'r'
	Ack      Type = 'k'
	Ping     Type = 'p'
)

// Frames between agentd and the shim alone. Hello carries the session's own
// token and comes before anything is spliced; a client's is refused. After a
// Hello in place of an Attach, Query is answered by Info and Signal by Done or
// Error.
const (
	Hello Type = 'H'
	Query Type = 'q'
	Info  Type = 'I'
	Done  Type = 'd'
)

// Frames that a shim sends.
const (
	Attached Type = 'a'
	Stdout   Type = '1'
	Stderr   Type = '2'
	Lost     Type = 'l'
	StdinAck Type = 'K'
	Exit     Type = 'X'
	Error    Type = 'E'
	Pong     Type = 'P'
)

// MaxPayload bounds a frame's payload in bytes.
const MaxPayload = 64 << 10

// MaxData is the most that one Stdin, Stdout or Stderr frame carries.
const MaxData = 32 << 10

// Window bounds the input that a client may send ahead of its acknowledgement.
const Window = 256 << 10

const headerLen = 5

// AttachRequest is the payload of Attach.
type AttachRequest struct {
	// From is the output offset to start at: 0 for all that is kept, -1 for
	// nothing but what is to come.
	From int64 `json:"from"`
	// Writer names this client's input over reconnects: 1 to 32 characters.
	// Empty: this client sends no input.
	Writer string `json:"writer,omitempty"`
	// Client names this client over reconnects, whether or not it sends input: 1
	// to 32 characters. Its connection before this one is closed, which may not
	// have been heard of yet that its other end is gone. Empty: it is of nobody.
	Client string `json:"client,omitempty"`
	Rows   uint16 `json:"rows,omitempty"`
	Cols   uint16 `json:"cols,omitempty"`
}

// AttachedAnswer is the payload of Attached.
type AttachedAnswer struct {
	Session string `json:"session"`
	State   string `json:"state"`  // wire.SessionRunning or SessionExited
	Oldest  int64  `json:"oldest"` // the first output offset that is still kept
	End     int64  `json:"end"`    // one past the last byte so far
	Stdin   int64  `json:"stdin"`  // what was taken of this writer's input
	PTY     bool   `json:"pty,omitempty"`
	Input   bool   `json:"input,omitempty"` // the command reads what clients send
}

// InfoAnswer is the payload of Info.
type InfoAnswer struct {
	State   string `json:"state"`
	PID     int    `json:"pid"`
	Clients int    `json:"clients"`
	Oldest  int64  `json:"oldest"`
	End     int64  `json:"end"`
	Lost    int64  `json:"lost"`
}

// ErrorDetail is the payload of Error.
type ErrorDetail struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ExitStatus is the payload of Exit.
type ExitStatus struct {
	End int64 `json:"end"` // the length of the whole output
	wire.SessionExit
	// Gone is set when the shim died without an exit record: how the command
	// ended is not known.
	Gone bool `json:"gone,omitempty"`
}

// ErrMalformed is in the chain of every complaint about a peer's bytes.
var ErrMalformed = errors.New("malformed session frame")

// Reader reads frames. The payload is valid until the next call.
type Reader struct {
	r   io.Reader
	buf []byte
}

// NewReader reads frames from r, in few system calls only if r is buffered.
func NewReader(r io.Reader) *Reader { return &Reader{r: r, buf: make([]byte, headerLen, 4096)} }

// Next returns the next frame. At a clean end between two frames it returns
// io.EOF, within one io.ErrUnexpectedEOF.
func (r *Reader) Next() (Type, []byte, error) {
	head := r.buf[:headerLen]
	if _, err := io.ReadFull(r.r, head); err != nil {
		return 0, nil, err
	}
	t, n := Type(head[0]), int(binary.BigEndian.Uint32(head[1:]))
	if n > MaxPayload || n < 0 {
		return 0, nil, fmt.Errorf("%w: a payload of %d bytes", ErrMalformed, uint32(n))
	}
	if cap(r.buf) < n {
		r.buf = make([]byte, n)
	}
	p := r.buf[:n]
	if _, err := io.ReadFull(r.r, p); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return t, p, nil
}

// Append appends a frame to b. It panics when the payload is too long, which
// is the caller's mistake.
func Append(b []byte, t Type, payload []byte) []byte {
	if len(payload) > MaxPayload {
		panic("frame: payload too long")
	}
	b = append(b, byte(t))
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// AppendData appends a Stdin, Stdout or Stderr frame.
func AppendData(b []byte, t Type, offset int64, data []byte) []byte {
	if len(data) > MaxData {
		panic("frame: data too long")
	}
	b = append(b, byte(t))
	b = binary.BigEndian.AppendUint32(b, uint32(8+len(data)))
	b = binary.BigEndian.AppendUint64(b, uint64(offset))
	return append(b, data...)
}

// AppendOffset appends a frame whose payload is one offset: StdinEOF, Ack, StdinAck.
func AppendOffset(b []byte, t Type, offset int64) []byte {
	return Append(b, t, binary.BigEndian.AppendUint64(nil, uint64(offset)))
}

// AppendLost appends a Lost frame for the output in [from, to).
func AppendLost(b []byte, from, to int64) []byte {
	p := binary.BigEndian.AppendUint64(nil, uint64(from))
	return Append(b, Lost, binary.BigEndian.AppendUint64(p, uint64(to)))
}

// AppendResize appends a Resize frame.
func AppendResize(b []byte, rows, cols uint16) []byte {
	p := binary.BigEndian.AppendUint16(nil, rows)
	return Append(b, Resize, binary.BigEndian.AppendUint16(p, cols))
}

// AppendJSON appends a frame whose payload is a JSON document of this package.
func AppendJSON(b []byte, t Type, v any) []byte {
	p, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return Append(b, t, p)
}

// ParseData splits a data frame's payload.
func ParseData(p []byte) (offset int64, data []byte, err error) {
	offset, err = parseOffset(p)
	if err != nil {
		return 0, nil, err
	}
	if len(p)-8 > MaxData {
		return 0, nil, fmt.Errorf("%w: %d bytes of data", ErrMalformed, len(p)-8)
	}
	return offset, p[8:], nil
}

// ParseOffset reads the payload of StdinEOF, Ack and StdinAck.
func ParseOffset(p []byte) (int64, error) {
	if len(p) != 8 {
		return 0, fmt.Errorf("%w: an offset of %d bytes", ErrMalformed, len(p))
	}
	return parseOffset(p)
}

// ParseLost reads the payload of Lost.
func ParseLost(p []byte) (from, to int64, err error) {
	if len(p) != 16 {
		return 0, 0, fmt.Errorf("%w: lost", ErrMalformed)
	}
	if from, err = parseOffset(p); err != nil {
		return 0, 0, err
	}
	if to, err = parseOffset(p[8:]); err != nil {
		return 0, 0, err
	}
	if to < from {
		return 0, 0, fmt.Errorf("%w: lost ends before it starts", ErrMalformed)
	}
	return from, to, nil
}

// ParseResize reads the payload of Resize.
func ParseResize(p []byte) (rows, cols uint16, err error) {
	if len(p) != 4 {
		return 0, 0, fmt.Errorf("%w: resize", ErrMalformed)
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), nil
}

// ParseJSON reads a JSON payload into v. Unknown fields are skipped.
func ParseJSON(p []byte, v any) error {
	if err := json.Unmarshal(p, v); err != nil {
		return fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	return nil
}

// parseOffset reads the leading offset of p.
func parseOffset(p []byte) (int64, error) {
	if len(p) < 8 {
		return 0, fmt.Errorf("%w: short offset", ErrMalformed)
	}
	v := int64(binary.BigEndian.Uint64(p))
	if v < 0 {
		return 0, fmt.Errorf("%w: negative offset", ErrMalformed)
	}
	return v, nil
}
