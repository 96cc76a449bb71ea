package wire

import (
	"fmt"
	"strings"
)

// Selector is a conjunction of conditions on labels: k=v, k==v, k!=v, separated
// by commas. k!=v also selects machines without the label.
type Selector []SelectorTerm

// SelectorTerm is one condition.
type SelectorTerm struct {
	Key, Value string
	Not        bool
}

// maxSelector bounds a selector, in bytes.
const maxSelector = 4096

// ParseSelector reads a selector. The empty one selects everything.
func ParseSelector(s string) (Selector, error) {
	if s == "" {
		return nil, nil
	}
	if len(s) > maxSelector {
		return nil, fmt.Errorf("the selector is too long")
	}
	var sel Selector
	for _, part := range strings.Split(s, ",") {
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q is no condition of the form k=v or k!=v", part)
		}
		t := SelectorTerm{Key: k, Value: strings.TrimPrefix(v, "=")}
		if strings.HasSuffix(k, "!") {
			t.Key, t.Not = strings.TrimSuffix(k, "!"), true
			t.Value = v
		}
		if CheckName(t.Key) != nil || CheckLabelValue(t.Value) != nil {
			return nil, fmt.Errorf("%q is no condition of the form k=v or k!=v", part)
		}
		sel = append(sel, t)
	}
	return sel, nil
}

// Match reports whether labels meet every condition.
func (s Selector) Match(labels map[string]string) bool {
	for _, t := range s {
		v, ok := labels[t.Key]
		if (ok && v == t.Value) == t.Not {
			return false
		}
	}
	return true
}
