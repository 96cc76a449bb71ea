package sdk

import (
	"context"
	"io/fs"
	"time"
)

// Host is one machine, seen with the rights of one account: over a person's SSH
// during an install, or locally in the agent's probe host. It is safe for
// concurrent use.
//
// Errors: errors.Is(err, fs.ErrNotExist) for a path or program that is not
// there, errors.Is(err, ErrDenied) for what the account may not do or what this
// phase does not allow, errors.Is(err, ErrUnreachable) when the machine is out of
// reach. Every method returns soon after its context ends.
type Host interface {
	// Facts are what the host knows of the machine. They are gathered once, so
	// the call is cheap.
	Facts(ctx context.Context) (Facts, error)

	// Statfs describes the file system that holds path, which is absolute. If
	// path does not exist, its nearest existing parent is meant.
	Statfs(ctx context.Context, path string) (FSStat, error)

	// Run runs a program and waits for it. There is no shell on the way and the
	// environment is the account's plain one. A non-zero exit is a result and
	// not an error; an error means that the program did not run or that nobody
	// knows how it ended. Before PhaseChange only commands that the plugin's
	// Description lists are run, never as root and never with input.
	Run(ctx context.Context, c Command) (Result, error)

	// ReadFile reads at most limit bytes of a file; 0 means 64 KiB, and 1 MiB is
	// the most. The second result says that the file is longer.
	ReadFile(ctx context.Context, path string, limit int) ([]byte, bool, error)

	// Stat describes a file. A symbolic link is not followed.
	Stat(ctx context.Context, path string) (FileInfo, error)

	// Progress shows the person one line about what is being waited for. It
	// never fails and may do nothing.
	Progress(ctx context.Context, message string)
}

// Bounds of what Host moves.
const (
	DefaultRead = 64 << 10 // of ReadFile and of each output of Run, unless asked for more
	MaxRead     = 1 << 20  // whatever was asked for
	MaxStdin    = 64 << 10
)

// ClampRead turns a limit as asked for into the limit in force.
func ClampRead(limit int) int {
	switch {
	case limit <= 0:
		return DefaultRead
	case limit > MaxRead:
		return MaxRead
	}
	return limit
}

// Privilege is what an account may do on its machine.
type Privilege string

// Privileges.
const (
	PrivilegeNone Privilege = "none"
	PrivilegeSudo Privilege = "sudo" // root through sudo without a prompt
	PrivilegeRoot Privilege = "root"
)

// Phase is how far the host trusts a machine, and what it is doing there.
type Phase string

// Phases.
const (
	PhaseUnconfirmed Phase = "unconfirmed" // the host key is not confirmed: described read-only commands only
	PhaseExamine     Phase = "examine"     // confirmed; nothing may be changed yet
	PhaseChange      Phase = "change"      // a person asked for changes
	PhaseResident    Phase = "resident"    // on the machine itself, on a schedule
)

// Facts describe one machine and one account on it.
type Facts struct {
	OS        string            // as Go names it: linux, darwin
	Arch      string            // as Go names it: amd64, arm64
	OSRelease map[string]string // the fields of /etc/os-release, unquoted
	Init      string            // the name of process 1
	UID       uint32
	User      string
	Home      string // absolute
	Privilege Privilege
	Phase     Phase
	// ClockOffset is the machine's wall clock minus the reference's; nil when
	// nobody compared.
	ClockOffset *time.Duration
	// DataDir is the agent's data directory, absolute, or the one it would get.
	DataDir string
	// CredentialWriteError says why the last attempt to store a credential
	// failed; empty if it did not.
	CredentialWriteError string
	Scope                Scope  // empty before an install decided
	ServiceManager       string // a plugin's name; empty before an install decided
}

// FSStat describes a file system.
type FSStat struct {
	BytesTotal, BytesFree uint64
	FilesTotal, FilesFree uint64 // FilesTotal is 0 where there is no such limit
	ReadOnly              bool
}

// Command is a program to run.
type Command struct {
	Argv   []string // the program, looked for in PATH unless absolute, and its arguments
	AsRoot bool     // through what the account has: nothing needed, or sudo without a prompt; else ErrDenied
	Stdin  []byte   // at most MaxStdin; empty means /dev/null; never a secret
	Limit  int      // of each output, as for ReadFile
}

// Result is how a program ended.
type Result struct {
	Exit      int // 128 plus the signal's number if a signal ended it
	Stdout    []byte
	Stderr    []byte
	Truncated bool // some output was cut off at the limit
}

// FileInfo describes a file.
type FileInfo struct {
	Mode     fs.FileMode // with the type bits of fs.ModeDir and fs.ModeSymlink
	Size     int64
	UID      uint32
	Modified time.Time
}
