package command

import (
	"strings"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/fault"
)

// invocation is a command line that has been taken apart: which command it
// means, its flags in the one form --name=value, and its arguments.
type invocation struct {
	path    []*Command
	leaf    *Command
	flags   []cli.Flag
	normal  []string // flags as --name=value or --name, in order
	args    []string
	rest    []string
	raw     []string
	json    bool
	help    bool
	topic   string
	missing bool   // a word names no command
	unknown string // that word, which may be empty
}

// resolve finds the command and normalises the flags. Flags of the whole
// program may stand before the command's name.
func (a *App) resolve(args []string) (*invocation, error) {
	inv := &invocation{flags: a.Flags}
	table := a.Commands
	for len(table) > 0 {
		if len(args) == 0 {
			inv.help = true
			return inv, nil
		}
		tok := args[0]
		if strings.HasPrefix(tok, "-") && tok != "-" && tok != "--" {
			switch {
			case tok == "-h" || tok == "--help":
				inv.help = true
				return inv, nil
			case tok == "--version" && len(inv.path) == 0:
				tok = "version"
			default:
				n, err := inv.flag(args)
				if err != nil {
					return inv, a.flagError(inv, err)
				}
				args = args[n:]
				continue
			}
		}
		args = args[1:]
		if tok == "help" && find(table, "help") == nil {
			return a.resolveHelp(inv, args)
		}
		c := find(table, tok)
		if c == nil {
			inv.missing, inv.unknown, inv.raw = true, tok, append(inv.normal, args...)
			return inv, nil
		}
		inv.path, inv.leaf, table = append(inv.path, c), c, c.Sub
		inv.flags = append(inv.flags[:len(inv.flags):len(inv.flags)], c.Flags...)
		if c.Raw != nil {
			inv.raw = append(inv.normal, args...)
			return inv, nil
		}
	}
	if inv.leaf != nil && len(inv.leaf.Verbs) > 0 {
		args = a.verb(inv, args)
	}
	// JSON is looked for first, so that a usage error comes in that form too.
	for _, tok := range args {
		if tok == "--" {
			break
		}
		if (tok == "--json" || tok == "--jsonl") && known(inv.flags, tok[2:]) {
			inv.json = true
		}
	}
	for len(args) > 0 {
		tok := args[0]
		switch {
		case tok == "--":
			if inv.leaf.Rest == RestRequired {
				inv.rest = args[1:]
			} else {
				inv.args = append(inv.args, args[1:]...)
			}
			return inv, nil
		case tok == "-h" && !known(inv.flags, "h") || tok == "--help":
			inv.help = true
			return inv, nil
		case strings.HasPrefix(tok, "-") && tok != "-":
			n, err := inv.flag(args)
			if err != nil {
				return inv, a.flagError(inv, err)
			}
			args = args[n:]
		default:
			inv.args = append(inv.args, tok)
			args = args[1:]
		}
	}
	return inv, nil
}

// verb makes the leaf the verb that the first argument names, if it names one,
// and returns what is left. Flags that stand before the word are the verb's.
func (a *App) verb(inv *invocation, args []string) []string {
	trial := &invocation{flags: inv.flags}
	for i := 0; i < len(args); {
		tok := args[i]
		switch {
		case tok == "--" || tok == "-":
			return args
		case strings.HasPrefix(tok, "-"):
			n, err := trial.flag(args[i:])
			if err != nil {
				n = 1 // the verb knows it, or nobody does
			}
			i += n
			continue
		}
		c := find(inv.leaf.Verbs, tok)
		if c == nil {
			return args
		}
		inv.path, inv.leaf = append(inv.path, c), c
		inv.flags = append(a.Flags[:len(a.Flags):len(a.Flags)], c.Flags...)
		return append(args[:i:i], args[i+1:]...)
	}
	return args
}

func (a *App) flagError(inv *invocation, err error) error {
	then := a.Name + " help lists the commands"
	if inv.leaf != nil {
		then = "usage: " + a.usageLine(inv)
	}
	f := fault.Of(err)
	return fault.Usagef("%s", f.Msg).WithHint("%s", joined(f.Hint, then))
}

// flag takes the flag at args[0], with its value, into inv.normal and returns
// how many arguments it was. -abc is -a -b -c where they take no value; the
// first one that takes a value takes what is left, or the next argument.
func (inv *invocation) flag(args []string) (int, error) {
	tok := args[0]
	if name, ok := strings.CutPrefix(tok, "--"); ok {
		name, value, given := strings.Cut(name, "=")
		f := lookup(inv.flags, name)
		if f == nil || len(name) == 1 {
			near := meant(name, flagNames(inv.flags), func(n string) string { return "--" + n })
			return 0, fault.Usagef("unknown flag --%s", Clean(name)).WithHint("%s", near)
		}
		return inv.take(f, "--"+name, value, given, args)
	}
	letters := tok[1:]
	for i, l := range letters {
		name := string(l)
		f := lookup(inv.flags, name)
		if f == nil {
			return 0, fault.Usagef("unknown flag -%s", name)
		}
		if isBool(f) {
			inv.normal = append(inv.normal, "--"+f.Names()[0])
			continue
		}
		value := letters[i+len(name):]
		return inv.take(f, "-"+name, value, value != "", args)
	}
	return 1, nil
}

func (inv *invocation) take(f cli.Flag, shown, value string, given bool, args []string) (int, error) {
	name := "--" + f.Names()[0]
	switch {
	case given:
		inv.normal = append(inv.normal, name+"="+value)
		return 1, nil
	case isBool(f):
		inv.normal = append(inv.normal, name)
		return 1, nil
	case len(args) < 2:
		return 0, fault.Usagef("flag %s wants a value", shown)
	default:
		inv.normal = append(inv.normal, name+"="+args[1])
		return 2, nil
	}
}

func lookup(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		for _, n := range f.Names() {
			if n == name {
				return f
			}
		}
	}
	return nil
}

func isBool(f cli.Flag) bool {
	_, ok := f.(*cli.BoolFlag)
	return ok
}

func find(table []*Command, name string) *Command {
	for _, c := range table {
		if c.Name == name {
			return c
		}
	}
	return nil
}
