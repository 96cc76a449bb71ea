// Package agent puts the parts of agentd together and decides when it ends.
//
// It ends only by an explicit stop, by a restart or update that hands over, or
// by a signal (R29). No refusal of the plane, no error, no full disk and no
// missing network or socket directory ends it: each of those is a state that
// is shown, and tried again.
//
// On an explicit stop it leaves the latch, says `stopping` in a last check of
// its own deadline, and ends. Under a service manager that does not see the
// latch it stays up, silent, since it would only be started again. A restart
// says so and then becomes, in the same process, the program that `current`
// names, so that it needs nothing of the service manager.
package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/agentd/certificate"
	"fleet.example/fleet/agentd/check"
	"fleet.example/fleet/agentd/clock"
	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/latch"
	"fleet.example/fleet/agentd/locate"
	"fleet.example/fleet/agentd/logfile"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/agentd/readiness"
	"fleet.example/fleet/agentd/session"
	"fleet.example/fleet/agentd/token"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
)

const (
	drainFile = "drain"
	// reasonHolds is how long a reason that was told beforehand stands for the
	// stop that is about to come.
	reasonHolds = 2 * time.Minute
	// recheckEvery is how often agentd looks at its own findings.
	recheckEvery = 30 * time.Second
)

// Agent is one run of agentd.
type Agent struct {
	Dirs    place.Dirs
	Version string
	Log     hclog.Logger
	LogFile *logfile.File
	Account account.Account
	Getenv  func(string) string
	Umask   int
	// Children are the session hosts that the program before a restart in place
	// left to this process; after Run they are those that are left to the next.
	Children []int
	// Sockets are those that it left, and after Run those that are left to the
	// next.
	Sockets *Sockets
	// Listen is the port of the loopback interface to serve, in place of what the
	// data directory says; "" leaves it at that.
	Listen string

	record   wire.ServiceRecord
	host     string
	started  time.Time
	programs string // directory of agentd's own and its siblings' binaries

	store    *credential.Store
	certs    *certificate.Store
	loop     atomic.Pointer[check.Loop]
	probes   *readiness.Keeper
	sessions *session.Manager
	tokens   *token.Set
	draining atomic.Bool
	latched  atomic.Bool
	sockErr  atomic.Pointer[string]
	loopErr  atomic.Pointer[string]
	loopback atomic.Pointer[string] // where it is served
	handing  atomic.Bool            // this program ends in favour of another

	orders chan order // to the main loop

	mu       sync.Mutex
	expected string // reason of the stop that is about to come
	until    time.Time
}

// order tells the main loop what to do.
type order struct {
	what   string // orderStop, orderStart or orderRestart
	reason string
}

const (
	orderStop    = "stop"
	orderStart   = "start"
	orderRestart = "restart"
)

// ErrHandoff is returned by Run when the process is to become what `current`
// names now.
var ErrHandoff = errors.New("restart")

// Run runs until one of the ends that R29 names.
func (a *Agent) Run(ctx context.Context) (err error) {
	unlock, err := a.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.setUp(ctx); err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer func() {
		signal.Stop(signals)
		// A signal that came while the restart was prepared would be lost in
		// the program that follows.
		select {
		case sig := <-signals:
			if errors.Is(err, ErrHandoff) && sig != syscall.SIGHUP {
				err = nil
			}
		default:
		}
	}()

	rctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { a.probes.Run(rctx) })
	wg.Go(func() { a.serve(rctx) })
	wg.Go(func() { a.sessions.Reap(rctx) })
	defer func() {
		a.handing.Store(errors.Is(err, ErrHandoff))
		cancel()
		wg.Wait()
		a.sessions.Close()
		a.Children = a.sessions.Children()
	}()
	checks := a.startChecks()
	a.notify(daemon.SdNotifyReady)
	a.Log.Info("agentd runs", "version", a.Version, "machine", a.store.Machine(), "pid", os.Getpid())
	// A restart in place is no stop to the service manager: told that the
	// service stops, it would kill the process that goes on.
	defer func() {
		if !errors.Is(err, ErrHandoff) {
			a.notify(daemon.SdNotifyStopping)
		}
	}()

	beat := time.NewTicker(a.watchdog())
	defer beat.Stop()
	recheck := time.NewTicker(recheckEvery)
	defer recheck.Stop()
	for {
		var o order
		select {
		case <-ctx.Done():
			o = order{orderStop, wire.ReasonSignal}
		case <-beat.C:
			a.notify(daemon.SdNotifyWatchdog)
			continue
		case <-recheck.C:
			a.probes.Recheck()
			continue
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				a.Reload()
				continue
			}
			o = order{orderStop, a.reason()}
			a.Log.Info("signal", "signal", sig.String(), "reason", o.reason)
		case o = <-a.orders:
		}
		switch o.what {
		case orderStart:
			if a.latched.Swap(false) {
				checks = a.startChecks()
			}
			continue
		case orderStop:
			checks.stop(a.Log, o.reason)
			checks = nil
			if o.reason == wire.ReasonPerson && a.record.StayWhenStopped {
				a.Log.Info("stopped; staying up, silent, since the service manager does not see the latch")
				continue
			}
			a.Log.Info("agentd ends", "reason", o.reason)
			return nil
		case orderRestart:
			checks.stop(a.Log, wire.ReasonRestart)
			a.Log.Info("agentd restarts")
			return ErrHandoff
		}
	}
}

// lock makes sure that one agentd serves the data directory.
func (a *Agent) lock(ctx context.Context) (func(), error) {
	f, err := os.OpenFile(filepath.Join(a.Dirs.Data, place.LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EDQUOT) {
		// No room even for the lock file is no reason not to run.
		a.Log.Warn("cannot make lock file, going on without", "error", err)
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open lock: %w", err)
	}
	// A predecessor that is just ending gets a moment.
	for deadline := time.Now().Add(8 * time.Second); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			f.Truncate(0)
			fmt.Fprintf(f, "%d\n", os.Getpid())
			return func() { f.Close() }, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EWOULDBLOCK):
			a.Log.Warn("cannot lock data directory, going on without", "error", err)
			return func() { f.Close() }, nil
		case time.Now().After(deadline):
			f.Close()
			return nil, ErrRunning
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ErrRunning says that another agentd serves the data directory.
var ErrRunning = errors.New("another agentd serves this data directory")

func (a *Agent) setUp(ctx context.Context) error {
	a.started = time.Now()
	a.orders = make(chan order, 8)
	a.host, _ = os.Hostname()
	a.host = clip(a.host, 253)
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		a.programs = filepath.Dir(exe)
	}
	if rec, err := locate.ReadService(a.Dirs.Data); err == nil {
		a.record = *rec
	} else if !errors.Is(err, fs.ErrNotExist) {
		a.Log.Warn("cannot read service record", "error", err)
	}
	if err := durable.Sweep(a.Dirs.Data); err != nil {
		a.Log.Warn("cannot sweep data directory", "error", err)
	}
	_, err := os.Lstat(filepath.Join(a.Dirs.Data, drainFile))
	a.draining.Store(err == nil)
	a.latched.Store(latch.Present(a.Dirs.Data))
	a.store = credential.Open(credential.Dir(a.Dirs.Data))
	a.certs = certificate.Open(credential.Dir(a.Dirs.Data), a.store.Machine)
	a.tokens = &token.Set{}
	if a.Sockets == nil {
		a.Sockets = &Sockets{}
	}
	a.sessions = &session.Manager{Dir: filepath.Join(a.Dirs.Data, place.SessionsDir), Run: a.Dirs.Runtime,
		Shim: filepath.Join(a.programs, "agentd-shim"), Account: a.Account, Getenv: a.Getenv, Umask: a.Umask,
		Host: a.host, Machine: a.store.Machine, Log: a.Log, Changed: func() { a.probes.Recheck() }}
	a.sessions.Adopt(a.Children)
	a.sessions.SweepSoon()
	a.probes = &readiness.Keeper{Program: filepath.Join(a.programs, "agentd-probes"), Data: a.Dirs.Data,
		Env: a.Account.Environ(a.Getenv), Own: a.findings, Facts: a.writeFacts, Log: a.Log,
		Changed: func() {
			if l := a.loop.Load(); l != nil {
				l.Kick()
			}
		}}
	a.probes.Init()
	return nil
}

// checks is one run of the check loop.
type checks struct {
	loop   *check.Loop
	cancel context.CancelFunc
	done   chan struct{}
}

// startChecks starts the loop, unless the latch is there.
func (a *Agent) startChecks() *checks {
	if a.latched.Load() {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &checks{cancel: cancel, done: make(chan struct{}), loop: &check.Loop{
		Store: a.store, Body: a.body, Log: a.Log, Changed: func() { a.probes.Recheck() },
		Skewed: a.probes.Soon, Clock: clock.New(clock.Machine()),
		Dial: func(p credential.Plane, gate *wire.CredentialGate) (check.Plane, error) { return plane.New(p, gate) },
	}}
	c.loop.Rung = &check.Rung{Certs: a.certs,
		Dial: func(p credential.Plane, gate *wire.CredentialGate, url string, source func() *tls.Certificate) (check.Mutual, error) {
			return plane.Mutual(p, gate, url, source)
		}}
	c.loop.Init()
	a.loop.Store(c.loop)
	go func() { // stop waits for it
		defer close(c.done)
		c.loop.Run(ctx)
	}()
	return c
}

// stop ends the loop and says so to the plane.
func (c *checks) stop(log hclog.Logger, reason string) {
	if c == nil {
		return
	}
	c.cancel()
	<-c.done
	if err := c.loop.Last(reason); err != nil {
		log.Warn("the plane did not hear of the stop", "error", err)
	}
}

// body is what the machine says of itself, from memory (R17).
func (a *Agent) body() wire.CheckBody {
	b := wire.CheckBody{Boot: bootID(), Name: a.host, Version: a.Version, OS: runtime.GOOS, Arch: runtime.GOARCH,
		Scope: a.record.Scope, ServiceManager: a.record.Manager, Readiness: a.probes.Snapshot()}
	st := a.store.Status()
	if b.Have = st.Have; st.Gate > 0 {
		if b.Have == nil {
			b.Have = map[string]int64{}
		}
		b.Have[wire.MaterialGate] = st.Gate
	}
	return b
}

var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// findings are what agentd itself knows to stand in the way of work (R30).
func (a *Agent) findings() []wire.Finding {
	var out []wire.Finding
	add := func(code, severity, detail, remedy string) {
		out = append(out, wire.Finding{Code: code, Severity: severity, Detail: detail, Remedy: remedy})
	}
	st, cert := a.store.Status(), a.certs.Status()
	st.Damaged = append(st.Damaged, cert.Damaged...)
	if problem := cmp.Or(st.Problem, cert.Problem); problem != "" {
		add("credential_unwritable", wire.SeverityBlock, problem, "make room in, or write access to, the agent's data directory")
	}
	if len(st.Damaged) > 0 {
		add("credential_damaged", wire.SeverityWarn, strings.Join(st.Damaged, "; "), "install the machine again if it stays unheard of; the damaged file is kept")
	}
	if st.Refused != "" {
		add("statement_refused", wire.SeverityWarn, st.Refused, "fleet install with --signers FILE says whose statements this machine takes; fleet rotate url|ca --status, what became of it")
	}
	if st.State == wire.CredentialBehind {
		add("credential_behind", wire.SeverityBlock, "the plane knows a later generation than this machine has", "restore the data directory's credential, or delete and install the machine again")
	}
	if l := a.loop.Load(); l != nil {
		if off := l.ClockTrouble(); off != "" {
			add("clock_skew", wire.SeverityBlock, off, "turn on time synchronisation: sudo timedatectl set-ntp true")
		}
		if words := l.Problem(); words != "" {
			add("certificate_unusable", wire.SeverityWarn, words, "open the way to the plane's listener for certificates (planed serve --mtls-listen, --mtls-url), or fleet rotate --kind bearer")
		}
	}
	if a.draining.Load() {
		add("draining", wire.SeverityBlock, "a person asked this machine to take no new work", "fleet undrain")
	}
	if f := a.sessions.Unusable(); f != nil {
		out = append(out, *f)
	}
	if e := a.sockErr.Load(); e != nil {
		add("socket_unusable", wire.SeverityBlock, *e, "see the agent's runtime directory")
	}
	if e := a.loopErr.Load(); e != nil {
		add("listener_unusable", wire.SeverityWarn, *e, "fleet install with --listen says where, and --listen off that there is to be none")
	}
	return out
}

// writeFacts tells the probes what only agentd knows.
func (a *Agent) writeFacts() {
	f := wire.AgentFacts{Schema: wire.SchemaAgentFacts, CredentialError: cmp.Or(a.store.Status().Problem, a.certs.Status().Problem)}
	if l := a.loop.Load(); l != nil {
		if off := l.Offset(); off != nil {
			ms := float64(off.Microseconds()) / 1000
			f.ClockOffsetMS = &ms
		}
	}
	b, err := json.Marshal(f)
	if err != nil {
		return
	}
	if err := durable.WriteFile(filepath.Join(a.Dirs.Data, place.FactsFile), append(b, '\n'), 0o600); err != nil {
		a.Log.Warn("cannot write facts for the probes", "error", err)
	}
	// What the start and the last probes needed goes back to the system.
	debug.FreeOSMemory()
}

// OrderAudience is what orders for this machine are addressed to: it proves
// knowledge of the installation id without telling it (R37).
func OrderAudience(data string) string {
	b, err := durable.ReadPrivate(filepath.Join(data, place.InstallationFile), 256)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte("fleet-order" + strings.TrimSpace(string(b))))
	return hex.EncodeToString(sum[:])
}

func (a *Agent) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.Log.Debug("cannot notify service manager", "error", err)
	}
}

// watchdog is half of what the service manager allows between two beats.
func (a *Agent) watchdog() time.Duration {
	if d, err := daemon.SdWatchdogEnabled(false); err == nil && d > 0 {
		return d / 2
	}
	return time.Hour
}

func clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}
