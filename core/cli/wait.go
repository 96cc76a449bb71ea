package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

func waitCommand() *command.Command {
	spec := fanout.Spec{Does: "wait for it", Cheap: true}
	return &command.Command{Name: "wait", Group: groupMachine, Args: "MACHINE|SELECTOR", Summary: "wait until a machine is in a state", Max: 1,
		Help: `Exit 8 when --timeout is over first. A ready machine is one that is present,
runs, and reported that nothing blocks it.

What selects machines does so once, at the beginning; all of them are waited for
at the same time.`,
		Flags: append(append(command.JSONFlags(true),
			&ufcli.StringFlag{Name: "for", Usage: "`STATE`: present, ready, stopped or absent", Value: wire.Present},
			command.DurationFlag("timeout", "give up after `D`; 0 waits for ever", 0)), spec.Flags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			test, ok := waitTests[c.String("for")]
			if !ok {
				return fault.Usagef("--for is one of present, ready, stopped, absent, not %q", c.String("for"))
			}
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			return onPlane(c, func(p *planeclient.Client) error {
				machines, err := sel.Machines(ctx, c, atPlane(p))
				if err != nil {
					return err
				}
				fetch := p.Machine
				if len(machines) > 1 {
					fetch = newRows(p, sel.Selector()).row
				}
				return sel.Each(ctx, c, machines, func(ctx context.Context, o *fanout.One) (fanout.Outcome, error) {
					return waitFor(ctx, o, test, fetch)
				}, nil)
			})
		}}
}

var waitTests = map[string]func(wire.Machine) bool{
	"present": func(m wire.Machine) bool { return m.Presence == wire.Present },
	"absent":  func(m wire.Machine) bool { return m.Presence == wire.Absent },
	"stopped": func(m wire.Machine) bool { return m.Lifecycle.State == wire.LifecycleStopped },
	"ready": func(m wire.Machine) bool {
		return m.Presence == wire.Present && m.Lifecycle.State == wire.LifecycleRunning && m.Readiness.State == wire.Ready
	},
}

// The first look after a miss comes soon; later ones keep a pace at which the
// plane learns something new.
const (
	firstLook = 200 * time.Millisecond
	slowLook  = 5 * time.Second
)

func waitFor(ctx context.Context, o *fanout.One, test func(wire.Machine) bool, fetch func(context.Context, string) (wire.Machine, error)) (fanout.Outcome, error) {
	m, err := fetch(ctx, o.ID)
	if err == nil {
		m, err = await(ctx, m, test, o.String("for"), o.Span("timeout"), func(ctx context.Context) (wire.Machine, error) { return fetch(ctx, m.ID) })
	}
	if err != nil {
		return fanout.Outcome{}, err
	}
	m.Schema = wire.SchemaMachine
	words := fmt.Sprintf("%s  %s  %s", clean(m.Presence), clean(m.Lifecycle.State), clean(m.Readiness.State))
	return fanout.Outcome{Document: m, Words: words, Show: func(c *command.Call) error {
		_, err := fmt.Fprintf(c.Stdout, "%s  %s\n", shown(m.Name, m.ID), words)
		return err
	}}, nil
}

// rows asks the plane for all machines of a label selector at once, so that
// waiting for a thousand costs it no more than waiting for one. Those that ask
// within one look share its answer.
type rows struct {
	plane    *planeclient.Client
	selector string

	mu   sync.Mutex
	at   time.Time
	by   map[string]wire.Machine
	err  error // what the last look met
	look time.Duration
}

func newRows(p *planeclient.Client, selector string) *rows {
	return &rows{plane: p, selector: selector, look: firstLook}
}

func (r *rows) row(ctx context.Context, id string) (wire.Machine, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) >= r.look {
		if !r.at.IsZero() {
			r.look = min(r.look*3/2, slowLook)
		}
		// States are left out: a machine that changes is the one to be seen.
		list, err := r.plane.Machines(ctx, wire.MachineFilter{Selector: r.selector})
		if ctx.Err() != nil {
			return wire.Machine{}, ctx.Err()
		}
		r.at, r.err, r.by = time.Now(), err, make(map[string]wire.Machine, len(list.Machines))
		for _, m := range list.Machines {
			r.by[m.ID] = m
		}
	}
	if r.err != nil {
		return wire.Machine{}, r.err
	}
	if m, ok := r.by[id]; ok {
		return m, nil
	}
	return r.plane.Machine(ctx, id) // it was deleted, or has other labels by now
}

// await asks for the machine, from m on, until test holds. A plane that does
// not answer for a while is waited for too. A limit of 0 is none.
func await(ctx context.Context, m wire.Machine, test func(wire.Machine) bool, want string, limit time.Duration, fetch func(context.Context) (wire.Machine, error)) (wire.Machine, error) {
	within := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for look := firstLook; !test(m); look = min(look*3/2, slowLook) {
		var next wire.Machine
		var err error
		select {
		case <-within.Done():
			err = within.Err()
		case <-time.After(look):
			next, err = fetch(within)
		}
		switch {
		case err == nil:
			m = next
		case ctx.Err() != nil:
			return m, ctx.Err()
		case within.Err() != nil:
			return m, fault.New(fault.NotYet, "not_yet", "after %v %s is not %s: it is %s, %s, %s", limit, shown(m.Name, m.ID), want,
				m.Presence, m.Lifecycle.State, m.Readiness.State)
		case fault.Of(err).Exit != fault.Unreachable:
			return m, err
		}
	}
	return m, nil
}
