package sdk

import (
	"context"
	"io/fs"
	"time"
)

// ServiceManager registers, starts and watches one service on one machine. It
// runs on the person's machine and reaches the other one only through Host.
//
// Every call may be repeated and then ends in the same state. A manager that
// lacks something returns ErrUnsupported.
type ServiceManager interface {
	// Detect says whether and how well this manager can serve. It changes nothing.
	Detect(ctx context.Context, h Host) (Detection, error)
	// Render gives the files that register the service. It is pure: the same
	// facts and spec give the same files. The host shows, compares, writes and
	// later removes them. It refuses a spec that it cannot express exactly.
	Render(ctx context.Context, f Facts, s Spec) (Rendered, error)
	// Reload makes the manager read what the host wrote or removed.
	Reload(ctx context.Context, h Host, s Spec) error
	// Enable makes the service start with the machine. The files are in place.
	// ErrUnsupported means that it cannot here, in words for the person; the host
	// says so and goes on to Start.
	Enable(ctx context.Context, h Host, s Spec) error
	// Start starts the service if it is not running. The host judges by Status,
	// so a nil error promises nothing.
	Start(ctx context.Context, h Host, s Spec) error
	// Stop ends the service's main process and only that. The service stays
	// down until somebody asks or the machine boots.
	Stop(ctx context.Context, h Host, s Spec) error
	// Restart is Stop and Start.
	Restart(ctx context.Context, h Host, s Spec) error
	// Status says what the service is doing. StateUnknown is "cannot tell".
	Status(ctx context.Context, h Host, s Spec) (Status, error)
	// Logs gives the last lines that the manager has of the service.
	Logs(ctx context.Context, h Host, s Spec, lines int) ([]byte, error)
	// Linger says whether services of the account outlive its logins, and turns
	// that on when asked to.
	Linger(ctx context.Context, h Host, s Spec, enable bool) (Linger, error)
	// Disable undoes Enable and stops the service. The host then removes the
	// files and calls Reload.
	Disable(ctx context.Context, h Host, s Spec) error
}

// Scope is whose service it is.
type Scope string

// Scopes.
const (
	ScopeUser   Scope = "user"   // the account's own; no privilege needed
	ScopeSystem Scope = "system" // the machine's, run as the account; registering it needs root
)

// Spec is the service. It carries no secret and no environment.
type Spec struct {
	Name         string // without a suffix, as fleet-agent: [A-Za-z0-9._-]{1,63}
	Scope        Scope
	User         string        // the account that it runs as
	Argv         []string      // the program, absolute, and its arguments
	DataDir      string        // absolute
	RuntimeDir   string        // absolute; the manager provides it (0700, the account's) if the account cannot
	LogFile      string        // absolute; for standard output and error if the manager keeps no log
	Latch        string        // absolute; while it exists the service must not start by itself
	StartTimeout time.Duration // whole seconds, up to one hour
	StopTimeout  time.Duration // whole seconds, up to one hour
}

// Detection says what a manager can do on a machine.
type Detection struct {
	Score          int     // 0: cannot serve here; 100: the machine's native manager
	Reason         string  // why the score is what it is
	Scopes         []Scope // with the privilege at hand
	SparesSessions bool    // stopping the service leaves the sessions' processes alone
	LatchAware     bool    // it does not start the service while the latch exists
	Logs           bool    // Logs works
	Linger         bool    // lingering exists and matters for ScopeUser
	Version        string  // the manager's own, for people
}

// Rendered is what registers a service.
type Rendered struct {
	Files   []File
	Unit    string   // what the manager knows the service by
	Caveats []string // what cannot be promised on this machine, one sentence each
	// How the account itself starts, stops and restarts the service on the
	// machine, without a shell. Empty if it cannot without an administrator.
	StartArgv, StopArgv, RestartArgv []string
}

// File is one file to write on a machine.
type File struct {
	Path    string // absolute
	Mode    fs.FileMode
	Owner   string // root or the account; missing directories get 0755 or 0700
	Content []byte
}

// State is what a service is doing.
type State string

// States.
const (
	StateUnknown  State = "unknown"
	StateRunning  State = "running"
	StateStarting State = "starting"
	StateStopped  State = "stopped"
	StateFailed   State = "failed"
	StateAbsent   State = "absent" // not registered
)

// Status says what a service is doing.
type Status struct {
	State    State
	PID      int       // of the main process; 0 if there is none
	Since    time.Time // when it came into this state; zero if not known
	LastExit *int      // of the last run; 128 plus the signal's number if a signal ended it
	AtBoot   bool      // starts with the machine (ScopeUser without lingering: with a login)
	Detail   string    // the manager's own words
}

// Linger says whether services of an account outlive its logins.
type Linger struct {
	Enabled bool
	Remedy  string // when enabling was asked for and refused: what an administrator runs
}
