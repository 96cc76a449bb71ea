package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// choice is a flag's value that is one of a few words.
type choice struct {
	value   string
	allowed []string
}

// errChoice is a value that is none of them; misuse puts the flag before it.
type errChoice string

func (e errChoice) Error() string { return string(e) }

const choosing = "is one of "

func (c *choice) Set(v string) error {
	if !slices.Contains(c.allowed, v) {
		return errChoice(fmt.Sprintf("%s%s, not %q", choosing, strings.Join(c.allowed, ", "), v))
	}
	c.value = v
	return nil
}

func (c *choice) String() string { return c.value }

// ChoiceFlag is a flag that takes one of a few words; read it with Call.String.
// Another word is refused wherever it comes from, before the command runs.
func ChoiceFlag(name, usage, value string, variables []string, allowed ...string) cli.Flag {
	return &cli.GenericFlag{Name: name, Usage: usage, EnvVars: variables, Value: &choice{value, allowed}}
}
