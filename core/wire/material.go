package wire

import (
	"errors"
	"strconv"
	"strings"
)

// Paths of the material that the plane distributes and of its rotation. A
// machine's path is PathMaterial/{kind}/{version}, a person's PathRotations/{kind}.
const (
	PathMaterial  = "/v1/material"
	PathRotations = "/v1/rotations"
)

// Kinds of material.
const (
	MaterialGate  = "gate"  // the gate token
	MaterialURL   = "url"   // where the plane is; a person signs it
	MaterialTrust = "trust" // which roots vouch for the plane; a person signs it
)

// SchemaMaterial names the Material document.
const SchemaMaterial = "fleet.material/v1"

// Material is fleet.material/v1: one version of something that the plane
// distributes. It is answered to a machine's live credential alone.
type Material struct {
	Schema  string `json:"schema"`
	Kind    string `json:"kind"`
	Version int64  `json:"version"`
	// Value is the gate token or, of a kind that a person signs, the statement's
	// bytes; Signature goes with those.
	Value     string `json:"value"`
	Signature string `json:"signature,omitempty"`
}

// Bounds of a gate token's value.
const (
	minGate = 16
	maxGate = 256
)

var (
	errGateLine    = errors.New("it is not one line of a version and a value")
	errGateVersion = errors.New("the version is not a positive number")
	errGateValue   = errors.New("the value is not one word of 16 to 256 printable characters")
)

// ParseGate reads a gate file's one line: version and value. What stands around
// them is trimmed. Its errors never quote what was read.
func ParseGate(text string) (CredentialGate, error) {
	f := strings.Fields(text)
	if len(f) != 2 || strings.ContainsAny(strings.TrimSpace(text), "\r\n") {
		return CredentialGate{}, errGateLine
	}
	n, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil || n < 1 || n > 1<<53 {
		return CredentialGate{}, errGateVersion
	}
	g := CredentialGate{Version: n, Value: f[1]}
	return g, g.Check()
}

// Check says what is wrong with a gate token, if anything.
func (g CredentialGate) Check() error {
	if g.Version < 1 {
		return errGateVersion
	}
	if len(g.Value) < minGate || len(g.Value) > maxGate {
		return errGateValue
	}
	for i := 0; i < len(g.Value); i++ {
		if g.Value[i] <= ' ' || g.Value[i] > '~' {
			return errGateValue
		}
	}
	return nil
}

// Line is the content of a gate file.
func (g CredentialGate) Line() string { return strconv.FormatInt(g.Version, 10) + " " + g.Value + "\n" }

// Actions of a RotationRequest.
const (
	RotationStart = "start" // begins one, or joins the one that is under way
	RotationAbort = "abort" // goes back to what was before
	RotationLeave = "leave" // narrows past those that are named
)

// RotationRequest is the body of POST /v1/rotations/{kind}.
type RotationRequest struct {
	Action string `json:"action"`
	// Leave names machines by id, and callers that are no known machine by the
	// path that they call. What is left may be refused after narrowing.
	Leave []string `json:"leave,omitempty"`
	// Drill, with start, makes it a rehearsal: a throw-away version is rolled for
	// DrillS seconds at most, and then taken back.
	Drill  bool    `json:"drill,omitempty"`
	DrillS float64 `json:"drill_s,omitempty"`
	// Statement and Signature begin the rotation of a kind that a person signs.
	// With abort, where machines may hold the new value, they say again what was
	// before, under a version of its own.
	Statement string `json:"statement,omitempty"`
	Signature string `json:"signature,omitempty"`
}

// States of a rotation of material.
const (
	RotationIdle    = "idle" // none was ever begun
	RotationRunning = "running"
	RotationDone    = "done"
	RotationAborted = "aborted"
	RotationDrilled = "drilled"
)

// Steps of a rotation of material.
const (
	StepWiden  = "widen"
	StepRoll   = "roll"
	StepProve  = "prove"
	StepNarrow = "narrow"
)

// SchemaMaterialRotation names the MaterialRotation document.
const SchemaMaterialRotation = "fleet.material-rotation/v1"

// MaterialRotation is fleet.material-rotation/v1: the rotation of one kind of
// material that is under way, or the last one.
type MaterialRotation struct {
	Schema   string `json:"schema"`
	Kind     string `json:"kind"`
	State    string `json:"state"`
	Step     string `json:"step,omitempty"` // while running
	Back     bool   `json:"back,omitempty"` // it goes back to From
	Drill    bool   `json:"drill,omitempty"`
	Version  int64  `json:"version"` // that holds when nothing is under way
	From     int64  `json:"from,omitempty"`
	To       int64  `json:"to,omitempty"`
	Target   int64  `json:"target,omitempty"`   // that machines are to hold now
	Retiring int64  `json:"retiring,omitempty"` // that is to be accepted no more
	// Next and Planes are what a statement for the next rotation of this kind has
	// to say, FromValue and ToValue what the rotation under way is from and to:
	// URLs, or PEM roots. They are there for kinds that a person signs.
	Next      int64    `json:"next,omitempty"`
	Planes    []string `json:"planes,omitempty"`
	Value     string   `json:"value,omitempty"` // of Version
	FromValue string   `json:"from_value,omitempty"`
	ToValue   string   `json:"to_value,omitempty"`

	By        string `json:"by,omitempty"`
	StartedAt *Time  `json:"started_at"`
	StepAt    *Time  `json:"step_at"`
	ProvedAt  *Time  `json:"proved_at"` // when the retired value was seen to be refused
	EndedAt   *Time  `json:"ended_at"`
	// Waiting says what the step waits for; Problem, what a person has to do.
	Waiting string `json:"waiting,omitempty"`
	Problem string `json:"problem,omitempty"`

	Machines   RotationMachines    `json:"machines"`
	Uses       RotationUses        `json:"uses"`
	Leave      []string            `json:"leave"`
	Stragglers []RotationStraggler `json:"stragglers"`
	Missed     []RotationStraggler `json:"missed"` // by a drill, when it turned back
	Replicas   []RotationReplica   `json:"replicas"`
}

// RotationMachines counts the machines that are not deleted.
type RotationMachines struct {
	All   int `json:"all"`
	Moved int `json:"moved"` // presented the target last
	Left  int `json:"left"`  // have not moved, and were named with leave
}

// RotationUses are the uses of the retiring value by those that were not left.
type RotationUses struct {
	Count   int64   `json:"count"`
	LastAt  *Time   `json:"last_at"`
	FlatS   float64 `json:"flat_s"`   // since the last one, as far as the plane knows
	NeededS float64 `json:"needed_s"` // before it narrows
}

// RotationStraggler holds narrowing up: a machine, or callers that are none.
type RotationStraggler struct {
	Machine   string `json:"machine,omitempty"`
	Name      string `json:"name,omitempty"`
	Presence  string `json:"presence,omitempty"`
	LastCheck *Time  `json:"last_check"`
	Endpoint  string `json:"endpoint,omitempty"` // of callers that are no known machine
	Version   int64  `json:"version,omitempty"`  // presented last; 0: none
	Uses      int64  `json:"uses"`               // of the retiring value
	LastUsed  *Time  `json:"last_used"`
	Left      bool   `json:"left,omitempty"`
}

// RotationReplica is one running plane over the store.
type RotationReplica struct {
	ID       string  `json:"id"`
	Versions []int64 `json:"versions"` // that it accepts
	At       Time    `json:"at"`
}
