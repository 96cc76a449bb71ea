package wire

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"slices"
	"strings"
)

// SchemaStatement names the Statement document.
const SchemaStatement = "fleet.material-statement/v1"

// MaxStatement bounds a statement, and its signature, in bytes.
const MaxStatement = 32 << 10

// Bounds of what a statement holds.
const (
	maxPlanes  = 64
	maxRoots   = 4
	maxVersion = 1<<31 - 1
)

// Statement is fleet.material-statement/v1: where the plane is from now on, or
// which roots vouch for it. A person signs its bytes as they are, in the
// namespace NamespaceMaterial, and machines take it for the sake of that
// signature alone.
type Statement struct {
	Schema string `json:"schema"`
	Kind   string `json:"kind"` // MaterialURL or MaterialTrust
	// Version grows with every statement of a kind: an older one changes nothing.
	Version int64 `json:"version"`
	// Planes are the URLs of the plane that the statement is for. A machine
	// that has another one leaves it.
	Planes   []string `json:"planes"`
	URL      string   `json:"url,omitempty"`       // of MaterialURL
	RootsPEM string   `json:"roots_pem,omitempty"` // of MaterialTrust: those that vouch from now on
	SignedAt Time     `json:"signed_at"`
}

// Value is what the statement is about: a URL, or PEM roots.
func (s *Statement) Value() string {
	if s.Kind == MaterialURL {
		return s.URL
	}
	return s.RootsPEM
}

var (
	errStatement      = errors.New("it is no statement about a plane")
	errStatementLong  = errors.New("it is too long")
	errStatementPlane = errors.New("it does not name the plane's URLs in their one spelling")
	errStatementURL   = errors.New("its URL is not https://HOST or https://HOST:PORT, in its one spelling")
	errStatementRoots = errors.New("its roots are not one to four PEM certificates")
)

// ParseStatement reads a statement. Every field is known and has the one
// spelling, so that what was signed means one thing.
func ParseStatement(b []byte) (*Statement, error) {
	if len(b) > MaxStatement {
		return nil, errStatementLong
	}
	var s Statement
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if d.Decode(&s) != nil {
		return nil, errStatement
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errStatement
	}
	return &s, s.Check()
}

// Check says what is wrong with a statement, if anything.
func (s *Statement) Check() error {
	if s.Schema != SchemaStatement || s.Version < 1 || s.Version > maxVersion || s.SignedAt.IsZero() {
		return errStatement
	}
	if len(s.Planes) == 0 || len(s.Planes) > maxPlanes {
		return errStatementPlane
	}
	for i, p := range s.Planes {
		if u, err := PlaneURL(p); err != nil || u != p || slices.Contains(s.Planes[:i], p) {
			return errStatementPlane
		}
	}
	switch s.Kind {
	case MaterialURL:
		if s.RootsPEM != "" {
			return errStatement
		}
		if u, err := PlaneURL(s.URL); err != nil || u != s.URL {
			return errStatementURL
		}
	case MaterialTrust:
		if s.URL != "" {
			return errStatement
		}
		if !pemRoots(s.RootsPEM) {
			return errStatementRoots
		}
	default:
		return errStatement
	}
	return nil
}

// pemRoots reports whether text is PEM certificates and nothing else. What they
// hold is for those who verify with them to read.
func pemRoots(text string) bool {
	n := 0
	for rest := []byte(text); ; n++ {
		if len(bytes.TrimSpace(rest)) == 0 {
			return n >= 1 && n <= maxRoots
		}
		if !strings.HasPrefix(string(bytes.TrimLeft(rest, "\r\n")), "-----BEGIN ") {
			return false
		}
		block, after := pem.Decode(rest)
		if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			return false
		}
		rest = after
	}
}
