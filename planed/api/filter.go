package api

import (
	"fmt"
	"net/url"

	"fleet.example/fleet/core/wire"
)

// filter is wire.MachineFilter made ready. Match is applied by the caller.
type filter struct {
	wire.MachineFilter
	sel wire.Selector
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
	f.sel, err = wire.ParseSelector(f.Selector)
	return f, err
}

func (f *filter) match(m *wire.Machine) bool {
	if f.Presence != "" && m.Presence != f.Presence ||
		f.Lifecycle != "" && m.Lifecycle.State != f.Lifecycle ||
		f.AgentVersion != "" && m.Agent.Version != f.AgentVersion ||
		!f.sel.Match(m.Labels) {
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
