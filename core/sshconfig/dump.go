package sshconfig

import (
	"slices"
	"strings"
)

// Line is one line of what `ssh -G` prints: a keyword in lower case and its
// value. Keywords that may stand in a configuration more than once have a line
// for each value.
type Line struct{ Keyword, Value string }

// dump is what `ssh -G` printed.
type dump struct {
	lines []Line
}

func parseDump(out string) dump {
	d := dump{lines: make([]Line, 0, strings.Count(out, "\n")+1)}
	for line := range strings.Lines(out) {
		keyword, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if keyword == "" {
			continue
		}
		keyword = strings.ToLower(keyword)
		d.lines = append(d.lines, Line{keyword, value})
	}
	return d
}

// without returns the dump less some keywords.
func (d dump) without(keywords ...string) dump {
	return dump{slices.DeleteFunc(slices.Clone(d.lines), func(l Line) bool { return slices.Contains(keywords, l.Keyword) })}
}

func (d dump) all(keyword string) (values []string) {
	for _, l := range d.lines {
		if l.Keyword == keyword {
			values = append(values, l.Value)
		}
	}
	return values
}

func (d dump) has(keyword string) bool {
	return slices.ContainsFunc(d.lines, func(l Line) bool { return l.Keyword == keyword })
}

// one is the value of a keyword that stands there once, or "".
func (d dump) one(keyword string) string {
	for _, l := range d.lines {
		if l.Keyword == keyword {
			return l.Value
		}
	}
	return ""
}

// set is the value of a keyword for which ssh takes "none" as nothing.
func (d dump) set(keyword string) string {
	if v := d.one(keyword); !isNone(v) {
		return v
	}
	return ""
}

// yes reports whether a flag is on, in any of ssh's spellings.
func (d dump) yes(keyword string) bool {
	v := strings.ToLower(d.one(keyword))
	return v == "yes" || v == "true"
}

func isNone(s string) bool { return strings.EqualFold(s, "none") }

// splitFiles takes apart a value that lists files on one line. ssh -G prints
// them with single spaces between and quotes nothing, so a name with a space
// looks like two. A piece belongs to the name before it unless it starts as a
// whole name does. Lists of relative names, where nothing tells, are split at
// every space.
func splitFiles(value string) []string {
	pieces := strings.Split(value, " ")
	if !startsFile(pieces[0]) {
		return strings.Fields(value)
	}
	var out []string
	for _, p := range pieces {
		if len(out) > 0 && !startsFile(p) {
			out[len(out)-1] += " " + p
			continue
		}
		out = append(out, p)
	}
	return out
}

func startsFile(s string) bool {
	return isNone(s) || s != "" && strings.ContainsRune("/~%", rune(s[0])) || strings.HasPrefix(s, "${")
}
