package planed

import (
	"context"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/planed/api"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/machine"
)

func serveCommand(version string) *command.Command {
	return &command.Command{
		Name:    "serve",
		Summary: "serve the plane",
		Help: "SIGTERM and SIGINT finish what is under way and exit. SIGHUP reads the certificates and the gate\n" +
			"tokens again; what cannot be read stays as it was.\n" +
			"Under systemd use Type=notify; the watchdog is served.",
		Flags: []cli.Flag{dataFlag(),
			&cli.StringSliceFlag{Name: "listen", Usage: "serve on `ADDR` (default: every address, the URL's port); give it twice while the plane moves"},
			&cli.StringFlag{Name: "metrics-listen", Usage: "serve /metrics on the loopback `ADDR`"},
			&cli.StringFlag{Name: "mtls-listen", Usage: "serve machines with certificates on `ADDR`; balancers must pass TLS through"},
			&cli.StringFlag{Name: "mtls-url", Usage: "where machines reach that listener, as `URL` (default: the URL's host, ADDR's port)"},
			command.DurationFlag("certificate-life", "machines' certificates are valid for `D`", api.CertificateLife),
			command.DurationFlag("check-interval", "machines check every `D`", 30*time.Second),
			&cli.StringFlag{Name: "tls-cert", Usage: "present the certificate chain in `FILE` instead of the plane's own"},
			&cli.StringFlag{Name: "tls-key", Usage: "with its key in `FILE`"},
			&cli.StringFlag{Name: "gate-token-file", Usage: "let machines in only with the gate token in `FILE` (planed gate new makes one)"},
			&cli.StringFlag{Name: "gate-token-secondary-file", Usage: "accept the one in `FILE`, too; a rotation writes there (default: the first with .secondary)"},
			&cli.Int64Flag{Name: "keep-connections", Value: 8192, Usage: "keep at most `N` connections open between requests"},
			&cli.BoolFlag{Name: "require-touch", Usage: "let persons admit and approve machines only with a touch of their security key"},
			&cli.StringFlag{Name: "audit-sink", Usage: "copy the audit log to `FILE`, or to syslog"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
			&cli.BoolFlag{Name: "log-json", Usage: "log JSON Lines"},
			command.DurationFlag("test-floor", "for labs only: lower the 10 s floor between two checks to `D`", 0),
		},
		Run: func(ctx context.Context, c *command.Call) error {
			o, err := serveOptions(c, version)
			if err != nil {
				return err
			}
			return runServe(ctx, o)
		},
	}
}

type serveOpts struct {
	Dir             string
	Plane           datadir.Plane
	Listen          []string
	MTLSListen      string
	MTLSURL         string
	CertificateLife time.Duration
	MetricsListen   string
	Policy          machine.Policy
	CertFile        string
	KeyFile         string
	KeepConnections int64
	GateFile        string
	GateSecondary   string
	RequireTouch    bool
	AuditSink       string
	Version         string
	Log             hclog.Logger
}

func serveOptions(c *command.Call, version string) (*serveOpts, error) {
	dir, err := dataDir(c)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	o := &serveOpts{
		Dir: dir, Listen: c.StringSlice("listen"), MetricsListen: c.String("metrics-listen"),
		Policy:   machine.Policy{Interval: c.Span("check-interval"), TestFloor: c.Span("test-floor")},
		CertFile: c.String("tls-cert"), KeyFile: c.String("tls-key"),
		GateFile: c.String("gate-token-file"), GateSecondary: c.String("gate-token-secondary-file"),
		KeepConnections: c.Int64("keep-connections"), RequireTouch: c.Bool("require-touch"), AuditSink: c.String("audit-sink"), Version: version,
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, fault.Usagef("--tls-cert and --tls-key go together")
	}
	if o.Policy.TestFloor > machine.Floor {
		return nil, fault.Usagef("--test-floor lowers the floor of %s, %s does not", machine.Floor, o.Policy.TestFloor)
	}
	if o.Policy.Interval < o.Policy.MinGap() {
		return nil, fault.Usagef("--check-interval %s is below the floor of %s", o.Policy.Interval, o.Policy.MinGap())
	}
	if o.GateSecondary != "" && o.GateFile == "" {
		return nil, fault.Usagef("--gate-token-secondary-file goes with --gate-token-file")
	}
	// The files are read again long after the start, wherever that was.
	for _, f := range []*string{&o.GateFile, &o.GateSecondary} {
		if *f != "" {
			if *f, err = filepath.Abs(*f); err != nil {
				return nil, err
			}
		}
	}
	o.MTLSListen, o.CertificateLife = c.String("mtls-listen"), c.Span("certificate-life")
	if o.MTLSListen == "" && (c.IsSet("mtls-url") || c.IsSet("certificate-life")) {
		return nil, fault.Usagef("--mtls-url and --certificate-life go with --mtls-listen")
	}
	if err := certificateLife(o.CertificateLife, o.Policy.TestFloor); err != nil {
		return nil, err
	}
	if o.KeepConnections < 0 {
		return nil, fault.Usagef("--keep-connections is a number of connections")
	}
	if o.MetricsListen != "" {
		if err := loopback(o.MetricsListen); err != nil {
			return nil, err
		}
	}
	level := hclog.LevelFromString(c.String("log-level"))
	if level == hclog.NoLevel {
		return nil, fault.Usagef("--log-level is debug, info, warn or error, not %q", c.String("log-level"))
	}
	o.Log = hclog.New(&hclog.LoggerOptions{Name: "planed", Level: level, Output: c.Stderr, JSONFormat: c.Bool("log-json"), DisableTime: underJournal(c)})
	if o.Plane, err = datadir.Open(dir); err != nil {
		return nil, err
	}
	if o.MTLSURL, err = mtlsURL(c.String("mtls-url"), o.Plane); err != nil {
		return nil, err
	}
	if len(o.Listen) == 0 {
		o.Listen = []string{listenAddr(o.Plane.URL)}
	}
	return o, nil
}

// underJournal: the journal has the time already.
func underJournal(c *command.Call) bool { return c.Getenv("JOURNAL_STREAM") != "" }

// listenAddr is every address at the URL's port.
func listenAddr(plane string) string {
	port := "443"
	if u, err := url.Parse(plane); err == nil && u.Port() != "" {
		port = u.Port()
	}
	return net.JoinHostPort("", port)
}

func loopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fault.Usagef("--metrics-listen: %s", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fault.Usagef("--metrics-listen: %s is not a loopback address", addr)
	}
	return nil
}

// gcPercent keeps memory beside what a plane knows of its machines small: a check
// makes next to no garbage.
const gcPercent = 80

func runServe(ctx context.Context, o *serveOpts) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	s, err := start(o)
	if err != nil {
		return err
	}
	return s.run(ctx, hup)
}
