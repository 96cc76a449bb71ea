package cli

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/wire"
)

// clean makes a string that came from elsewhere safe to show: what would
// control a terminal becomes a visible replacement.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// fit cleans s and shortens it to n characters.
func fit(s string, n int) string {
	s = clean(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// age shows a span as people say it: 4s, 3m, 5h, 2d.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

func ageOf(s *float64) string {
	if s == nil {
		return "-"
	}
	return age(time.Duration(*s * float64(time.Second)))
}

// colors paints words on a terminal that wants it.
type colors bool

func colorsOf(c *command.Call) colors {
	return colors(command.IsTerminal(c.Stdout) && c.Getenv("NO_COLOR") == "" && c.Getenv("TERM") != "dumb")
}

// state pads a word and paints it by what it means.
func (on colors) state(word string, width int) string {
	padded := fmt.Sprintf("%-*s", width, word)
	if !on {
		return padded
	}
	code := map[string]string{wire.Present: "32", wire.LifecycleRunning: "32", wire.Ready: "32",
		wire.Absent: "31", wire.Blocked: "33", wire.LifecycleStopped: "33", wire.LifecycleUnknown: "33"}[word]
	if code == "" {
		return padded
	}
	return "\x1b[" + code + "m" + padded + "\x1b[0m"
}
