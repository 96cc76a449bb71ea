package catalog

import (
	"fmt"
	"strings"

	"fleet.example/fleet/core/fault"
)

// Codes of what can be wrong with a plugin.
const (
	CodeMissing    = "plugin_missing"
	CodeNotTaken   = "plugin_not_taken" // found, but not to be run: writable by others, not locked …
	CodeAltered    = "plugin_altered"   // not the bytes that were locked
	CodeTooOld     = "plugin_too_old"
	CodeTooNew     = "plugin_too_new"
	CodeSlow       = "plugin_slow"
	CodeCrashed    = "plugin_crashed"
	CodeGarbled    = "plugin_garbled" // says something that is not the protocol
	CodeNotStarted = "plugin_not_started"
)

// problem makes the one error of a plugin's failure. It names the file, its
// version and ours.
func (c *Catalog) problem(code, file, version, format string, args ...any) *fault.Error {
	if version == "" {
		version = "unknown version"
	} else {
		version = "version " + version
	}
	what := fmt.Sprintf(format, args...)
	return fault.New(fault.Failure, code, "plugin %s (%s, fleet %s) %s", file, version, c.version(), what)
}

func (c *Catalog) version() string {
	if c.Version == "" {
		return "unknown"
	}
	return c.Version
}

// lastWords shortens what a plugin wrote to standard error for one line.
func lastWords(stderr string) string {
	lines := strings.FieldsFunc(stderr, func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) == 0 {
		return "it said nothing"
	}
	// A Go panic says what happened on its first line and where after that.
	say := lines[len(lines)-1]
	for _, l := range lines {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			say = l
			break
		}
	}
	if len(say) > 300 {
		say = say[:300] + "…"
	}
	return fmt.Sprintf("it last said %q", say)
}
