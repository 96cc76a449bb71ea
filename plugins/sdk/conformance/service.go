package conformance

import (
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// ServiceEnv is what the suite runs a service manager against.
type ServiceEnv struct {
	Description sdk.Description
	Host        sdk.Host
	// Facts and Spec are what Render is asked with. The spec's program must end
	// on SIGTERM and, if Live, really run.
	Facts sdk.Facts
	Spec  sdk.Spec
	// Live allows changes: the service is registered, started, stopped and
	// removed. Write and Remove do the host's part with rendered files; SetLatch
	// makes and removes the latch.
	Live     bool
	Write    func([]sdk.File) error
	Remove   func([]sdk.File) error
	SetLatch func(on bool) error
}

// awkward are strings that a home directory may contain.
var awkward = []string{
	"with space", "quote'single", `quote"double`, `back\slash`, "dollar$HOME", "percent%h%%", "semi;colon",
	"amp&<tag>", "ünïcødé-日本", "glob*?[x]", "equals=sign", "tilde~", "brace{a,b}", "hash#mark", "paren(s)", "!bang", "`tick`",
}

// Service runs the suite for service managers.
func Service(ctx context.Context, m sdk.ServiceManager, env ServiceEnv) []Check {
	s := &suite{ctx: ctx}
	var found sdk.Detection
	s.check("before a host key is confirmed only described commands run", func(ctx context.Context) error {
		h := &watched{Host: env.Host, desc: env.Description, phase: sdk.PhaseUnconfirmed}
		d, err := m.Detect(ctx, h)
		if len(h.breaches) > 0 {
			return fmt.Errorf("ran %s, which the description does not list", strings.Join(h.breaches, ", "))
		}
		found = d
		return err
	})
	s.check("detect explains its score", func(context.Context) error {
		switch {
		case found.Score < 0 || found.Score > 100:
			return fmt.Errorf("score %d", found.Score)
		case found.Reason == "":
			return errors.New("there is no reason")
		case found.Score > 0 && len(found.Scopes) == 0:
			return errors.New("it can serve, in no scope")
		}
		return nil
	})
	s.check("render is pure", func(ctx context.Context) error {
		a, err := m.Render(ctx, env.Facts, env.Spec)
		if err != nil {
			return err
		}
		b, err := m.Render(ctx, env.Facts, env.Spec)
		if err != nil {
			return err
		}
		if !reflect.DeepEqual(a, b) {
			return errors.New("the same facts and spec gave other files")
		}
		return renderedWell(a, env.Spec)
	})
	s.check("render takes awkward directories or refuses them", func(ctx context.Context) error {
		for _, a := range awkward {
			spec := moved(env.Spec, path.Join("/srv", a))
			r, err := m.Render(ctx, env.Facts, spec)
			if err != nil {
				continue
			}
			if err := renderedWell(r, spec); err != nil {
				return fmt.Errorf("%q: %w", a, err)
			}
		}
		return nil
	})
	s.check("render refuses what would be another file", func(ctx context.Context) error {
		for _, a := range []string{"line\nExecStartPre=/bin/injected", "cr\rinjected", "nul\x00injected", "not\xffutf8"} {
			spec := moved(env.Spec, path.Join("/srv", a))
			if r, err := m.Render(ctx, env.Facts, spec); err == nil {
				return fmt.Errorf("%q gave %q", a, r.Files[0].Content)
			}
		}
		for _, name := range []string{"", "../x", "a/b", "a b", "a\nb"} {
			spec := env.Spec
			spec.Name = name
			if _, err := m.Render(ctx, env.Facts, spec); err == nil {
				return fmt.Errorf("name %q was taken", name)
			}
		}
		return nil
	})
	s.check("a machine out of reach is an error or unknown, never absent", func(ctx context.Context) error {
		st, err := m.Status(ctx, unreachable{env.Facts}, env.Spec)
		if err == nil && st.State != sdk.StateUnknown {
			return fmt.Errorf("status is %q", st.State)
		}
		return nil
	})
	s.check("ends with its context", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return soon(func() { _, _ = m.Status(ctx, env.Host, env.Spec) })
	})
	if !env.Live {
		s.check("the service's life", func(context.Context) error { return skip("nothing may be changed here") })
		return s.checks
	}
	s.check("the machine's facts fit this manager", func(context.Context) error {
		if found.Score == 0 || !slices.Contains(found.Scopes, env.Spec.Scope) {
			return fmt.Errorf("it cannot serve scope %s here: %s", env.Spec.Scope, found.Reason)
		}
		return nil
	})
	life(s, m, env, found)
	return s.checks
}

// moved is the spec of an installation in another directory.
func moved(s sdk.Spec, dir string) sdk.Spec {
	s.DataDir, s.Latch, s.LogFile = dir, path.Join(dir, "latch"), path.Join(dir, "log")
	s.Argv = append([]string{path.Join(dir, "agentd")}, s.Argv[1:]...)
	s.Argv = append(s.Argv, "--data", dir)
	return s
}

func renderedWell(r sdk.Rendered, spec sdk.Spec) error {
	if r.Unit == "" || len(r.Files) == 0 {
		return errors.New("no unit or no files")
	}
	for _, f := range r.Files {
		switch {
		case !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path:
			return fmt.Errorf("path %q is not absolute and clean", f.Path)
		case f.Mode.Perm()&0o022 != 0 || f.Mode.Perm()&0o400 == 0:
			return fmt.Errorf("%s has mode %04o", f.Path, f.Mode.Perm())
		case f.Owner != "root" && f.Owner != spec.User:
			return fmt.Errorf("%s belongs to %q", f.Path, f.Owner)
		case len(f.Content) == 0:
			return fmt.Errorf("%s is empty", f.Path)
		}
	}
	return nil
}

// life goes through a service's life on a machine that may be changed.
func life(s *suite, m sdk.ServiceManager, env ServiceEnv, found sdk.Detection) {
	h := &watched{Host: env.Host, desc: env.Description, phase: sdk.PhaseChange}
	spec := env.Spec
	is := func(ctx context.Context, want ...sdk.State) (sdk.Status, error) {
		var st sdk.Status
		var err error
		for {
			if st, err = m.Status(ctx, h, spec); err == nil && slices.Contains(want, st.State) {
				return st, nil
			}
			t := time.NewTimer(100 * time.Millisecond)
			select {
			case <-ctx.Done():
				t.Stop()
				return st, fmt.Errorf("status is %q (%s), not %q: %v", st.State, st.Detail, want, err)
			case <-t.C:
			}
		}
	}
	// Each step needs the one before it.
	ok := true
	step := func(name string, f func(ctx context.Context) error) {
		s.checkFor(stepPatience, name, func(ctx context.Context) error {
			if !ok {
				return skip("a step before it did not hold")
			}
			err := f(ctx)
			if _, skipped := err.(skip); !skipped {
				ok = err == nil
			}
			return err
		})
	}
	// A manager may be unable to start the service with the machine, if it says why.
	enable := func(ctx context.Context) (atBoot bool, err error) {
		err = m.Enable(ctx, h, spec)
		if errors.Is(err, sdk.ErrUnsupported) && strings.TrimSpace(err.Error()) != sdk.ErrUnsupported.Error() {
			return false, nil
		}
		return err == nil, err
	}
	var r sdk.Rendered
	var pid int
	var atBoot bool
	step("before an install it is absent", func(ctx context.Context) (err error) {
		if _, err = is(ctx, sdk.StateAbsent); err != nil {
			return err
		}
		r, err = m.Render(ctx, env.Facts, spec)
		return err
	})
	step("removing what is not there is no error", func(ctx context.Context) error {
		return errors.Join(m.Stop(ctx, h, spec), m.Disable(ctx, h, spec))
	})
	step("it starts, and says so", func(ctx context.Context) error {
		if err := env.Write(r.Files); err != nil {
			return err
		}
		if err := m.Reload(ctx, h, spec); err != nil {
			return err
		}
		var err error
		if atBoot, err = enable(ctx); err != nil {
			return err
		}
		_ = m.Start(ctx, h, spec) // Status judges
		st, err := is(ctx, sdk.StateRunning)
		switch {
		case err != nil:
			return err
		case st.PID == 0:
			return errors.New("it runs without a process")
		case st.AtBoot != atBoot:
			return fmt.Errorf("enable and status do not agree on whether it starts with the machine: status says %t", st.AtBoot)
		}
		pid = st.PID
		return nil
	})
	step("starting again changes nothing", func(ctx context.Context) error {
		_ = m.Start(ctx, h, spec)
		if _, err := enable(ctx); err != nil {
			return err
		}
		st, err := is(ctx, sdk.StateRunning)
		if err == nil && st.PID != pid {
			return fmt.Errorf("process %d became %d", pid, st.PID)
		}
		return err
	})
	step("a restart is another process", func(ctx context.Context) error {
		if err := m.Restart(ctx, h, spec); err != nil {
			return err
		}
		st, err := is(ctx, sdk.StateRunning)
		if err == nil && st.PID == pid {
			return fmt.Errorf("process %d is the same", pid)
		}
		return err
	})
	step("it stops, and stopping again is no error", func(ctx context.Context) error {
		if err := errors.Join(m.Stop(ctx, h, spec), m.Stop(ctx, h, spec)); err != nil {
			return err
		}
		_, err := is(ctx, sdk.StateStopped)
		return err
	})
	step("the latch holds it", func(ctx context.Context) error { // R29
		if !found.LatchAware {
			return skip("the manager does not see the latch, and says so")
		}
		if err := env.SetLatch(true); err != nil {
			return err
		}
		_ = m.Start(ctx, h, spec)
		if st, err := is(ctx, sdk.StateStopped); err != nil {
			return err
		} else if st.PID != 0 {
			return fmt.Errorf("process %d runs beside the latch", st.PID)
		}
		if err := env.SetLatch(false); err != nil {
			return err
		}
		_ = m.Start(ctx, h, spec)
		_, err := is(ctx, sdk.StateRunning)
		return err
	})
	step("it goes without a trace", func(ctx context.Context) error {
		_ = m.Start(ctx, h, spec)
		if err := m.Disable(ctx, h, spec); err != nil {
			return err
		}
		if err := env.Remove(r.Files); err != nil {
			return err
		}
		if err := m.Reload(ctx, h, spec); err != nil {
			return err
		}
		_, err := is(ctx, sdk.StateAbsent)
		return err
	})
}
