// Package place says where an installation of agentd lives: its data directory
// and its runtime directory. The installer resolves both once, from facts that
// it reads over SSH, and writes them into the service's argv and into
// service.json; agentd's own commands resolve them again when no flag says
// otherwise. Both sides therefore call Resolve, with the same facts:
//
//   - Account, UID, Home: of the account that SSH authenticated.
//   - DataHome: XDG_DATA_HOME as that account's login sees it, or empty.
//   - MachineID: the content of /etc/machine-id, else of
//     /var/lib/dbus/machine-id, else empty; on darwin the IOPlatformUUID that
//     `ioreg -rd1 -c IOPlatformExpertDevice` prints.
//   - RunUser: whether /run/user/UID is a directory that the account owns.
//
// The machine's id is part of a user's data directory so that two chassis with
// one home on NFS have two installations. The package touches no file.
package place

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Scopes of an installation.
const (
	User   = "user"
	System = "system"
)

// Facts are what the directories follow from.
type Facts struct {
	Scope     string
	Account   string
	UID       int
	Home      string
	DataHome  string
	MachineID string
	RunUser   bool
}

// Dirs are the two absolute directories of an installation.
type Dirs struct {
	Data    string
	Runtime string
}

// MaxRuntimeDir is the longest runtime directory: the sockets in it must fit
// sun_path, which is 104 bytes with its final zero on darwin, 108 on linux.
// The longest name is a session's.
const MaxRuntimeDir = 103 - len("/s_0123456789.sock")

// Names in the data directory.
const (
	ServiceFile      = "service.json"
	InstallationFile = "installation"
	SignersFile      = "signers" // whose signed statements the machine takes
	LatchFile        = "latch"
	SessionsDir      = "sessions"
	WorkspacesDir    = "workspaces"
	VersionsDir      = "versions"
	CurrentLink      = "current"
	LockFile         = "lock"
	LogDir           = "log"
	LogFile          = "log/agentd.log"
	FactsFile        = "facts.json"
	HeldFile         = "held"   // the version that a person or a failure led away from
	ListenFile       = "listen" // where the agent serves its API on the loopback interface, if at all
)

// Names in the runtime directory.
const (
	AgentSocket = "agent.sock"
	MintSocket  = "mint.sock"
)

// Resolve computes the directories of an installation.
func Resolve(f Facts) (Dirs, error) {
	switch f.Scope {
	case System:
		if f.Account == "" || strings.ContainsAny(f.Account, "/\x00") || strings.HasPrefix(f.Account, ".") {
			return Dirs{}, fmt.Errorf("cannot name a directory after account %q", f.Account)
		}
		d := Dirs{Data: "/var/lib/fleet-agent/" + f.Account, Runtime: "/run/fleet-agent/" + f.Account}
		if len(d.Runtime) > MaxRuntimeDir {
			d.Runtime = "/run/fleet-agent/" + strconv.Itoa(f.UID)
		}
		return d, nil
	case User:
	default:
		return Dirs{}, fmt.Errorf("scope is %q, not user or system", f.Scope)
	}
	base := f.DataHome
	if !path.IsAbs(base) { // the XDG specification: a relative one is ignored
		if !path.IsAbs(f.Home) {
			return Dirs{}, errors.New("cannot resolve data directory: the account has no home")
		}
		base = path.Join(f.Home, ".local/share")
	}
	d := Dirs{Data: path.Join(base, "fleet-agent", MachineDigest(f.MachineID))}
	sum := sha256.Sum256([]byte(d.Data))
	short := hex.EncodeToString(sum[:4])
	switch {
	case f.RunUser:
		d.Runtime = fmt.Sprintf("/run/user/%d/fleet-agent-%s", f.UID, short)
	case len(d.Data)+len("/run") <= MaxRuntimeDir:
		d.Runtime = d.Data + "/run"
	default:
		d.Runtime = fmt.Sprintf("/tmp/fleet-agent-%d-%s", f.UID, short)
	}
	return d, nil
}

// MachineDigest is the first 16 hex digits of the SHA-256 of the machine's id,
// without surrounding white space. A machine without one gets "local".
func MachineDigest(machineID string) string {
	id := strings.TrimSpace(machineID)
	if id == "" || id == "uninitialized" {
		return "local"
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}
