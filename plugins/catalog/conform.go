package catalog

import (
	"context"
	"errors"
	"net"
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

// Test runs the conformance suite over the plugin at a path, which need not be
// locked: whoever names it wants it run. It changes nothing on h, the machine
// that it is tried against.
func (c *Catalog) Test(ctx context.Context, path string, h sdk.Host) (TestDoc, error) {
	doc := TestDoc{Schema: SchemaPluginTest, File: path, OK: true, Checks: []TestCheckDoc{}}
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
	end, err := c.tryOut(ctx, f, h, add)
	if !outcome("it starts in time", err) {
		return doc, ctx.Err()
	}
	outcome("it ends when told, by itself", end())
	return doc, ctx.Err()
}

// tryOut launches the plugin and runs its kind's suite. The returned function
// ends it.
func (c *Catalog) tryOut(ctx context.Context, f Found, h sdk.Host, add func(...conformance.Check)) (end func() error, err error) {
	d := f.Entry.Description
	var p *Process
	switch f.Kind {
	case sdk.KindProbe:
		probe, err := c.launchProbe(ctx, f)
		if err != nil {
			return nil, err
		}
		p = probe.Process
		add(conformance.Probe(ctx, probe, conformance.ProbeEnv{Description: d, Host: h})...)
	case sdk.KindService:
		s, err := c.launchService(ctx, f)
		if err != nil {
			return nil, err
		}
		p = s.Process
		facts, err := h.Facts(ctx)
		if err != nil {
			return p.Close, err
		}
		add(conformance.Service(ctx, s, conformance.ServiceEnv{
			Description: d, Host: h, Facts: facts, Spec: exampleSpec(facts),
		})...)
	case sdk.KindTransport:
		t, err := c.launchTransport(ctx, f, nil)
		if err != nil {
			return nil, err
		}
		p = t.Process
		add(conformance.Transport(ctx, dialer{t}, conformance.TransportEnv{})...)
	}
	return p.endsByItself, nil
}

type dialer struct{ t *Transport }

func (d dialer) Dial(ctx context.Context, t sdk.Target) (net.Conn, error) { return d.t.Dial(ctx, t) }

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
