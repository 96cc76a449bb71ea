// Package shim is one session's host process: it starts the command, keeps
// its output on disk, serves clients over its own UNIX socket, and writes down
// how the command ended. It is what makes a session independent of agentd, of
// the plane and of whoever watches (R34).
//
// What holds, and why:
//
//   - The lock on DIR/lock is held from before the command starts until all of
//     the session is over or the process ends, and by nobody else. So whoever
//     gets the lock knows that the shim is gone, whatever became of its PID; who
//     would block knows that it lives; any other error tells nothing.
//   - Output is written to the spool first and sent second, and the spool's
//     offsets are the only positions there are. A client that comes back asks
//     for the offset it stands at, so nothing is lost or shown twice.
//   - DIR/exit is written once, whole, after the last byte of output. Without
//     it and without a lock holder the end is not known, and is said so.
//   - The command's process group is signalled only while its leader has not
//     been reaped, so a reused number is never hit.
//   - A shim has one session at a time. It takes another one only after the
//     lock of the one before is free, and by then no descriptor, goroutine,
//     connection or setting of it is left; what the commands of both share is
//     what two of one account share anyway.
//
// The process links no net/http, no TLS, no gRPC (a test holds it): there is
// one for every session that runs. Its protocol is package frame's. It knows
// nothing of planes or tokens of the API.
package shim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/wire"
)

// Files in a session's directory.
const (
	LockFile   = "lock"
	ExitFile   = "exit"
	SpoolDir   = "spool"
	StderrFile = "shim.err" // where a shim that panics says so
)

// ReadyFD is the descriptor on which the shim answers: '+' when the session it
// was given has begun, or '-' and what went wrong; then Idle when the session
// has ended, all that was its own is let go, and another one may come.
const (
	ReadyFD = 3
	Idle    = '.'
)

// PID returns the process that holds the lock of the session in dir. It means
// something only while Look says Alive.
func PID(dir string) (int, error) {
	b, err := durable.ReadPrivate(filepath.Join(dir, LockFile), 64)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// maxConfig bounds the configuration that is read from standard input.
const maxConfig = 4 << 20

// Config is what agentd writes to the shim's standard input, one line for each
// session. It never stands
// in an argv, an environment or a file: the command's environment may carry
// what nobody else should read.
type Config struct {
	ID     string    `json:"id"`
	Dir    string    `json:"dir"`    // the session's directory
	Socket string    `json:"socket"` // where to listen
	Token  string    `json:"token"`  // what a Hello must carry
	Argv   words     `json:"argv"`
	Path   string    `json:"path,omitempty"` // the program, when argv[0] is not its name
	Env    words     `json:"env"`
	Cwd    string    `json:"cwd"`
	Umask  int       `json:"umask"`
	Stdin  bool      `json:"stdin"`
	PTY    *wire.PTY `json:"pty,omitempty"`
	Limit  int64     `json:"limit"`
	Drop   bool      `json:"drop"` // drop the oldest output at the limit; else the command waits
}

// words are a command's, byte for byte: in base64, since a JSON string holds
// UTF-8 only, and may take six bytes for one.
type words []string

func (w words) MarshalJSON() ([]byte, error) {
	b := make([][]byte, len(w))
	for i, s := range w {
		b[i] = []byte(s)
	}
	return json.Marshal(b)
}

func (w *words) UnmarshalJSON(b []byte) error {
	var list [][]byte
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*w = make(words, len(list))
	for i, s := range list {
		(*w)[i] = string(s)
	}
	return nil
}

// Exit is DIR/exit.
type Exit struct {
	End  int64 `json:"end"` // length of the whole output
	Lost int64 `json:"lost"`
	wire.SessionExit
}

// ReadExit reads the exit record of the session in dir. A missing one gives
// fs.ErrNotExist.
func ReadExit(dir string) (*Exit, error) {
	b, err := durable.ReadPrivate(filepath.Join(dir, ExitFile), 64<<10)
	if err != nil {
		return nil, err
	}
	var e Exit
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("cannot read exit record: %w", err)
	}
	return &e, nil
}

// Life is what a look at a session's lock tells.
type Life int

// The three answers. Only Gone frees what the session held.
const (
	Unclear Life = iota
	Alive
	Gone
)

// Look tells whether the shim of the session in dir lives.
func Look(dir string) Life {
	f, err := os.OpenFile(filepath.Join(dir, LockFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Gone // the lock is made before the shim is started
	}
	if err != nil {
		return Unclear
	}
	defer f.Close()
	switch err := tryLock(f, unix.LOCK_SH); {
	case err == nil:
		return Gone
	case wouldBlock(err):
		return Alive
	default:
		return Unclear
	}
}

// errNoSession says that agentd ended, or wants no session any more.
var errNoSession = errors.New("no session")

// readConfig reads one line. Less than a line is nothing: agentd ended in
// the middle of it, and takes the session for one that did not start.
func readConfig(r *bufio.Reader) (*Config, error) {
	var b []byte
	for {
		part, err := r.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case err == nil:
			return parseConfig(b)
		case errors.Is(err, io.EOF):
			return nil, errNoSession
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(b) > maxConfig:
			return nil, errors.New("configuration is too long")
		}
	}
}

func parseConfig(b []byte) (*Config, error) {
	var c Config
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, err
	}
	if len(c.Argv) == 0 || c.Dir == "" || c.Socket == "" || c.Token == "" {
		return nil, errors.New("configuration is incomplete")
	}
	return &c, nil
}
