package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/service"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/sdk"
)

// SpecOf is the service of an installation.
func SpecOf(d place.Dirs, scope, account string) sdk.Spec { return service.Spec(d, scope, account) }

// chooseManager launches the service-manager plugin: the recorded one, the one
// that was named, or the one that scores best on this machine.
func (r *run) chooseManager(ctx context.Context) (Manager, error) {
	want := r.o.Manager
	if want == "auto" || want == "" {
		want = ""
		if r.record != nil && r.record.Scope == r.scope {
			return r.Launch(ctx, r.record.Manager)
		}
	}
	if want != "" {
		if r.record != nil && r.record.Manager != want {
			return nil, fault.New(fault.Refused, "service_manager", "the machine's agent is registered with %s", r.record.Manager).
				WithHint("fleet uninstall it first to change the service manager")
		}
		m, err := r.Launch(ctx, want)
		if err != nil {
			return nil, err
		}
		d, err := m.Detect(ctx, r.host.For(m.Description()))
		if err == nil && !usable(d, r.scope) {
			err = fault.New(fault.Refused, "service_manager", "%s cannot serve here in %s scope: %s", want, r.scope, d.Reason)
		}
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		r.detected = &d
		return m, nil
	}
	return r.bestManager(ctx)
}

// candidate is a launched manager and what it says of the machine.
type candidate struct {
	manager Manager
	found   sdk.Detection
	err     error
}

// bestManager launches every manager that acts on the machine's platform, all
// at once since a launch is mostly waiting, and keeps the one with the best
// score.
func (r *run) bestManager(ctx context.Context) (Manager, error) {
	names := r.Managers(r.facts.GOOS, r.facts.GOARCH)
	all := make([]candidate, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			c := &all[i]
			if c.manager, c.err = r.Launch(ctx, name); c.err == nil {
				c.found, c.err = c.manager.Detect(ctx, r.host.For(c.manager.Description()))
			}
		})
	}
	wg.Wait()
	best := -1
	var why []string
	for i, c := range all {
		switch {
		case c.err != nil:
			why = append(why, names[i]+": "+c.err.Error())
		case !usable(c.found, r.scope):
			why = append(why, names[i]+": "+c.found.Reason)
		case best < 0 || c.found.Score > all[best].found.Score:
			best = i
		}
	}
	for i, c := range all {
		if i == best || c.manager == nil {
			continue
		}
		if err := c.manager.Close(); err != nil {
			r.Notef("cannot end the service plugin: %v", err)
		}
	}
	if best < 0 {
		return nil, noManager(r.scope, why)
	}
	for _, w := range why {
		r.Notef("service plugin %s", w)
	}
	r.detected = &all[best].found
	return all[best].manager, nil
}

func noManager(scope string, why []string) error {
	f := fault.New(fault.Refused, "service_manager", "no service manager can serve the agent in %s scope: %s", scope, strings.Join(why, "; "))
	if scope == place.System {
		return f.WithHint("use --scope user, which needs none of them")
	}
	return f
}

func usable(d sdk.Detection, scope string) bool {
	return d.Score > 0 && slices.Contains(d.Scopes, sdk.Scope(scope))
}

// service registers the agent, and starts it unless a person stopped it.
func (r *run) service(ctx context.Context) (bool, string, error) {
	h := r.host.For(r.manager.Description())
	facts, err := h.Facts(ctx)
	if err != nil {
		return false, "", err
	}
	spec := SpecOf(r.dirs, r.scope, r.facts.User)
	rendered, err := r.manager.Render(ctx, facts, spec)
	if err != nil {
		return false, "", err
	}
	changed := false
	for _, f := range rendered.Files {
		c, err := r.host.WriteFile(ctx, f.Path, f.Content, f.Mode, f.Owner == "root")
		if err != nil {
			return false, "", err
		}
		changed = changed || c
	}
	if err := r.writeRecord(ctx, rendered); err != nil {
		return false, "", err
	}
	moved, err := r.listen(ctx)
	if err != nil {
		return false, "", err
	}
	if changed {
		if err := r.manager.Reload(ctx, h, spec); err != nil {
			return false, "", err
		}
	}
	before, err := r.manager.Status(ctx, h, spec)
	if err != nil {
		return false, "", err
	}
	caveats := rendered.Caveats
	if changed || !before.AtBoot {
		err := r.manager.Enable(ctx, h, spec)
		switch {
		case errors.Is(err, sdk.ErrUnsupported):
			caveats = append(slices.Clone(caveats), "the agent does not come back after a reboot: "+strings.TrimPrefix(err.Error(), sdk.ErrUnsupported.Error()+": "))
		case err != nil:
			return false, "", err
		}
	}
	detail := r.linger(ctx, h, spec, caveats)
	if r.found.latched {
		return false, "", fault.New(fault.Refused, "stopped", "the agent is installed and a person stopped it on purpose; an install does not start it").
			WithHint("fleet start %s", r.admitted.Machine)
	}
	running := before.State == sdk.StateRunning
	// An install that died after the switch left the former version running.
	stale := running && (r.switched || moved || !r.runsCurrent(ctx, r.runs))
	switch {
	case stale:
		if err := r.restartAgent(ctx, h, spec); err != nil {
			return false, "", err
		}
	case running && changed:
		if err := r.manager.Restart(ctx, h, spec); err != nil {
			return false, "", err
		}
	case !running:
		// Status judges, not the exit code.
		if err := r.manager.Start(ctx, h, spec); err != nil {
			r.Notef("start: %v", err)
		}
	}
	if err := awaitRunning(ctx, r.manager, h, spec); err != nil {
		return false, "", err
	}
	return running && !changed && !stale, detail, nil
}

// listen leaves on the machine where the agent serves its loopback port. It
// stands in the data directory, so that updates, rollbacks and service managers
// have no say in it.
func (r *run) listen(ctx context.Context) (changed bool, err error) {
	if r.o.Listen == "" {
		return false, nil
	}
	file := path.Join(r.dirs.Data, place.ListenFile)
	if r.o.Listen != "off" {
		if changed, err = r.host.WriteFile(ctx, file, []byte(r.o.Listen+"\n"), 0o600, false); err != nil {
			return false, fmt.Errorf("cannot write where the agent listens: %w", err)
		}
		return changed, nil
	}
	if _, _, err := r.host.ReadFile(ctx, file, 0); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, r.host.Remove(ctx, false, file)
}

// linger turns lingering on where it matters, and says so where it cannot.
func (r *run) linger(ctx context.Context, h sdk.Host, spec sdk.Spec, caveats []string) string {
	said := slices.Clone(caveats)
	if spec.Scope == sdk.ScopeUser {
		l, err := r.manager.Linger(ctx, h, spec, true)
		if err == nil && !l.Enabled && r.facts.UID != 0 {
			// Root's rights may help where the account's do not.
			if r.facts.Sudo, err = r.conn.Sudo(ctx); err == nil && r.facts.Sudo {
				l, err = r.manager.Linger(ctx, h, spec, true)
			}
		}
		switch {
		case errors.Is(err, sdk.ErrUnsupported):
		case err != nil:
			said = append(said, "cannot tell whether the account lingers: "+err.Error())
		case !l.Enabled:
			said = append(said, "the agent will end with the account's last login: "+l.Remedy)
		}
	}
	return strings.Join(said, "; ")
}

func awaitRunning(ctx context.Context, m Manager, h sdk.Host, spec sdk.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, service.StartTimeout+5*time.Second)
	defer cancel()
	wait := 50 * time.Millisecond
	for {
		st, err := m.Status(ctx, h, spec)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if st.State == sdk.StateRunning {
			return nil
		}
		if st.State == sdk.StateFailed || ctx.Err() != nil {
			logs, _ := m.Logs(context.WithoutCancel(ctx), h, spec, 5)
			return fault.New(fault.Failure, "service_failed", "the agent does not run: %s %s", st.State, st.Detail).
				WithHint("%s", strings.TrimSpace(string(logs)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			wait = min(2*wait, time.Second)
		}
	}
}

func (r *run) writeRecord(ctx context.Context, rendered sdk.Rendered) error {
	rec := wire.ServiceRecord{Schema: wire.SchemaService, Scope: r.scope, Manager: r.manager.Description().Name,
		Unit: rendered.Unit, Account: r.facts.User, DataDir: r.dirs.Data, RuntimeDir: r.dirs.Runtime,
		Start: rendered.StartArgv, Stop: rendered.StopArgv, Restart: rendered.RestartArgv}
	if r.detected == nil {
		d, err := r.manager.Detect(ctx, r.host.For(r.manager.Description()))
		if err != nil {
			return err
		}
		r.detected = &d
	}
	rec.StayWhenStopped = !r.detected.LatchAware
	b, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	if _, err := r.host.WriteFile(ctx, path.Join(r.dirs.Data, place.ServiceFile), append(b, '\n'), 0o600, false); err != nil {
		return fmt.Errorf("cannot write the service record: %w", err)
	}
	r.record = &rec
	return nil
}
