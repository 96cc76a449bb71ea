package api

import (
	"fmt"
	"net/url"
	"strings"

	"fleet.example/fleet/core/wire"
)

// term is one condition of a selector.
type term struct {
	key, value string
	not        bool
}

// selector is a conjunction: k=v, k==v, k!=v, separated by commas. k!=v also
// selects machines without the label.
type selector []term

func parseSelector(s string) (selector, error) {
	if s == "" {
		return nil, nil
	}
	if len(s) > 4096 {
		return nil, fmt.Errorf("the selector is too long")
	}
	var sel selector
	for _, part := range strings.Split(s, ",") {
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q is no condition of the form k=v or k!=v", part)
		}
		t := term{key: k, value: strings.TrimPrefix(v, "=")}
		if strings.HasSuffix(k, "!") {
			t.key, t.not = strings.TrimSuffix(k, "!"), true
			t.value = v
		}
		if wire.CheckName(t.key) != nil || wire.CheckLabelValue(t.value) != nil {
			return nil, fmt.Errorf("%q is no condition of the form k=v or k!=v", part)
		}
		sel = append(sel, t)
	}
	return sel, nil
}

func (s selector) match(labels map[string]string) bool {
	for _, t := range s {
		v, ok := labels[t.key]
		if (ok && v == t.value) == t.not {
			return false
		}
	}
	return true
}

// filter is wire.MachineFilter made ready. Match is applied by the caller.
type filter struct {
	wire.MachineFilter
	sel selector
}

func parseFilter(q url.Values) (filter, error) {
	var f filter
	fields := map[string]*string{
		"match": &f.Match, "selector": &f.Selector, "presence": &f.Presence,
		"lifecycle": &f.Lifecycle, "blocker": &f.Blocker, "agent_version": &f.AgentVersion,
	}
	for k, v := range q {
		at := fields[k]
		if at == nil {
			return f, fmt.Errorf("machines cannot be selected by %q", k)
		}
		if len(v) != 1 || len(v[0]) > 4096 {
			return f, fmt.Errorf("%s stands once and is not that long", k)
		}
		*at = v[0]
	}
	if f.Presence != "" && f.Presence != wire.Present && f.Presence != wire.Absent && f.Presence != wire.Never {
		return f, fmt.Errorf("presence is present, absent or never, not %q", f.Presence)
	}
	switch f.Lifecycle {
	case "", wire.LifecycleRunning, wire.LifecycleStopped, wire.LifecycleUnknown, wire.LifecycleNever:
	default:
		return f, fmt.Errorf("lifecycle is running, stopped, unknown or never, not %q", f.Lifecycle)
	}
	var err error
	f.sel, err = parseSelector(f.Selector)
	return f, err
}

func (f *filter) match(m *wire.Machine) bool {
	if f.Presence != "" && m.Presence != f.Presence ||
		f.Lifecycle != "" && m.Lifecycle.State != f.Lifecycle ||
		f.AgentVersion != "" && m.Agent.Version != f.AgentVersion ||
		!f.sel.match(m.Labels) {
		return false
	}
	if f.Blocker == "" {
		return true
	}
	for _, b := range m.Readiness.Blockers {
		if b.Code == f.Blocker {
			return true
		}
	}
	return false
}
