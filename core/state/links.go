package state

import (
	"context"
	"maps"
	"slices"
	"sort"
	"strings"

	"fleet.example/fleet/core/fault"
)

// Link says which SSH destination reaches a machine. The plane never learns it.
type Link struct {
	Machine  string   `json:"machine"`
	Name     string   `json:"name"` // last known
	Host     string   `json:"host"` // as the person types it
	SSHArgs  []string `json:"ssh_args,omitempty"`
	Account  string   `json:"account"`
	DataDir  string   `json:"data_dir"`
	Runtime  string   `json:"runtime_dir"`
	Scope    string   `json:"scope"`
	Manager  string   `json:"service_manager"`
	Artifact string   `json:"artifact"`       // content hash of the version last installed
	Last     string   `json:"last,omitempty"` // ok | host_key_changed | unreachable
	At       string   `json:"at,omitempty"`   // when Last was, RFC 3339
	Audience string   `json:"audience,omitempty"`
}

type linkFile struct {
	Links map[string]Link `json:"links"` // by machine id
}

// Links returns every link, in order of name and id.
func (p *Plane) Links() ([]Link, error) {
	var f linkFile
	if err := ReadJSON(p.file("links.json"), &f); err != nil {
		return nil, err
	}
	out := make([]Link, 0, len(f.Links))
	for _, l := range f.Links {
		out = append(out, l)
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Name != out[j].Name {
			return out[i].Name < out[j].Name
		}
		return out[i].Machine < out[j].Machine
	})
	return out, nil
}

// SaveLink adds or replaces the link of l.Machine, which was found at the link's
// end. Another machine's link that leads to the same directory is out of date,
// as that of one whose deletion the plane could not confirm any more.
func (p *Plane) SaveLink(ctx context.Context, l Link) error {
	return p.updateLinks(ctx, func(m map[string]Link) {
		maps.DeleteFunc(m, func(_ string, old Link) bool {
			return old.DataDir != "" && old.DataDir == l.DataDir && old.Host == l.Host && slices.Equal(old.SSHArgs, l.SSHArgs)
		})
		m[l.Machine] = l
	})
}

// RemoveLink forgets a machine's link. It reports whether there was one.
func (p *Plane) RemoveLink(ctx context.Context, machine string) (had bool, err error) {
	err = p.updateLinks(ctx, func(m map[string]Link) {
		_, had = m[machine]
		delete(m, machine)
	})
	return had, err
}

// UpdateLink changes the link of a machine, if there is one.
func (p *Plane) UpdateLink(ctx context.Context, machine string, change func(*Link)) error {
	return p.updateLinks(ctx, func(m map[string]Link) {
		if l, ok := m[machine]; ok {
			change(&l)
			m[machine] = l
		}
	})
}

func (p *Plane) updateLinks(ctx context.Context, change func(map[string]Link)) error {
	var f linkFile
	return UpdateJSON(ctx, p.file("links.json"), &f, func() error {
		if f.Links == nil {
			f.Links = map[string]Link{}
		}
		change(f.Links)
		return nil
	})
}

// FindLink finds the link that MACHINE means: an exact id, an exact name, then,
// unless exact is asked for, a unique prefix of either. Two that fit are a usage
// error that names them; none is found=false.
func FindLink(links []Link, machine string, exact bool) (l Link, found bool, err error) {
	matches := []func(Link) bool{
		func(l Link) bool { return l.Machine == machine },
		func(l Link) bool { return l.Name == machine },
		func(l Link) bool { return strings.HasPrefix(l.Machine, machine) || strings.HasPrefix(l.Name, machine) },
	}
	if exact {
		matches = matches[:2]
	}
	for _, match := range matches {
		var fit []Link
		for _, l := range links {
			if match(l) {
				fit = append(fit, l)
			}
		}
		switch {
		case len(fit) == 1:
			return fit[0], true, nil
		case len(fit) > 1:
			names := make([]string, len(fit))
			for i, l := range fit {
				names[i] = l.Name + " (" + l.Machine + ")"
			}
			return Link{}, false, fault.New(fault.Usage, "ambiguous", "%q means %d machines: %s", machine, len(fit), strings.Join(names, ", "))
		}
	}
	return Link{}, false, nil
}
