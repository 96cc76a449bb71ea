package command

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// span is a flag's duration: Go's form, or whole days as 30d.
type span struct{ d time.Duration }

func (s *span) Set(v string) error {
	d, err := ParseSpan(v)
	if err != nil {
		return err
	}
	s.d = d
	return nil
}

func (s *span) String() string {
	if s.d == 0 {
		return ""
	}
	return s.d.String()
}

// ParseSpan parses a duration such as 90s, 1h30m or 30d. Negative ones and
// plain numbers are refused.
func ParseSpan(v string) (time.Duration, error) {
	bad := fmt.Errorf("%q is no duration such as 90s, 5m, 12h or 30d", v)
	if days, ok := strings.CutSuffix(v, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, bad
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return 0, bad
	}
	return d, nil
}

// DurationFlag is a flag that takes a duration; read it with Call.Span.
func DurationFlag(name, usage string, value time.Duration) cli.Flag {
	return &cli.GenericFlag{Name: name, Usage: usage, Value: &span{value}}
}

// Span is the value of a DurationFlag.
func (c *Call) Span(name string) time.Duration {
	if s, ok := c.Generic(name).(*span); ok {
		return s.d
	}
	return 0
}
