package sdk

import "context"

// Probe looks at a machine and names what stops it from accepting work.
type Probe interface {
	// Codes lists every code that Probe may report. A vendor's codes start with
	// the vendor's name and a full stop, as acme.license_expired.
	Codes() []string
	// Probe gives the complete set of findings now, at most one a code: what it
	// does not name is not the case. An error means "cannot tell".
	Probe(ctx context.Context, h Host) ([]Finding, error)
}

// Severity is what a finding means for a machine.
type Severity string

// Severities.
const (
	SeverityBlock Severity = "block" // the machine does not accept work
	SeverityWarn  Severity = "warn"  // it works, and somebody should know
)

// Finding is one thing that is the case.
type Finding struct {
	Code     string
	Severity Severity
	Detail   string // what was seen, with figures; never a secret
	Remedy   string // what a person does about it
}
