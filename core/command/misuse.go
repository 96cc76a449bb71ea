package command

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"
)

// misuse says what the command library found wrong in the words that flags and
// variables have here.
func misuse(err error, flags []cli.Flag) string {
	dashed := func(name string) string {
		if len(name) == 1 {
			return "-" + name
		}
		return "--" + name
	}
	// Compiled here: a command that is called right pays nothing for them.
	badValue := regexp.MustCompile(`^invalid (?:boolean )?value (".*") for (?:flag )?-([^ :]+): (.*)$`)
	badVariable := regexp.MustCompile(`^could not parse (".*") (?:as \w+ value )?from environment variable "(\w+)" (?:as value )?for flag ([^ :]+): (.*)$`)
	missing := regexp.MustCompile(`^Required flags? "(.*)" not set$`)
	text := err.Error()
	wrong := func(shown, value, name, why string) string {
		if why != "parse error" && why != "value out of range" && !strings.HasPrefix(why, "strconv.") {
			return unfit(shown, why)
		}
		return fmt.Sprintf("%s takes %s, not %s", shown, wanted(lookup(flags, name)), value)
	}
	if m := badValue.FindStringSubmatch(text); m != nil {
		return wrong(dashed(m[2]), m[1], m[2], m[3])
	}
	if m := badVariable.FindStringSubmatch(text); m != nil {
		return wrong(m[2], m[1], m[3], m[4])
	}
	if m := missing.FindStringSubmatch(text); m != nil {
		names := strings.Split(m[1], ", ")
		for i := range names {
			names[i] = dashed(names[i])
		}
		return are(names) + " missing"
	}
	return text
}

// unfit says why a value is not one for a flag, variable or key.
func unfit(shown, why string) string {
	if strings.HasPrefix(why, choosing) {
		return shown + " " + why
	}
	return shown + ": " + why
}

// wanted says what values a flag takes.
func wanted(f cli.Flag) string {
	switch f.(type) {
	case *cli.BoolFlag:
		return "true or false"
	case *cli.IntFlag, *cli.Int64Flag, *cli.UintFlag, *cli.Uint64Flag:
		return "a whole number"
	case *cli.Float64Flag:
		return "a number"
	}
	return "another value"
}

// are joins names to the subject of a sentence, with its verb.
func are(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0] + " is"
	}
	return strings.Join(names[:last], ", ") + " and " + names[last] + " are"
}

// countWords says which arguments are missing, or which is one too many.
func countWords(args []string, c *Command) string {
	n := len(args)
	switch names := required(c.Args); {
	case n < c.Min && len(names) >= c.Min:
		return are(names[n:c.Min]) + " missing"
	case n < c.Min:
		return fmt.Sprintf("too few arguments: %d of %d", n, c.Min)
	case c.Max == 0:
		return fmt.Sprintf("no arguments are taken, and %q is one", Clean(args[0]))
	default:
		return fmt.Sprintf("%q is one argument too many", Clean(args[c.Max]))
	}
}

// required are the names of the arguments in a usage line that must be there,
// without what is optional.
func required(usage string) (names []string) {
	for _, word := range strings.Fields(usage) {
		word = strings.TrimSuffix(word, "…")
		if i := strings.LastIndexByte(word, ']'); i >= 0 {
			word = word[i+1:] // what stands in brackets may be left out
		}
		if word == "|" || word == "--" || strings.HasPrefix(word, "-") {
			break
		}
		if word != "" {
			names = append(names, word)
		}
	}
	return names
}
