// Package probehost is the program agentd-probes: a short-lived host of probe
// plugins on an installed machine. agentd starts it every few minutes and reads
// the one document that it prints, so that the agent itself links no gRPC and a
// probe that goes wrong takes nothing with it.
//
// It takes the plugins beside its own executable that plugins.lock names, and
// no others. Probes run one after the other, each under a deadline, all under
// another; one that cannot tell says so and stops no other.
//
// The package must not know the plane, credentials or sessions.
package probehost

import (
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
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/sdk"
)

// maxFile bounds the documents read from the data directory, in bytes.
const maxFile = 64 << 10

// options are the flags.
type options struct {
	data     string
	json     bool
	deadline time.Duration
	each     time.Duration
}

// Main runs the program and returns its exit code: 0 when the document was
// printed, whatever the probes found.
func Main(args []string, version string, stdout, stderr io.Writer) int {
	var o options
	f := flag.NewFlagSet("agentd-probes", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.data, "data", "", "the agent's data `directory`, absolute")
	f.BoolVar(&o.json, "json", false, "print the fleet.findings/v1 document")
	f.DurationVar(&o.deadline, "timeout", 45*time.Second, "the longest that all probes together may take")
	f.DurationVar(&o.each, "probe-timeout", 15*time.Second, "the longest that one probe may take")
	show := f.Bool("version", false, "print the version")
	if err := f.Parse(args[1:]); err != nil {
		return 2
	}
	if *show {
		fmt.Fprintf(stdout, "agentd-probes %s\n", version)
		return 0
	}
	if f.NArg() > 0 || !filepath.IsAbs(o.data) || o.deadline <= 0 || o.each <= 0 {
		fmt.Fprintln(stderr, "agentd-probes: usage: agentd-probes --data DIR [--json] [--timeout D] [--probe-timeout D]")
		return 2
	}
	if err := run(o, version, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "agentd-probes: %s\n", err)
		return 1
	}
	return 0
}

func run(o options, version string, stdout, stderr io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.deadline)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot tell where the plugins are: %w", err)
	}
	facts, runBase, err := gather(o.data)
	if err != nil {
		return err
	}
	if !catalog.FitsRunBase(runBase) {
		runBase = "/tmp/fleet-probes-" + strconv.Itoa(os.Geteuid())
		defer os.Remove(runBase) // it stays if another run is using it
	}
	c := catalog.ForMachine(exe, runBase)
	c.Version = version
	c.Log = hclog.New(&hclog.LoggerOptions{Name: "agentd-probes", Level: hclog.Warn, Output: stderr})
	doc, err := Findings(ctx, c, &localhost.Host{F: facts}, o.each)
	if err != nil {
		return err
	}
	if !o.json {
		return print(stdout, doc)
	}
	return json.NewEncoder(stdout).Encode(doc)
}

// gather adds what the data directory says to what the system says. An absent
// document is "not known"; one that cannot be read is an error, since probes
// would otherwise find nothing where there is something.
func gather(data string) (sdk.Facts, string, error) {
	f, err := localhost.Gather()
	if err != nil {
		return f, "", err
	}
	f.DataDir = data
	var service wire.ServiceRecord
	if err := read(filepath.Join(data, place.ServiceFile), wire.SchemaService, &service.Schema, &service); err != nil {
		return f, "", err
	}
	f.Scope, f.ServiceManager = sdk.Scope(service.Scope), service.Manager
	if service.Account != "" {
		f.User = service.Account
	}
	var known wire.AgentFacts
	if err := read(filepath.Join(data, place.FactsFile), wire.SchemaAgentFacts, &known.Schema, &known); err != nil {
		return f, "", err
	}
	f.CredentialWriteError = known.CredentialError
	if known.ClockOffsetMS != nil {
		// The document has the plane's clock minus the machine's.
		d := time.Duration(min(max(-*known.ClockOffsetMS, -1e12), 1e12) * float64(time.Millisecond))
		f.ClockOffset = &d
	}
	// The runtime directory is the account's alone.
	base := ""
	if st, err := os.Lstat(service.RuntimeDir); err == nil && st.IsDir() {
		base = service.RuntimeDir
	}
	return f, base, nil
}

// read decodes a document. schema points to the field of v that names it.
func read(path, want string, schema *string, v any) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if err := json.NewDecoder(io.LimitReader(file, maxFile)).Decode(v); err != nil {
		return fmt.Errorf("cannot read %s: %w", path, err)
	}
	if *schema != want {
		return fmt.Errorf("cannot read %s: schema is %q, not %q", path, *schema, want)
	}
	return nil
}

// Findings runs every probe of the catalog once. Plugins that are not taken are
// named with why, since a machine whose probe is missing must not look ready.
func Findings(ctx context.Context, c *catalog.Catalog, h sdk.Host, each time.Duration) (wire.Findings, error) {
	doc := wire.Findings{Schema: wire.SchemaFindings, Probes: []wire.ProbeFindings{}}
	found, _, err := c.Discover()
	if err != nil {
		return doc, err
	}
	for _, f := range found {
		if f.Kind != sdk.KindProbe || f.State == catalog.StateShadowed {
			continue
		}
		p := wire.ProbeFindings{Name: f.Name, Findings: []wire.Finding{}}
		got, err := one(ctx, c, f.Name, h, each)
		if err != nil {
			p.Error = err.Error()
		} else {
			p.OK = true
			for _, g := range got {
				p.Findings = append(p.Findings, wire.Finding{
					Code: g.Code, Severity: string(g.Severity), Detail: g.Detail, Remedy: g.Remedy,
				})
			}
		}
		doc.Probes = append(doc.Probes, p)
	}
	if len(doc.Probes) == 0 {
		return doc, errors.New("there is no probe beside the executable")
	}
	return doc, nil
}

func one(ctx context.Context, c *catalog.Catalog, name string, h sdk.Host, each time.Duration) ([]sdk.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	p, err := c.LaunchProbe(ctx, name)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.Probe(ctx, h)
}

// print is for a person.
func print(w io.Writer, doc wire.Findings) error {
	for _, p := range doc.Probes {
		if !p.OK {
			if _, err := fmt.Fprintf(w, "%s: cannot tell: %s\n", p.Name, p.Error); err != nil {
				return err
			}
			continue
		}
		if len(p.Findings) == 0 {
			if _, err := fmt.Fprintf(w, "%s: nothing found\n", p.Name); err != nil {
				return err
			}
		}
		for _, f := range p.Findings {
			if _, err := fmt.Fprintf(w, "%s: %s (%s): %s\n  %s\n", p.Name, f.Code, f.Severity, f.Detail, f.Remedy); err != nil {
				return err
			}
		}
	}
	return nil
}
