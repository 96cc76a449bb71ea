package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Kind is what a plugin is for.
type Kind string

// Kinds.
const (
	KindTransport Kind = "transport"
	KindService   Kind = "service"
	KindProbe     Kind = "probe"
)

// Protocol is the protocol of a kind that this SDK speaks.
func (k Kind) Protocol() string { return "fleet." + string(k) + ".v1" }

// SchemaDescription names the document that `NAME describe` prints.
const SchemaDescription = "fleet.plugin/v1"

// MaxDescription bounds that document, in bytes.
const MaxDescription = 64 << 10

// Description is what a plugin says of itself before it serves anything. The
// SDK fills in Schema and Protocols.
type Description struct {
	Schema  string `json:"schema"`
	Kind    Kind   `json:"kind"`
	Name    string `json:"name"` // as systemd: [a-z0-9][a-z0-9-]{0,31}
	Version string `json:"version"`
	// Protocols are those that the plugin can serve, as fleet.probe.v1.
	Protocols []string `json:"protocols"`
	// Targets are the systems that it acts on, as linux or darwin/arm64. Empty
	// means any.
	Targets []string `json:"targets"`
	// Commands are the read-only commands that it may run before a host key is
	// confirmed, each a list of arguments. An argument that ends in * stands for
	// every argument that begins so.
	Commands [][]string `json:"commands"`
	// Ways are the ways to a target that a transport goes, one of the Way
	// constants; empty means WayDirect alone.
	Ways []string `json:"ways,omitempty"`
	// Summary says in one line what it does.
	Summary string `json:"summary,omitempty"`
}

// The ways to a target: what of Target a transport uses.
const (
	WayDirect  = "direct"        // neither of the following
	WayJumps   = "jumps"         // Target.Jumps
	WayProgram = "proxy_command" // Target.Proxy
)

// FileName is the name of the plugin's executable.
func (d Description) FileName() string { return "fleet-" + string(d.Kind) + "-" + d.Name }

var (
	fileName = regexp.MustCompile(`^fleet-(transport|service|probe)-([a-z0-9][a-z0-9-]{0,31})$`)
	protocol = regexp.MustCompile(`^fleet\.(transport|service|probe)\.v[1-9][0-9]{0,3}$`)
)

// ParseFileName splits an executable's base name. Anything that is not exactly
// of the form fleet-KIND-NAME, such as a checksum file, is no plugin's name.
func ParseFileName(base string) (Kind, string, bool) {
	m := fileName.FindStringSubmatch(base)
	if m == nil {
		return "", "", false
	}
	return Kind(m[1]), m[2], true
}

// ErrDescription is in the chain of an error about a malformed description.
var ErrDescription = errors.New("not a plugin's description")

// ParseDescription parses and checks what `NAME describe` printed. Unknown
// fields are skipped, so that a later SDK may add some.
func ParseDescription(b []byte) (Description, error) {
	var d Description
	if len(b) > MaxDescription {
		return d, fmt.Errorf("%w: longer than %d bytes", ErrDescription, MaxDescription)
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, fmt.Errorf("%w: %s", ErrDescription, err)
	}
	return d, d.Check()
}

// Check returns an error that says what is wrong with a description.
func (d Description) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrDescription}, args...)...)
	}
	if d.Schema != SchemaDescription {
		return bad("schema is %q, not %q", d.Schema, SchemaDescription)
	}
	if _, _, ok := ParseFileName(d.FileName()); !ok {
		return bad("kind %q and name %q make no plugin's name", d.Kind, d.Name)
	}
	if d.Version == "" || !printable(d.Version, 64) || strings.ContainsAny(d.Version, " \t") {
		return bad("version %q", d.Version)
	}
	if len(d.Protocols) == 0 || len(d.Protocols) > 16 {
		return bad("%d protocols", len(d.Protocols))
	}
	for _, p := range d.Protocols {
		if m := protocol.FindStringSubmatch(p); m == nil || Kind(m[1]) != d.Kind {
			return bad("protocol %q", p)
		}
	}
	if len(d.Targets) > 64 || len(d.Commands) > 256 {
		return bad("too many targets or commands")
	}
	for _, t := range d.Targets {
		if !printable(t, 64) || t == "" {
			return bad("target %q", t)
		}
	}
	for _, c := range d.Commands {
		if len(c) == 0 || len(c) > 64 || c[0] == "" || strings.HasSuffix(c[0], "*") {
			return bad("command %q", c)
		}
		for _, a := range c {
			if !printable(a, 1024) {
				return bad("command %q", c)
			}
		}
	}
	if len(d.Ways) > 16 || len(d.Ways) > 0 && d.Kind != KindTransport {
		return bad("%d ways", len(d.Ways))
	}
	for _, w := range d.Ways {
		if !printable(w, 64) || w == "" {
			return bad("way %q", w)
		}
	}
	if !printable(d.Summary, 256) {
		return bad("summary %q", d.Summary)
	}
	return nil
}

// printable reports whether s can be shown on a terminal as it is.
func printable(s string, max int) bool {
	return len(s) <= max && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r < 0x20 || r >= 0x7f && r < 0xa0
	})
}

// ActsOn reports whether Targets has the platform.
func (d Description) ActsOn(goos, goarch string) bool {
	return len(d.Targets) == 0 || slices.Contains(d.Targets, goos) || slices.Contains(d.Targets, goos+"/"+goarch)
}

// Allows reports whether Commands lists argv.
func (d Description) Allows(argv []string) bool {
	return slices.ContainsFunc(d.Commands, func(pattern []string) bool {
		if len(pattern) != len(argv) {
			return false
		}
		for i, p := range pattern {
			if prefix, ok := strings.CutSuffix(p, "*"); ok {
				if !strings.HasPrefix(argv[i], prefix) {
					return false
				}
			} else if p != argv[i] {
				return false
			}
		}
		return true
	})
}

// complete fills in what the SDK knows.
func (d Description) complete(kind Kind) Description {
	d.Schema, d.Kind = SchemaDescription, kind
	d.Protocols = []string{kind.Protocol()}
	if d.Targets == nil {
		d.Targets = []string{}
	}
	if d.Commands == nil {
		d.Commands = [][]string{}
	}
	return d
}

// write prints the document.
func (d Description) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(d)
}
