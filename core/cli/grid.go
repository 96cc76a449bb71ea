package cli

import (
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"fleet.example/fleet/core/command"
)

// screen is what a table or a text for a person is written to.
type screen struct {
	w      io.Writer
	width  int
	colour bool
}

// tableWidth is the width of the narrowest terminal that tables are made for.
const tableWidth = 80

// anyWidth is the width of what goes to no terminal: who looks for a word in it
// must find it whole.
const anyWidth = math.MaxInt

func screenOf(c *command.Call) screen {
	if !command.IsTerminal(c.Stdout) {
		return screen{w: c.Stdout, width: anyWidth}
	}
	s := screen{w: c.Stdout, width: tableWidth}
	s.colour = c.Getenv("NO_COLOR") == "" && c.Getenv("TERM") != "dumb"
	if f, ok := c.Stdout.(interface{ Fd() uintptr }); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > tableWidth {
			s.width = w
		}
	}
	return s
}

// shade is how a word stands out on a terminal.
type shade string

const (
	plain   shade = ""
	good    shade = "\x1b[32m"
	warning shade = "\x1b[33m"
	bad     shade = "\x1b[31m"
)

// cell is one word of a grid.
type cell struct {
	text  string
	shade shade
}

func (s screen) paint(text string, sh shade) string {
	if !s.colour || sh == plain {
		return text
	}
	return string(sh) + text + "\x1b[0m"
}

// grid lays rows out in columns. The columns in flex give way, the widest
// first, until a line fits the screen.
type grid struct {
	head []string
	flex []int
	rows [][]cell
}

func (t *grid) add(cells ...cell) { t.rows = append(t.rows, cells) }

// words are cells without a shade.
func words(texts ...string) []cell {
	out := make([]cell, len(texts))
	for i, s := range texts {
		out[i].text = s
	}
	return out
}

const gap = 2

func (t *grid) widths(limit int) []int {
	widths := make([]int, len(t.head))
	total := gap * (len(t.head) - 1)
	for i, h := range t.head {
		widths[i] = len(h)
		for _, r := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i].text))
		}
		total += widths[i]
	}
	for total > limit {
		widest := -1
		for _, i := range t.flex {
			if widths[i] > len(t.head[i]) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
		total--
	}
	return widths
}

// write prints the grid; fit makes every text in it printable.
func (t *grid) write(s screen) error {
	widths := t.widths(s.width)
	var b strings.Builder
	line := func(cells []cell) {
		at := 0 // where the line stands; blanks come only before a text
		want := 0
		for i, c := range cells {
			text := fit(c.text, widths[i])
			if text != "" {
				b.WriteString(strings.Repeat(" ", want-at))
				b.WriteString(s.paint(text, c.shade))
				at = want + utf8.RuneCountInString(text)
			}
			want += widths[i] + gap
		}
		b.WriteByte('\n')
	}
	line(words(t.head...))
	for _, r := range t.rows {
		line(r)
	}
	_, err := io.WriteString(s.w, b.String())
	return err
}
