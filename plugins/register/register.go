// Package register is how agentd enroll registers the agent as a service on its
// own machine: with the same service-manager plugins that an installer uses
// over SSH, run here. agentd itself links no gRPC, so it starts the multi-call
// plugin binary for it, as it starts agentd-probes.
//
// It may be interrupted anywhere and run again: files are written whole, the
// record before the service is enabled, and what is there already is left.
// It never starts an agent that a person has stopped (R29).
//
// The package must not know the plane or credentials.
package register

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/service"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/sdk"
)

// Verb is the first argument by which the plugin binary does this.
const Verb = "register"

// deadline bounds all of it.
const deadline = 3 * time.Minute

type options struct {
	dirs           place.Dirs
	scope, manager string
}

// Main runs the program and returns its exit code. It prints one
// wire.Registered document.
func Main(args []string, version string, stdout, stderr io.Writer) int {
	var o options
	f := flag.NewFlagSet("register", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.dirs.Data, "data", "", "the agent's data `directory`, absolute")
	f.StringVar(&o.dirs.Runtime, "runtime", "", "the `directory` of its sockets, absolute")
	f.StringVar(&o.scope, "scope", "", "user or system")
	f.StringVar(&o.manager, "manager", "auto", "the service-manager plugin's `name`")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if f.NArg() > 0 || !filepath.IsAbs(o.dirs.Data) || !filepath.IsAbs(o.dirs.Runtime) || o.scope != place.User && o.scope != place.System {
		fmt.Fprintln(stderr, "usage: register --data DIR --runtime DIR --scope user|system [--manager NAME]")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	doc, err := run(ctx, o, version, stderr)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(doc)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func run(ctx context.Context, o options, version string, stderr io.Writer) (wire.Registered, error) {
	exe, err := os.Executable()
	if err != nil {
		return wire.Registered{}, fmt.Errorf("cannot tell where the plugins are: %w", err)
	}
	facts, err := localhost.Gather()
	if err != nil {
		return wire.Registered{}, err
	}
	facts.Phase, facts.Scope, facts.DataDir = sdk.PhaseChange, sdk.Scope(o.scope), o.dirs.Data
	runBase := filepath.Join(o.dirs.Data, "plugin")
	if !catalog.FitsRunBase(runBase) {
		runBase = "/tmp/fleet-register-" + strconv.Itoa(os.Geteuid())
	}
	defer os.Remove(runBase) // it stays if somebody else is using it
	c := catalog.ForMachine(exe, runBase)
	c.Version = version
	c.Log = hclog.New(&hclog.LoggerOptions{Name: "register", Level: hclog.Error, Output: stderr})
	h := &localhost.Host{F: facts}
	record, err := readRecord(o.dirs.Data)
	if err != nil {
		return wire.Registered{}, err
	}
	if o.manager == "auto" || o.manager == "" {
		o.manager = ""
		if record != nil && record.Scope == o.scope {
			o.manager = record.Manager
		}
	}
	if record != nil && record.Scope == o.scope && record.Manager != o.manager {
		return wire.Registered{}, fmt.Errorf("the agent is registered with %s; uninstall it first to change the service manager", record.Manager)
	}
	m, found, err := choose(ctx, c, h, o)
	if err != nil {
		return wire.Registered{}, err
	}
	defer m.Close()
	h.F.ServiceManager = m.Description().Name
	return register(ctx, m, found, h, o)
}

// manager is a launched service-manager plugin.
type manager interface {
	sdk.ServiceManager
	Description() sdk.Description
	Close() error
}

// choose launches the named manager, or the one that says it fits best.
func choose(ctx context.Context, c *catalog.Catalog, h *localhost.Host, o options) (best manager, found sdk.Detection, err error) {
	all, _, err := c.Discover()
	if err != nil {
		return nil, found, err
	}
	var why []string
	for _, f := range all {
		if f.Kind != sdk.KindService || f.State != catalog.StateTaken || o.manager != "" && f.Name != o.manager || !f.Entry.Description.ActsOn(h.F.OS, h.F.Arch) {
			continue
		}
		m, err := c.LaunchService(ctx, f.Name)
		if err != nil {
			why = append(why, f.Name+": "+err.Error())
			continue
		}
		d, err := m.Detect(ctx, h)
		switch {
		case err != nil:
			why = append(why, f.Name+": "+err.Error())
		case d.Score <= 0 || !slices.Contains(d.Scopes, sdk.Scope(o.scope)):
			why = append(why, f.Name+": "+d.Reason)
		case best == nil || d.Score > found.Score:
			if best != nil {
				best.Close()
			}
			best, found = m, d
			continue
		}
		m.Close()
	}
	if best == nil {
		return nil, found, fmt.Errorf("no service manager can serve the agent in %s scope: %s", o.scope, strings.Join(why, "; "))
	}
	return best, found, nil
}

func register(ctx context.Context, m manager, found sdk.Detection, h *localhost.Host, o options) (wire.Registered, error) {
	spec := service.Spec(o.dirs, o.scope, h.F.User)
	rendered, err := m.Render(ctx, h.F, spec)
	if err != nil {
		return wire.Registered{}, err
	}
	changed := false
	for _, f := range rendered.Files {
		c, err := write(f)
		if err != nil {
			return wire.Registered{}, err
		}
		changed = changed || c
	}
	doc := wire.Registered{Schema: wire.SchemaRegistered, Manager: m.Description().Name, Unit: rendered.Unit, Caveats: slices.Clone(rendered.Caveats)}
	rec := wire.ServiceRecord{Schema: wire.SchemaService, Scope: o.scope, Manager: doc.Manager, Unit: rendered.Unit, Account: h.F.User,
		DataDir: o.dirs.Data, RuntimeDir: o.dirs.Runtime, Start: rendered.StartArgv, Stop: rendered.StopArgv, Restart: rendered.RestartArgv,
		StayWhenStopped: !found.LatchAware}
	b, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return doc, err
	}
	if err := durable.WriteFile(filepath.Join(o.dirs.Data, place.ServiceFile), append(b, '\n'), 0o600); err != nil {
		return doc, fmt.Errorf("cannot write the service record: %w", err)
	}
	if changed {
		if err := m.Reload(ctx, h, spec); err != nil {
			return doc, err
		}
	}
	before, err := m.Status(ctx, h, spec)
	if err != nil {
		return doc, err
	}
	if changed || !before.AtBoot {
		switch err := m.Enable(ctx, h, spec); {
		case errors.Is(err, sdk.ErrUnsupported):
			doc.Caveats = append(doc.Caveats, "the agent does not come back after a reboot: "+strings.TrimPrefix(err.Error(), sdk.ErrUnsupported.Error()+": "))
		case err != nil:
			return doc, err
		}
	}
	doc.Caveats = append(doc.Caveats, linger(ctx, m, h, spec)...)
	if _, err := os.Lstat(spec.Latch); err == nil {
		doc.Stopped = true
		return doc, nil
	}
	switch {
	case before.State == sdk.StateRunning && changed:
		err = m.Restart(ctx, h, spec)
	case before.State != sdk.StateRunning:
		err = m.Start(ctx, h, spec)
	}
	return doc, awaitRunning(ctx, m, h, spec, err)
}

// linger turns lingering on where it matters, and says so where it cannot.
func linger(ctx context.Context, m manager, h *localhost.Host, spec sdk.Spec) []string {
	if spec.Scope != sdk.ScopeUser {
		return nil
	}
	switch l, err := m.Linger(ctx, h, spec, true); {
	case errors.Is(err, sdk.ErrUnsupported):
	case err != nil:
		return []string{"cannot tell whether the account lingers: " + err.Error()}
	case !l.Enabled:
		return []string{"the agent will end with the account's last login: " + l.Remedy}
	}
	return nil
}

// awaitRunning judges a start by what the manager says of the service: what the
// start itself said is told only with a failure.
func awaitRunning(ctx context.Context, m manager, h *localhost.Host, spec sdk.Spec, started error) error {
	ctx, cancel := context.WithTimeout(ctx, service.StartTimeout+5*time.Second)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		st, err := m.Status(ctx, h, spec)
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case st.State == sdk.StateRunning:
			return nil
		case st.State == sdk.StateFailed || ctx.Err() != nil:
			logs, _ := m.Logs(context.WithoutCancel(ctx), h, spec, 5)
			return fmt.Errorf("the agent does not run: %s %s %s", st.State, st.Detail, strings.TrimSpace(string(logs)+" "+words(started)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// write brings a file to its content, whole or not at all.
func write(f sdk.File) (changed bool, err error) {
	if f.Owner == "root" && os.Geteuid() != 0 {
		return false, fmt.Errorf("%s is root's to write; run this as root, or with --scope user", f.Path)
	}
	if have, err := os.ReadFile(f.Path); err == nil && bytes.Equal(have, f.Content) {
		return false, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot read the service's file: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return false, fmt.Errorf("cannot make the service's directory: %w", err)
	}
	if err := durable.WriteFile(f.Path, f.Content, f.Mode); err != nil {
		return false, fmt.Errorf("cannot write the service's file: %w", err)
	}
	return true, nil
}

func readRecord(data string) (*wire.ServiceRecord, error) {
	b, err := os.ReadFile(filepath.Join(data, place.ServiceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rec wire.ServiceRecord
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", place.ServiceFile, err)
	}
	return &rec, nil
}
