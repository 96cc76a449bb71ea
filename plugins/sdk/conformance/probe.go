package conformance

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// Prober is a probe in this process or in a plugin's.
type Prober interface {
	Codes(ctx context.Context) ([]string, error)
	Probe(ctx context.Context, h sdk.Host) ([]sdk.Finding, error)
}

// Local makes a probe of this process a Prober.
func Local(p sdk.Probe) Prober { return local{p} }

type local struct{ p sdk.Probe }

func (l local) Codes(context.Context) ([]string, error) { return l.p.Codes(), nil }

func (l local) Probe(ctx context.Context, h sdk.Host) ([]sdk.Finding, error) {
	return l.p.Probe(ctx, h)
}

// ProbeEnv is what the suite runs a probe against.
type ProbeEnv struct {
	Description sdk.Description
	Host        sdk.Host // nothing is changed there
}

var code = regexp.MustCompile(`^([a-z0-9][a-z0-9-]*\.)?[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// Probe runs the suite for probes.
func Probe(ctx context.Context, p Prober, env ProbeEnv) []Check {
	s := &suite{ctx: ctx}
	var codes []string
	s.check("codes are words, each once", func(ctx context.Context) (err error) {
		if codes, err = p.Codes(ctx); err != nil {
			return err
		}
		if len(codes) == 0 {
			return errors.New("there are no codes")
		}
		for i, c := range codes {
			if !code.MatchString(c) || len(c) > 63 {
				return fmt.Errorf("code %q is not lower-case words joined by underscores", c)
			}
			if slices.Contains(codes[:i], c) {
				return fmt.Errorf("code %q comes twice", c)
			}
		}
		return nil
	})

	h := &watched{Host: env.Host, desc: env.Description, phase: sdk.PhaseUnconfirmed}
	s.check("before a host key is confirmed only described commands run", func(ctx context.Context) error {
		_, err := p.Probe(ctx, h)
		if len(h.breaches) > 0 {
			return fmt.Errorf("ran %s, which the description does not list", strings.Join(h.breaches, ", "))
		}
		return err
	})

	resident := &watched{Host: env.Host, desc: env.Description, phase: sdk.PhaseResident}
	s.check("findings are complete and can be acted on", func(ctx context.Context) error {
		found, err := p.Probe(ctx, resident)
		if err != nil {
			return err
		}
		for i, f := range found {
			switch {
			case !slices.Contains(codes, f.Code):
				return fmt.Errorf("finding %q is none of the codes", f.Code)
			case slices.ContainsFunc(found[:i], func(o sdk.Finding) bool { return o.Code == f.Code }):
				return fmt.Errorf("finding %q comes twice", f.Code)
			case f.Severity != sdk.SeverityBlock && f.Severity != sdk.SeverityWarn:
				return fmt.Errorf("finding %q has severity %q", f.Code, f.Severity)
			case strings.TrimSpace(f.Detail) == "" || strings.TrimSpace(f.Remedy) == "":
				return fmt.Errorf("finding %q has no detail or no remedy", f.Code)
			case strings.ContainsAny(f.Detail+f.Remedy, "\n\r"):
				return fmt.Errorf("finding %q has more than one line", f.Code)
			}
		}
		return nil
	})

	s.check("a machine out of reach is an error, never an empty set", func(ctx context.Context) error { // R15
		if resident.calls == 0 {
			return skip("the probe asks nothing of the machine")
		}
		facts, err := resident.Facts(ctx)
		if err != nil {
			return err
		}
		if found, err := p.Probe(ctx, unreachable{facts}); err == nil {
			return fmt.Errorf("it found %d things on a machine that answers nothing", len(found))
		}
		return nil
	})

	s.check("ends with its context", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return soon(func() { _, _ = p.Probe(ctx, env.Host) })
	})
	return s.checks
}

// soon fails if f is not done in five seconds.
func soon(f func()) error {
	done := make(chan struct{})
	go func() { // a plugin that never returns keeps it; the suite is done then
		defer close(done)
		f()
	}()
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
		return errors.New("still going on 5 s after its context ended")
	}
}
