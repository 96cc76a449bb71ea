package wire

// SchemaMux is the schema of Mux.
const SchemaMux = "fleet.mux/v1"

// States of a shared connection.
const (
	MuxConnected    = "connected"
	MuxReconnecting = "reconnecting" // it is being dialled
	MuxDown         = "down"         // it ended, or the last dial failed; the next command dials again
)

// Mux is fleet.mux/v1: the connections that a person's commands share.
type Mux struct {
	Schema      string          `json:"schema"`
	Running     bool            `json:"running"`
	PID         int             `json:"pid,omitempty"`
	Version     string          `json:"version,omitempty"`
	Socket      string          `json:"socket,omitempty"`
	Since       *Time           `json:"since,omitempty"`
	Connections []MuxConnection `json:"connections"`
}

// MuxConnection is one SSH connection.
type MuxConnection struct {
	Host        string   `json:"host"`        // as the person wrote it
	Destination string   `json:"destination"` // user@host:port
	State       string   `json:"state"`
	Since       Time     `json:"since"`   // of the state
	Clients     int      `json:"clients"` // streams that are open
	Machines    []string `json:"machines"`
	Error       string   `json:"error,omitempty"` // why it is down
	// Updates are what became of machines that something newer was there for.
	Updates []MuxUpdate `json:"updates,omitempty"`
}

// States of an update that nobody asked for by name.
const (
	UpdateAvailable = "available" // it is said, and nothing else
	UpdateDeferred  = "deferred"  // while sessions run, or connections are forwarded
	UpdateRunning   = "running"
	UpdateDone      = "done"
	UpdateHeld      = "held" // a person or a failure led away from that version
	UpdateFailed    = "failed"
)

// MuxUpdate is a machine's update on connect.
type MuxUpdate struct {
	Machine string `json:"machine"`
	State   string `json:"state"`
	From    string `json:"from"` // version
	To      string `json:"to,omitempty"`
	Detail  string `json:"detail,omitempty"`
	At      Time   `json:"at"`
}
