package wire

import (
	"fmt"
	"time"
)

// Time is a time on the wire: RFC 3339 in UTC with at most milliseconds.
type Time struct{ time.Time }

// TimeOf converts; the zero time becomes nil.
func TimeOf(t time.Time) *Time {
	if t.IsZero() {
		return nil
	}
	return &Time{t}
}

const timeLayout = "2006-01-02T15:04:05.999Z"

// String is the wire form.
func (t Time) String() string { return t.UTC().Format(timeLayout) }

// MarshalJSON writes the wire form.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"` + timeLayout + `"`)), nil
}

// UnmarshalJSON accepts any RFC 3339 time.
func (t *Time) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return fmt.Errorf("malformed time")
	}
	v, err := time.Parse(time.RFC3339Nano, string(b[1:len(b)-1]))
	if err != nil {
		return fmt.Errorf("malformed time")
	}
	t.Time = v
	return nil
}
