package command

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// meant is a hint at the names that are nearly the word, or "".
func meant(word string, names []string, show func(name string) string) string {
	near := nearest(word, names)
	for i, n := range near {
		near[i] = show(n)
	}
	if len(near) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// maxNear bounds how many names are hinted at.
const maxNear = 3

// nearest are the names that the word is nearly, where it could be a slip: one
// third of the letters at most are wrong, missing, too many, or in one
// another's place.
func nearest(word string, names []string) []string {
	best := max(1, len(word)/3) + 1
	var near []string
	for _, n := range names {
		d := slips(word, n)
		if d < best {
			best, near = d, nil
		}
		if d == best && d <= max(1, len(word)/3) && len(word) > 1 {
			near = append(near, n)
		}
	}
	slices.Sort(near)
	near = slices.Compact(near)
	return near[:min(len(near), maxNear)]
}

// slips counts the insertions, deletions, replacements and swaps of neighbours
// that make b of a (optimal string alignment).
func slips(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	var rows [3][65]int
	two, one, now := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		one[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			now[j] = min(one[j]+1, now[j-1]+1, one[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], two[j-2]+1)
			}
		}
		two, one, now = one, now, two
	}
	return one[len(b)]
}

// shownNames are the commands of a table that help lists.
func shownNames(table []*Command) (names []string) {
	for _, c := range table {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return names
}

// flagNames are the long names of the flags that help lists.
func flagNames(flags []cli.Flag) (names []string) {
	for _, f := range shownFlags(flags) {
		for _, n := range f.Names() {
			if len(n) > 1 {
				names = append(names, n)
			}
		}
	}
	return names
}
