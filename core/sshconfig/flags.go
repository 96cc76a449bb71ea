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
// depend on the working directory. Names that ssh expands by itself stay as
// they are, and so do all where there is no working directory.
func (f Flags) Absolute() Flags {
	absolute := func(name string) string {
		if name == "" || strings.ContainsRune("~%$", rune(name[0])) || isNone(name) {
			return name
		}
		if abs, err := filepath.Abs(name); err == nil {
			return abs
		}
		return name
	}
	f.ConfigFile = absolute(f.ConfigFile)
	ids := make([]string, len(f.Identities))
	for i, id := range f.Identities {
		ids[i] = absolute(id)
	}
	if len(ids) > 0 {
		f.Identities = ids
	}
	return f
}
