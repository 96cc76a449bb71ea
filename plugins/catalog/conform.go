package catalog

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"fleet.example/fleet/plugins/catalog/lock"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
)

// SchemaPluginTest names the document of a conformance run.
const SchemaPluginTest = "fleet.plugin-test/v1"

// TestDoc is fleet.plugin-test/v1.
type TestDoc struct {
	Schema string         `json:"schema"`
	File   string         `json:"file"`
	Host   string         `json:"host"`   // empty: this machine
	Plugin *PluginDoc     `json:"plugin"` // null if it did not describe itself
	OK     bool           `json:"ok"`
	Checks []TestCheckDoc `json:"checks"`
}

// TestCheckDoc is one check.
type TestCheckDoc struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok | skipped | failed
	Detail string `json:"detail"`
}

// Ground is the machine that a plugin is tried out on.
type Ground struct {
	Name string // as the person calls it; empty for this machine
	Host sdk.Host
	// Service makes a place where a service manager may change things, and Clean
	// takes it away with whatever the plugin left there. Without them nothing is
	// changed.
	Service func(ctx context.Context) (conformance.ServiceEnv, error)
	Clean   func(ctx context.Context) error
	// Hops gives jump hosts on this machine, and the host that a transport asks
	// about them. Without it what needs some is skipped.
	Hops func() (Hops, error)
	// Relay is a command for a shell that connects its standard input and output
	// with an address. Without it what needs one is skipped.
	Relay func(host string, port int) string
	// Reach uses the machine over a transport's streams. Without it streams only
	// go to this machine.
	Reach func(ctx context.Context, d conformance.Dialer) error
}

// Test runs the conformance suite over the plugin at a path, which need not be
// locked: whoever names it wants it run.
func (c *Catalog) Test(ctx context.Context, path string, g Ground) (TestDoc, error) {
	doc := TestDoc{Schema: SchemaPluginTest, File: path, Host: g.Name, OK: true, Checks: []TestCheckDoc{}}
	add := func(checks ...conformance.Check) {
		for _, k := range checks {
			t := TestCheckDoc{Name: k.Name, Status: "ok", Detail: k.Detail}
			switch {
			case k.Skipped:
				t.Status = "skipped"
			case !k.OK:
				t.Status, doc.OK = "failed", false
			}
			doc.Checks = append(doc.Checks, t)
		}
	}
	outcome := func(name string, err error) bool {
		k := conformance.Check{Name: name, OK: err == nil}
		if err != nil {
			k.Detail = err.Error()
		}
		add(k)
		return err == nil
	}
	d, sum, err := c.Describe(ctx, path)
	if !outcome("it describes itself", err) {
		return doc, ctx.Err()
	}
	f := Found{
		Kind: d.Kind, Name: d.Name, Path: path, State: StateTaken,
		Entry: lock.Entry{File: filepath.Base(path), SHA256: sum, Description: d},
	}
	p := f.doc()
	p.Locked = false
	doc.Plugin = &p
	if code, why, _ := c.speaks(d); code != "" {
		outcome("it speaks a protocol of this fleet", errors.New(why))
		return doc, ctx.Err()
	}
	end, err := c.tryOut(ctx, f, g, add, outcome)
	if !outcome("it starts in time", err) {
		return doc, ctx.Err()
	}
	outcome("it ends when told, by itself", end())
	return doc, ctx.Err()
}

// tryOut launches the plugin and runs its kind's suite. The returned function
// ends it.
func (c *Catalog) tryOut(ctx context.Context, f Found, g Ground, add func(...conformance.Check), outcome func(string, error) bool) (end func() error, err error) {
	d := f.Entry.Description
	switch f.Kind {
	case sdk.KindProbe:
		probe, err := c.launchProbe(ctx, f)
		if err != nil {
			return nil, err
		}
		add(conformance.Probe(ctx, probe, conformance.ProbeEnv{Description: d, Host: g.Host})...)
		return probe.endsByItself, nil
	case sdk.KindTransport:
		return c.tryTransport(ctx, f, g, add, outcome)
	}
	s, err := c.launchService(ctx, f)
	if err != nil {
		return nil, err
	}
	facts, err := g.Host.Facts(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	env := conformance.ServiceEnv{Host: g.Host, Facts: facts, Spec: exampleSpec(facts)}
	if g.Service != nil {
		env, err = g.Service(ctx)
		defer func() { outcome("it leaves nothing behind", cleanUp(ctx, s, env, g.Clean)) }()
		if !outcome("the machine can take a service", err) {
			return s.endsByItself, nil
		}
	}
	env.Description = d
	add(conformance.Service(ctx, s, env)...)
	return s.endsByItself, nil
}

// Hops are jump hosts and the host that a transport asks about them.
type Hops interface {
	sdk.TransportHost
	conformance.Hops
	Close() error
}

// tryTransport tries out every way that a transport says it goes.
func (c *Catalog) tryTransport(ctx context.Context, f Found, g Ground, add func(...conformance.Check), outcome func(string, error) bool) (end func() error, err error) {
	var hops Hops
	if g.Hops != nil {
		if hops, err = g.Hops(); err != nil {
			return nil, err
		}
	}
	done := func() error {
		if hops == nil {
			return nil
		}
		return hops.Close()
	}
	var th sdk.TransportHost
	if hops != nil {
		th = hops
	}
	t, err := c.launchTransport(ctx, f, th)
	if err != nil {
		return nil, errors.Join(err, done())
	}
	ways := f.Entry.Description.Ways
	if len(ways) == 0 {
		ways = []string{sdk.WayDirect}
	}
	for _, way := range ways {
		env, complete, prefix := conformance.TransportEnv{Way: way, Hops: hops}, func(*sdk.Target) {}, ""
		switch {
		case way == sdk.WayDirect:
		case way == sdk.WayJumps && hops != nil:
			prefix = "over jump hosts: "
			complete = func(t *sdk.Target) { t.Jumps = hops.Hops() }
		case way == sdk.WayProgram && hops != nil && g.Relay != nil:
			prefix = "over a program: "
			complete = func(t *sdk.Target) {
				t.Proxy = sdk.Proxy{Command: g.Relay(t.Hop.Host, t.Hop.Port), Environ: os.Environ(), Dir: "/"}
			}
		default:
			add(conformance.Check{Name: "it goes the way " + way, OK: true, Skipped: true, Detail: "there is no such way to try out here"})
			continue
		}
		if way != sdk.WayDirect {
			env.Target = func(host string, port int) sdk.Target {
				t := sdk.Target{Destination: host, Hop: sdk.Hop{ID: "target", Host: host, Port: port, User: "nobody"}}
				complete(&t)
				return t
			}
		}
		checks := conformance.Transport(ctx, dialer{t}, env)
		for i := range checks {
			checks[i].Name = prefix + checks[i].Name
		}
		add(checks...)
		if g.Reach != nil {
			outcome(prefix+"it carries SSH to the machine", g.Reach(ctx, completed{dialer{t}, complete}))
		}
	}
	return func() error { return errors.Join(t.endsByItself(), done()) }, nil
}

// completed is a transport that is given what its way needs besides a target.
type completed struct {
	dialer
	complete func(*sdk.Target)
}

func (d completed) Dial(ctx context.Context, t sdk.Target) (net.Conn, error) {
	if len(t.Jumps) == 0 && t.Proxy.Command == "" {
		d.complete(&t)
	}
	return d.dialer.Dial(ctx, t)
}

// cleanUp ends a tryout whatever came of it: a person who interrupts one wants
// the machine back too.
func cleanUp(ctx context.Context, s *Service, env conformance.ServiceEnv, clean func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var disable, reload error
	if env.Live {
		disable = s.Disable(ctx, env.Host, env.Spec)
	}
	err := clean(ctx)
	if env.Live {
		reload = s.Reload(ctx, env.Host, env.Spec)
	}
	return errors.Join(disable, err, reload)
}

type dialer struct{ t *Transport }

func (d dialer) Dial(ctx context.Context, t sdk.Target) (net.Conn, error) {
	conn, _, err := d.t.Dial(ctx, t)
	return conn, err
}

// exampleSpec is an agent that nobody starts.
func exampleSpec(f sdk.Facts) sdk.Spec {
	return sdk.Spec{
		Name: "fleet-conformance", Scope: sdk.ScopeUser, User: f.User,
		Argv:    []string{"/srv/fleet-conformance/current/agentd", "run"},
		DataDir: "/srv/fleet-conformance", RuntimeDir: "/srv/fleet-conformance/run",
		LogFile: "/srv/fleet-conformance/log", Latch: "/srv/fleet-conformance/latch",
		StartTimeout: time.Minute, StopTimeout: 30 * time.Second,
	}
}

// endsByItself is Close that says whether the plugin had to be killed.
func (p *Process) endsByItself() error {
	err := p.Close()
	if how := p.proc.ended(); how != "exit status 0" && err == nil {
		err = errors.New("it had to be killed: " + how)
	}
	return err
}
