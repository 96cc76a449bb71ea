package command

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/fault"
)

// resolveHelp is `help [COMMAND… | TOPIC]`.
func (a *App) resolveHelp(inv *invocation, names []string) (*invocation, error) {
	inv.help = true
	table := a.Commands
	for i, name := range names {
		if strings.HasPrefix(name, "-") {
			continue
		}
		c := find(table, name)
		if c == nil {
			if i == 0 {
				for _, t := range a.Topics {
					if t.Name == name {
						inv.topic = t.Text
						return inv, nil
					}
				}
			}
			return inv, a.unknownTopic(inv, table, name)
		}
		if inv.leaf != nil && find(inv.leaf.Verbs, name) == c {
			inv.flags = a.Flags
		}
		inv.path, inv.leaf, table = append(inv.path, c), c, append(c.Sub[:len(c.Sub):len(c.Sub)], c.Verbs...)
		inv.flags = append(inv.flags[:len(inv.flags):len(inv.flags)], c.Flags...)
	}
	return inv, nil
}

// unknownTopic refuses a word of `help` that names nothing.
func (a *App) unknownTopic(inv *invocation, table []*Command, name string) error {
	names, said := shownNames(table), commandLine(a.Name, "help", inv.path)
	if len(inv.path) == 0 {
		for _, t := range a.Topics {
			names = append(names, t.Name)
		}
	}
	near := meant(name, names, func(n string) string { return said + " " + n })
	return fault.Usagef("no command and no topic %q", Clean(name)).WithHint("%s", joined(near, said+" lists them"))
}

func (a *App) unknownCommand(inv *invocation) error {
	name, table := commandLine(a.Name, "", inv.path), a.Commands
	if inv.leaf != nil {
		table = inv.leaf.Sub
	}
	near := meant(inv.unknown, shownNames(table), func(n string) string { return name + " " + n })
	return fault.Usagef("%s has no command %q", name, Clean(inv.unknown)).
		WithHint("%s", joined(near, commandLine(a.Name, "help", inv.path)+" lists the commands"))
}

// commandLine is how a command is called: the program, a word, and commands.
func commandLine(program, word string, path []*Command) string {
	if word != "" {
		program += " " + word
	}
	for _, c := range path {
		program += " " + c.Name
	}
	return program
}

func joined(first, then string) string {
	if first == "" {
		return then
	}
	return first + "\n" + then
}

func (a *App) usageLine(inv *invocation) string {
	words := []string{a.Name}
	for _, c := range inv.path {
		words = append(words, c.Name)
	}
	if inv.leaf != nil {
		switch {
		case len(inv.leaf.Sub) > 0:
			words = append(words, "COMMAND")
		case len(shownFlags(inv.leaf.Flags)) > 0:
			words = append(words, "[FLAGS]")
		}
		if inv.leaf.Args != "" {
			words = append(words, inv.leaf.Args)
		}
	} else {
		words = append(words, "COMMAND", "…")
	}
	return strings.Join(words, " ")
}

func (a *App) showHelp(ctx context.Context, std IO, inv *invocation) int {
	w := std.Stdout
	switch {
	case inv.topic != "":
		fmt.Fprintln(w, strings.TrimSpace(inv.topic))
	case inv.leaf == nil:
		fmt.Fprintf(w, "%s - %s\n\nUsage: %s\n", a.Name, a.Summary, a.usageLine(inv))
		listCommands(w, a.Commands)
		if len(a.Topics) > 0 {
			fmt.Fprintf(w, "\nTopics (%s help TOPIC):\n", a.Name)
			for _, t := range a.Topics {
				listed(w, t.Name, 12, t.Summary)
			}
		}
		listFlags(w, a.Flags)
	case inv.leaf.Raw != nil:
		return inv.leaf.Raw(ctx, std, []string{"--help"})
	default:
		fmt.Fprintf(w, "%s\n\n%s\n", Wrap("Usage: "+a.usageLine(inv), "    "), Wrap(upperFirst(inv.leaf.Summary)+".", ""))
		if inv.leaf.Help != "" {
			fmt.Fprintf(w, "\n%s\n", paragraphs(inv.leaf.Help))
		}
		listCommands(w, inv.leaf.Sub)
		listCommands(w, inv.leaf.Verbs)
		listFlags(w, inv.flags)
	}
	return fault.OK
}

// Width is the widest that a line of what fleet says is: the narrowest
// terminal that it is made for.
const Width = 80

// Wrap breaks a line between words so that no line is wider than Width, where
// the words allow it. All lines but the first begin with the indent.
func Wrap(text, indent string) string {
	var b strings.Builder
	at := 0
	for i, word := range strings.Split(text, " ") {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > Width:
			b.WriteString("\n" + indent)
			at = utf8.RuneCountInString(indent)
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// paragraphs fills the lines of each paragraph. One with an indented line is
// laid out already and stays as it is.
func paragraphs(text string) string {
	parts := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, p := range parts {
		if !strings.Contains("\n"+p, "\n ") {
			parts[i] = Wrap(strings.Join(strings.Fields(p), " "), "")
		}
	}
	return strings.Join(parts, "\n\n")
}

// listed prints a name and, in a column of its own, what is said of it.
func listed(w io.Writer, name string, column int, text string) {
	indent := strings.Repeat(" ", 2+column+1)
	if utf8.RuneCountInString(name) > column {
		fmt.Fprintf(w, "  %s\n", name)
		name = ""
	}
	fmt.Fprintln(w, strings.TrimRight(Wrap(fmt.Sprintf("  %-*s", column, name)+" "+text, indent), " "))
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func listCommands(w io.Writer, table []*Command) {
	var groups []string
	by := map[string][]*Command{}
	for _, c := range table {
		if c.Hidden {
			continue
		}
		if by[c.Group] == nil {
			groups = append(groups, c.Group)
		}
		by[c.Group] = append(by[c.Group], c)
	}
	for _, g := range groups {
		if g == "" {
			fmt.Fprintf(w, "\nCommands:\n")
		} else {
			fmt.Fprintf(w, "\n%s:\n", g)
		}
		for _, c := range by[g] {
			listed(w, c.Name, 12, c.Summary)
		}
	}
}

// shownFlags are those that help lists.
func shownFlags(flags []cli.Flag) (shown []cli.Flag) {
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); !ok || v.IsVisible() {
			shown = append(shown, f)
		}
	}
	return shown
}

func listFlags(w io.Writer, flags []cli.Flag) {
	if len(flags) == 0 {
		return
	}
	fmt.Fprintf(w, "\nFlags:\n")
	for _, f := range shownFlags(flags) {
		var names []string
		for _, n := range f.Names() {
			if len(n) == 1 {
				names = append([]string{"-" + n}, names...)
			} else {
				names = append(names, "--"+n)
			}
		}
		head, usage := strings.Join(names, ", "), ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			usage = d.GetUsage()
			if d.TakesValue() {
				value := "VALUE"
				// A word in back quotes names the value, as in urfave/cli.
				if before, after, ok := strings.Cut(usage, "`"); ok {
					if word, tail, ok := strings.Cut(after, "`"); ok {
						value, usage = word, before+word+tail
					}
				}
				head += " " + value
			}
			if v := d.GetValue(); d.TakesValue() && v != "" && v != "0s" && v != "0" && v != "[]" {
				usage += " (default " + v + ")"
			}
			if env := d.GetEnvVars(); len(env) > 0 {
				usage += " [$" + strings.Join(env, ", $") + "]"
			}
		}
		listed(w, head, 26, usage)
	}
}
