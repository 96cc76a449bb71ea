package layout

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	agentd "fleet.example/fleet/agentd/cli"
	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/hostcli"
	"fleet.example/fleet/planed"
)

// programs are those with a command line of their own. fleet's passed-on
// commands are fleet-host's.
var programs = map[string]func(args []string, std command.IO) int{
	"fleet":      func(args []string, std command.IO) int { return cli.Main(args, std, "1") },
	"fleet-host": func(args []string, std command.IO) int { return hostcli.Main(args, std, hostcli.Build{Version: "1"}) },
	"planed":     func(args []string, std command.IO) int { return planed.Main(args, std, "1") },
	"agentd":     func(args []string, std command.IO) int { return agentd.Main(args, std, "1") },
}

// hidden are commands that help lists nowhere.
var hidden = map[string][]string{"fleet-host": {"mux serve", "host link", "sign-statement"}}

func help(t *testing.T, program string, words ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	exit := programs[program](append([]string{program, "help"}, words...), command.IO{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut,
		Getenv: func(string) string { return "" }})
	if exit != 0 || out.Len() == 0 {
		t.Fatalf("%s help %s: exit %d: %s", program, strings.Join(words, " "), exit, errOut.String())
	}
	return out.String()
}

// listed are the names that a page of help lists under its headings, without
// flags.
func listed(page string) []string {
	var names []string
	for line := range strings.Lines(page) {
		name, indented := strings.CutPrefix(line, "  ")
		if indented && name[0] != ' ' && name[0] != '-' {
			names = append(names, strings.Fields(name)[0])
		}
	}
	return names
}

func TestHelpFitsATerminal(t *testing.T) {
	for program := range programs {
		pages := 0
		check := func(page string, words ...string) {
			pages++
			for line := range strings.Lines(page) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > command.Width {
					t.Errorf("%s help %s: %d characters: %s", program, strings.Join(words, " "), n, line)
				}
				if strings.HasSuffix(line, " \n") {
					t.Errorf("%s help %s: a line ends with a blank: %q", program, strings.Join(words, " "), line)
				}
			}
		}
		root := help(t, program)
		check(root)
		passedOn := map[string]bool{}
		if program == "fleet" {
			for name := range cli.PassedOn() {
				passedOn[name] = true
			}
		}
		for _, name := range listed(root) {
			if passedOn[name] {
				continue
			}
			page := help(t, program, name)
			check(page, name)
			_, commands, group := strings.Cut(page, "Commands:\n")
			if !group {
				continue
			}
			commands, _, _ = strings.Cut(commands, "\n\n")
			for _, sub := range listed(commands) {
				if program == "fleet" && name == "host" && sub == "link" {
					continue // fleet-host's
				}
				check(help(t, program, name, sub), name, sub)
			}
		}
		for _, line := range hidden[program] {
			words := strings.Fields(line)
			check(help(t, program, words...), words...)
		}
		if pages < 8 {
			t.Errorf("%s has %d pages of help only; the test no longer finds them", program, pages)
		}
	}
}
