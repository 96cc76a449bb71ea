package wire

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// The header and path names of the machine endpoints.
const (
	HeaderCheck = "Fleet-Check" // what changes on every check, apart from the body
	HeaderGate  = "X-Fleet-Gate"

	PathCheck  = "/v1/check"
	PathRotate = "/v1/credential/rotate"
)

// MaxCheckBody bounds a check's body in bytes.
const MaxCheckBody = 64 << 10

// MaxAnswer bounds, in bytes, every answer that a machine reads from the plane.
const MaxAnswer = 256 << 10

// CheckMark is the content of the Fleet-Check header: what changes with every
// check. It stands apart from the body so that an unchanged body needs no
// decoding on the plane.
type CheckMark struct {
	Instance string    // one run of agentd: 1 to 32 characters of [a-z0-9]
	Seq      uint64    // counts checks within the instance, from 1
	Mark     string    // the mark of the last answer received, or empty
	Clock    time.Time // the machine's wall clock when the check was sent
}

// String is the header's value.
func (m CheckMark) String() string {
	var b strings.Builder
	b.Grow(96)
	b.WriteString("instance=")
	b.WriteString(m.Instance)
	b.WriteString("; seq=")
	b.WriteString(strconv.FormatUint(m.Seq, 10))
	if m.Mark != "" {
		b.WriteString("; mark=")
		b.WriteString(m.Mark)
	}
	b.WriteString("; clock=")
	b.WriteString(m.Clock.UTC().Format(time.RFC3339Nano))
	return b.String()
}

var errCheckMark = errors.New("malformed Fleet-Check header")

// ParseCheckMark parses a Fleet-Check header. Unknown fields are skipped, so
// that a later agent may add one.
func ParseCheckMark(s string) (CheckMark, error) {
	var m CheckMark
	if len(s) > 512 {
		return m, errCheckMark
	}
	for s != "" {
		var field string
		field, s, _ = strings.Cut(s, ";")
		k, v, ok := strings.Cut(strings.TrimSpace(field), "=")
		if !ok {
			return m, errCheckMark
		}
		var err error
		switch k {
		case "instance":
			if !lowerAlnum(v, 32) {
				return m, errCheckMark
			}
			m.Instance = v
		case "seq":
			m.Seq, err = strconv.ParseUint(v, 10, 64)
		case "mark":
			if !lowerAlnum(v, 32) {
				return m, errCheckMark
			}
			m.Mark = v
		case "clock":
			m.Clock, err = time.Parse(time.RFC3339Nano, v)
		}
		if err != nil {
			return m, errCheckMark
		}
	}
	if m.Instance == "" || m.Seq == 0 {
		return m, errCheckMark
	}
	return m, nil
}

func lowerAlnum(s string, max int) bool {
	if len(s) == 0 || len(s) > max {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9') {
			return false
		}
	}
	return true
}

// Lifecycle words that a machine says of itself, and the reasons of a stop.
const (
	SaidRunning  = "running"
	SaidStopping = "stopping"

	ReasonPerson  = "person"
	ReasonUpdate  = "update"
	ReasonRestart = "restart"
	ReasonHandoff = "handoff"
	ReasonSignal  = "signal"
	ReasonRevoked = "revoked"
)

// CheckBody is the body of POST /v1/check. All of it is display: nothing here
// decides who the caller is or what it may do (R13).
type CheckBody struct {
	Boot           string           `json:"boot,omitempty"` // the kernel's boot id
	Name           string           `json:"name,omitempty"` // the host name, a suggestion for the display name
	Version        string           `json:"version,omitempty"`
	OS             string           `json:"os,omitempty"`
	Arch           string           `json:"arch,omitempty"`
	Scope          string           `json:"scope,omitempty"`           // user | system
	ServiceManager string           `json:"service_manager,omitempty"` // a plugin's name, as systemd
	Lifecycle      Lifecycle        `json:"lifecycle"`
	Readiness      *CheckReadiness  `json:"readiness"` // null: not probed yet, which changes nothing (R15)
	Echo           Requests         `json:"echo,omitzero"`
	Have           map[string]int64 `json:"have,omitempty"` // material kind → version
}

// Lifecycle is what a machine says of its own running.
type Lifecycle struct {
	State  string  `json:"state"`  // SaidRunning or SaidStopping
	Reason *string `json:"reason"` // with SaidStopping, one of the Reason constants
}

// CheckReadiness is the complete set of what blocks a machine now.
type CheckReadiness struct {
	Blockers []Finding `json:"blockers"`
}

// Severities of a finding. Only SeverityBlock keeps a machine from accepting work.
const (
	SeverityBlock = "block"
	SeverityWarn  = "warn"
)

// Finding is one blocker as a machine reports it.
type Finding struct {
	Code     string `json:"code"`
	Severity string `json:"severity,omitempty"` // empty means block
	Detail   string `json:"detail,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
}

// Requests are the plane's requests to a machine: when each was made, or null.
// The machine echoes the same values once it has answered (R16).
type Requests struct {
	Logs   *time.Time `json:"logs,omitempty"`
	Rotate *time.Time `json:"rotate,omitempty"`
	// RotateKind goes with Rotate: the kind of credential that is wanted then,
	// KindBearer or KindMTLS; empty for the kind that there is.
	RotateKind string `json:"rotate_kind,omitempty"`
}

// CheckAnswer is the answer to a check.
type CheckAnswer struct {
	Machine       string           `json:"machine"`
	Generation    int64            `json:"generation"` // of the credential that was presented
	IntervalS     float64          `json:"interval_s"`
	MinGapS       float64          `json:"min_gap_s"`
	TestFloorS    float64          `json:"test_floor_s,omitempty"` // a lab's: lets the floor go below 10 s
	Mark          string           `json:"mark"`
	PlaneTime     time.Time        `json:"plane_time"`
	Requests      Requests         `json:"requests,omitzero"`
	Want          map[string]int64 `json:"want,omitempty"`
	OrdersWaiting bool             `json:"orders_waiting,omitempty"`
}

// RotateRequest is the body of POST /v1/credential/rotate. The machine made
// the secret and has it on disk; only its digest travels. Repeating the
// request repeats the answer (R20).
type RotateRequest struct {
	Generation int64  `json:"generation"` // the new one: the presented one plus one
	Digest     string `json:"digest"`     // SHA-256 of the new secret, hex
}

// RotateAnswer confirms that the plane accepts the new generation.
type RotateAnswer struct {
	Machine    string `json:"machine"`
	Generation int64  `json:"generation"`
}

// PathCertificate is where a machine asks for a certificate, presenting its
// bearer: at the plane's URL for a key that was certified before, or the first
// one; over a connection that its present certificate opened for another key.
const PathCertificate = "/v1/credential/certificate"

// PathTrustBundle is where the plane's roots are, as a SPIFFE bundle endpoint
// serves them.
const PathTrustBundle = "/v1/spiffe/bundle"

// CertificateRequest is the body of POST /v1/credential/certificate. Nothing
// but the key and the proof that the sender has it is taken from the CSR.
type CertificateRequest struct {
	CSR string `json:"csr"` // PKCS #10, PEM
}

// CertificateAnswer is its answer. Repeating the request is safe.
type CertificateAnswer struct {
	Machine    string    `json:"machine"`
	Generation int64     `json:"generation"` // of the bearer that was presented
	Chain      string    `json:"chain"`      // PEM: the certificate, then the intermediate
	URL        string    `json:"url"`        // where it is accepted
	IssuedAt   time.Time `json:"issued_at"`
	ExpiresAt  time.Time `json:"expires_at"`
}
