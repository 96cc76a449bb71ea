package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/wire"
)

// clean makes a string that came from elsewhere safe to show.
func clean(s string) string { return command.Clean(s) }

// fit cleans s and shortens it to n characters.
func fit(s string, n int) string { return command.Fit(s, n) }

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

// shadeOf says how one of the plane's words stands out.
func shadeOf(word string) shade {
	switch word {
	case wire.Present, wire.LifecycleRunning, wire.Ready:
		return good
	case wire.Absent:
		return bad
	case wire.Blocked, wire.LifecycleStopped, wire.LifecycleUnknown:
		return warning
	}
	return plain
}

// shown is what a machine is called: its name, or its id while it has none.
func shown(name, id string) string {
	if name == "" {
		return clean(id)
	}
	return clean(name)
}

// pairs are k=v in the order of the keys.
func pairs(m map[string]string) string {
	out := make([]string, 0, len(m))
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return clean(strings.Join(out, ","))
}
