package sshconfig

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Flags are the options of ssh's that every command with a HOST takes.
type Flags struct {
	ConfigFile string   // -F; "none" reads no file at all, as with ssh
	Identities []string // -i
	Jump       string   // -J
	Port       int      // -p
	User       string   // -l; wins over a user in the destination
	Options    []string // -o
}

// Args are the flags as ssh's arguments.
func (f Flags) Args() []string {
	var a []string
	if f.ConfigFile != "" {
		a = append(a, "-F", f.ConfigFile)
	}
	for _, i := range f.Identities {
		a = append(a, "-i", i)
	}
	if f.Jump != "" {
		a = append(a, "-J", f.Jump)
	}
	if f.Port != 0 {
		a = append(a, "-p", strconv.Itoa(f.Port))
	}
	if f.User != "" {
		a = append(a, "-l", f.User)
	}
	for _, o := range f.Options {
		a = append(a, "-o", o)
	}
	return a
}

// FlagsOf is the inverse of Args.
func FlagsOf(args []string) (Flags, error) {
	var f Flags
	if len(args)%2 != 0 {
		return f, fmt.Errorf("cannot read recorded ssh flags: %q has no value", args[len(args)-1])
	}
	for i := 0; i < len(args); i += 2 {
		v := args[i+1]
		switch args[i] {
		case "-F":
			f.ConfigFile = v
		case "-i":
			f.Identities = append(f.Identities, v)
		case "-J":
			f.Jump = v
		case "-p":
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > 65535 {
				return f, fmt.Errorf("cannot read recorded ssh flags: port %q", v)
			}
			f.Port = n
		case "-l":
			f.User = v
		case "-o":
			f.Options = append(f.Options, v)
		default:
			return f, fmt.Errorf("cannot read recorded ssh flags: %q", args[i])
		}
	}
	return f, nil
}

// Absolute returns the flags with their files named in a way that does not
// depend on the working directory, for a record that is used from elsewhere.
// Names that ssh expands by itself stay as they are.
func (f Flags) Absolute() (Flags, error) {
	var err error
	if f.ConfigFile != "" && !strings.EqualFold(f.ConfigFile, "none") {
		if f.ConfigFile, err = filepath.Abs(f.ConfigFile); err != nil {
			return f, fmt.Errorf("cannot record %s: %w", f.ConfigFile, err)
		}
	}
	ids := make([]string, len(f.Identities))
	for i, id := range f.Identities {
		if ids[i] = id; !strings.ContainsAny(id[:min(1, len(id))], "~%$") && !strings.EqualFold(id, "none") {
			if ids[i], err = filepath.Abs(id); err != nil {
				return f, fmt.Errorf("cannot record %s: %w", id, err)
			}
		}
	}
	if len(ids) > 0 {
		f.Identities = ids
	}
	return f, nil
}
