package fanout

import (
	"context"
	"fmt"
	"slices"
	"strings"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// SelectFlags select machines by what the plane knows of them.
func SelectFlags() []ufcli.Flag {
	return []ufcli.Flag{
		&ufcli.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "labels, as `K=V,K2!=V2`"},
		&ufcli.StringFlag{Name: "presence", Usage: "`STATE`: present, absent or never"},
		&ufcli.StringFlag{Name: "lifecycle", Usage: "`STATE`: running, stopped, unknown or never"},
		&ufcli.StringFlag{Name: "blocker", Usage: "`CODE` of a blocker"},
		&ufcli.StringFlag{Name: "agent-version", Usage: "`VERSION` that the agent says it is"},
	}
}

// Filter reads SelectFlags and checks what can be checked here.
func Filter(c *command.Call) (wire.MachineFilter, error) {
	var f wire.MachineFilter
	var given []string // asking for each flag has the library take every flag's names apart
	for _, level := range c.Lineage() {
		given = append(given, level.LocalFlagNames()...)
	}
	for _, one := range []struct {
		flag    string
		value   *string
		allowed []string
	}{
		{"selector", &f.Selector, nil},
		{"presence", &f.Presence, []string{wire.Present, wire.Absent, wire.Never}},
		{"lifecycle", &f.Lifecycle, []string{wire.LifecycleRunning, wire.LifecycleStopped, wire.LifecycleUnknown, wire.LifecycleNever}},
		{"blocker", &f.Blocker, nil},
		{"agent-version", &f.AgentVersion, nil},
	} {
		*one.value = c.String(one.flag)
		switch {
		case !slices.Contains(given, one.flag):
		case one.allowed != nil && !slices.Contains(one.allowed, *one.value):
			return f, fault.Usagef("--%s is one of %s, not %q", one.flag, strings.Join(one.allowed, ", "), *one.value)
		case *one.value == "":
			// An empty variable in a script must not come to mean every machine.
			return f, fault.Usagef("--%s is empty", one.flag).WithHint("--all selects every machine")
		}
	}
	if _, err := wire.ParseSelector(f.Selector); err != nil {
		return f, fault.Usagef("--selector: %s", err)
	}
	return f, nil
}

// CheckWord refuses a word that can mean no machine: that is so whatever the
// plane knows, and is said before it is asked.
func CheckWord(word string) error {
	if !wire.IsMachineID(word) && wire.CheckName(word) != nil {
		return fault.Usagef("%q is neither a machine's id nor a name: %s", command.Clean(word), wire.ErrName)
	}
	return nil
}

// Selection is what a call says of machines.
type Selection struct {
	// Rest are the arguments that name no machine, with Spec.Trailing.
	Rest []string

	spec   Spec
	filter wire.MachineFilter
	words  []string
	all    bool
}

// Many reports whether there are results rather than one machine's answer:
// whenever a selector selects, whatever it finds, and for several words.
func (s *Selection) Many() bool { return s.bySelector() || len(s.words) > 1 }

func (s *Selection) bySelector() bool { return s.all || s.filter != (wire.MachineFilter{}) }

// Selector is the label selector that the call gives.
func (s *Selection) Selector() string { return s.filter.Selector }

// Parse reads what the call says of machines. Nothing is asked yet.
func (s Spec) Parse(c *command.Call) (*Selection, error) {
	f, err := Filter(c)
	if err != nil {
		return nil, err
	}
	sel := &Selection{spec: s, filter: f, all: c.Bool("all"), words: c.Args}
	switch {
	case sel.all && f != (wire.MachineFilter{}):
		return nil, fault.Usagef("--all and a selector do not go together")
	case !sel.bySelector() && len(c.Args) == 0:
		return nil, fault.Usagef("MACHINE is missing, or what selects machines").WithHint("usage: %s", c.Usage)
	case s.Trailing && sel.bySelector():
		sel.words, sel.Rest = nil, c.Args
	case s.Trailing:
		sel.words, sel.Rest = c.Args[:1], c.Args[1:]
	case sel.bySelector() && len(c.Args) > 0:
		return nil, fault.Usagef("name machines or select them, not both")
	}
	for _, word := range sel.words {
		if err := CheckWord(word); err != nil {
			return nil, err
		}
	}
	if !s.Cheap && c.Int("parallel") < 1 || c.Int("max-failed") < 0 {
		return nil, fault.Usagef("--parallel takes a number from 1, --max-failed one from 0")
	}
	if s.Destructive && sel.bySelector() && !c.Bool("yes") && !c.Bool("dry-run") {
		return nil, fault.Usagef("what is selected needs --yes: this cannot be undone").WithHint("--dry-run names the machines")
	}
	if !s.Several && !sel.bySelector() {
		for _, name := range []string{"parallel", "max-failed"} {
			if c.Given(name) {
				return nil, fault.Usagef("--%s is for many machines, and one is named", name)
			}
		}
	}
	return sel, nil
}

// Find says which machine a word means.
type Find func(ctx context.Context, c *command.Call, word string) (Machine, error)

// Machines finds the machines, each once, by name and then id. A word that
// means none is an error, and then nothing is done to the others. A selector
// that selects none is not.
func (s *Selection) Machines(ctx context.Context, c *command.Call, find Find) ([]Machine, error) {
	var out []Machine
	if s.bySelector() {
		p, client, err := operator.Plane(c)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		list, err := client.Machines(ctx, s.filter)
		if err != nil {
			return nil, err
		}
		if out, err = withLinks(p, list.Machines); err != nil {
			return nil, err
		}
	}
	for _, word := range s.words {
		m, err := find(ctx, c, word)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	slices.SortStableFunc(out, func(a, b Machine) int {
		if n := strings.Compare(a.Name, b.Name); n != 0 {
			return n
		}
		return strings.Compare(a.ID, b.ID)
	})
	// One id may have been found under two names: its link's and the plane's.
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(m Machine) bool {
		was := seen[m.ID]
		seen[m.ID] = true
		return was
	}), nil
}

func withLinks(p *state.Plane, rows []wire.Machine) ([]Machine, error) {
	links, err := p.Links()
	if err != nil {
		return nil, err
	}
	by := make(map[string]*state.Link, len(links))
	for i := range links {
		by[links[i].Machine] = &links[i]
	}
	out := make([]Machine, len(rows))
	for i, m := range rows {
		out[i] = Machine{ID: m.ID, Name: m.Name, Link: by[m.ID]}
	}
	return out, nil
}

// Linked finds a machine among the links, then asks the plane. A machine that is
// called exactly so, here or there, comes before one whose name only begins so:
// where the plane cannot be asked, a prefix is not taken, since it could reach
// another machine than the one that is meant.
func Linked(ctx context.Context, c *command.Call, word string) (Machine, error) {
	p, links, err := known(c)
	if err != nil {
		return Machine{}, err
	}
	l, found, err := state.FindLink(links, word, true)
	if err != nil {
		return Machine{}, err
	}
	if found {
		return ofLink(l), nil
	}
	l, found, several := state.FindLink(links, word, false)
	begins := found || several != nil
	_, client, err := operator.Plane(c)
	if err != nil {
		if begins {
			return Machine{}, unsure(word, l, several, err)
		}
		return Machine{}, NoDestination(Machine{Name: word}, word)
	}
	defer client.Close()
	m, err := AtPlane(ctx, client, word, begins)
	switch f := fault.Of(err); {
	case err == nil:
		return withLink(p, m)
	case ctx.Err() != nil:
		return Machine{}, ctx.Err()
	case several != nil && f.Exit == fault.NotFound:
		return Machine{}, several
	case found && f.Exit == fault.NotFound:
		return ofLink(l), nil
	case begins:
		return Machine{}, unsure(word, l, several, err)
	case f.Exit == fault.NotFound || f.Exit == fault.Usage:
		return Machine{}, err
	}
	// It does not answer; the link is what is missing in any case.
	return Machine{}, NoDestination(Machine{Name: word}, word)
}

// unsure says why a prefix of a link's name is not taken.
func unsure(word string, l state.Link, several, err error) error {
	if several != nil {
		return several
	}
	f := fault.Of(err)
	return fault.New(f.Exit, f.Code, "%q is only how %s begins, and whether a machine is called exactly that is for the plane to say: %s",
		word, ofLink(l).Label(), f.Msg).WithHint("give the whole name, or the id")
}

func known(c *command.Call) (*state.Plane, []state.Link, error) {
	p, err := operator.Known(c)
	if err != nil {
		return nil, nil, err
	}
	links, err := p.Links()
	return p, links, err
}

func ofLink(l state.Link) Machine { return Machine{ID: l.Machine, Name: l.Name, Link: &l} }

// LinkedExactly is Linked without prefixes, for what cannot be undone: such a
// thing is not done on a name that only a link vouches for.
func LinkedExactly(ctx context.Context, c *command.Call, word string) (Machine, error) {
	p, links, err := known(c)
	if err != nil {
		return Machine{}, err
	}
	l, found, err := state.FindLink(links, word, true)
	if err != nil {
		return Machine{}, err
	}
	if found && l.Machine == word {
		return ofLink(l), nil
	}
	_, client, err := operator.Plane(c)
	if err != nil {
		if found {
			return Machine{}, err
		}
		return Machine{}, NoDestination(Machine{Name: word}, word)
	}
	defer client.Close()
	m, err := AtPlane(ctx, client, word, true)
	switch f := fault.Of(err); {
	case found && err == nil && m.ID != l.Machine:
		// A link keeps the last name that it knew. What cannot be undone does
		// not choose between that and what the name means by now.
		return Machine{}, fault.New(fault.Usage, "ambiguous", "%q is %s at the plane, and the link here that knew this name is of %s", word, m.ID, l.Machine).
			WithHint("give the id")
	case found && (err == nil || f.Exit == fault.NotFound):
		return ofLink(l), nil
	case found:
		return Machine{}, err
	case err == nil:
		return withLink(p, m)
	case ctx.Err() != nil:
		return Machine{}, ctx.Err()
	case f.Exit == fault.NotFound || f.Exit == fault.Usage:
		return Machine{}, err
	}
	return Machine{}, NoDestination(Machine{Name: word}, word)
}

// withLink is for a machine that has another name by now than its link knows.
func withLink(p *state.Plane, m wire.Machine) (Machine, error) {
	out, err := withLinks(p, []wire.Machine{m})
	if err != nil {
		return Machine{}, err
	}
	return out[0], nil
}

// AtPlane finds the machine that a word means at the plane: an exact id, an
// exact name, then a unique prefix. exact leaves prefixes out, for what cannot
// be undone.
func AtPlane(ctx context.Context, p *planeclient.Client, word string, exact bool) (wire.Machine, error) {
	var none wire.Machine
	if wire.IsMachineID(word) {
		return p.Machine(ctx, word)
	}
	if err := CheckWord(word); err != nil {
		return none, err
	}
	found, err := p.Machines(ctx, wire.MachineFilter{Match: word})
	if err != nil {
		return none, err
	}
	var fit []wire.Machine
	for _, m := range found.Machines {
		if !exact || m.ID == word || m.Name == word {
			fit = append(fit, m)
		}
	}
	switch len(fit) {
	case 1:
		return fit[0], nil
	case 0:
		err := fault.New(fault.NotFound, wire.CodeNotFound, "no machine %q", word)
		if len(found.Machines) > 0 {
			err = err.WithHint("what cannot be undone takes no prefix; give the exact name or the id")
		}
		return none, err
	}
	names := make([]string, 0, len(fit))
	for _, m := range fit {
		names = append(names, fmt.Sprintf("%s (%s)", command.Clean(m.Name), m.ID))
	}
	return none, fault.New(fault.Usage, "ambiguous", "%q means %d machines: %s", word, len(fit), strings.Join(names, ", "))
}
