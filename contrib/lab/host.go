//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Host is one machine of a lab. Its methods may be called concurrently, save those that turn it on and off.
type Host struct {
	lab      *Lab
	n        int
	spec     HostSpec
	dir      string
	cgroups  []string
	hostKeys []string

	mu     sync.Mutex
	boot   *boot
	bootMS int64
}

// boot is one run of the host, from power on until power off; reboots are part of it.
type boot struct {
	done chan struct{} // closed once nspawn is gone and will not be started again
	pid  int           // the host's PID 1 as seen here; 0 while there is none; under Host.mu
	init *os.File      // pidfd of PID 1, which no other process can inherit; under Host.mu
	n    int           // how often PID 1 was started; under Host.mu
	err  error         // why the boot ended, when it was not an order; read after done
}

// nspawn's exit status, under --keep-unit, for a container that asked for a reboot.
const rebootStatus = 133

// systemd(1): what PID 1 does on these signals. The numbers count from glibc's SIGRTMIN.
const (
	signalPowerOff = syscall.Signal(34 + 4)
	signalReboot   = syscall.Signal(34 + 5)
	signalHalt     = syscall.Signal(34 + 14)
)

// Host makes a host, boots it and waits until one can log in.
func (l *Lab) Host(ctx context.Context, spec HostSpec) (*Host, error) {
	spec, err := spec.complete()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	h, err := l.addHost(spec)
	if err != nil {
		return nil, err
	}
	connect := l.connectHost
	if spec.IPv6Only {
		connect = l.connectHost6
	}
	if err := connect(ctx, h.n); err != nil {
		return nil, fmt.Errorf("cannot connect host %s: %w", spec.Name, err)
	}
	if err := h.allow(ctx); err != nil {
		return nil, fmt.Errorf("cannot connect host %s: %w", spec.Name, err)
	}
	if err := h.makeDisk(ctx); err != nil {
		return nil, err
	}
	if h.cgroups, err = makeCgroups(l.linkName(), fmt.Sprintf("h%d", h.n)); err != nil {
		return nil, err
	}
	if err := h.Start(ctx); err != nil {
		return nil, err
	}
	took := time.Since(began)
	h.mu.Lock()
	h.bootMS = took.Milliseconds()
	h.mu.Unlock()
	l.log.Logf("lab %d: host %s is up at %s after %v", l.id, spec.Name, h.Addr(), took.Round(time.Millisecond))
	return h, h.note()
}

// addHost takes a number for the host.
func (l *Lab) addHost(spec HostSpec) (*Host, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.New("cannot make host: the lab is closed")
	}
	if len(l.hosts) == maxHosts {
		return nil, fmt.Errorf("cannot make host: the lab has %d already", maxHosts)
	}
	for _, other := range l.hosts {
		if other.spec.Name == spec.Name {
			return nil, fmt.Errorf("cannot make host: %s is there already", spec.Name)
		}
	}
	h := &Host{lab: l, n: len(l.hosts), spec: spec}
	h.dir = filepath.Join(l.dir, fmt.Sprintf("h%d", h.n))
	l.hosts = append(l.hosts, h)
	return h, nil
}

// allow puts into the router's sets who may reach the host.
func (h *Host) allow(ctx context.Context) error {
	var rules []string
	if h.spec.Hidden {
		rules = append(rules, "add element ip lab hidden { "+h.Addr()+" }")
	}
	for _, name := range h.spec.From {
		hosts := h.lab.Hosts()
		i := slices.IndexFunc(hosts, func(o *Host) bool { return o.spec.Name == name && o != h })
		if i < 0 {
			return fmt.Errorf("no host %q", name)
		}
		rules = append(rules, "add element ip lab allowed { "+hosts[i].Addr()+" . "+h.Addr()+" }")
	}
	if len(rules) == 0 {
		return nil
	}
	return h.lab.nft(ctx, rules...)
}

// Name is the host's name.
func (h *Host) Name() string { return h.spec.Name }

// Addr is the host's address. Its SSH server listens there, on port 22 unless SSHDConfig says otherwise.
func (h *Host) Addr() string {
	if h.spec.IPv6Only {
		return hostAddr6(h.lab.id, h.n)
	}
	return hostAddr(h.lab.id, h.n)
}

// Accounts are the host's accounts, with all defaults filled in.
func (h *Host) Accounts() []Account { return slices.Clone(h.spec.Accounts) }

// HostKeys are the public host keys, as "type base64".
func (h *Host) HostKeys() []string { return slices.Clone(h.hostKeys) }

// KnownHosts is known_hosts text that has all of the host's keys under its address.
func (h *Host) KnownHosts() string {
	var out strings.Builder
	for _, key := range h.hostKeys {
		out.WriteString(h.Addr() + " " + key + "\n")
	}
	return out.String()
}

// Root is the host's disk as seen from here, for reading and writing files whether the host is on or off. The
// host's own /run and /tmp are not there.
func (h *Host) Root() string { return h.root() }

func (h *Host) root() string { return h.dir + "/merged" }

// PID is the host's PID 1 as seen from here, or 0 while the host is off.
func (h *Host) PID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boot == nil {
		return 0
	}
	return h.boot.pid
}

// Start turns the host on, with the disk it had, and waits until one can log in. Turning on a host that is on is an
// error.
func (h *Host) Start(ctx context.Context) error {
	h.mu.Lock()
	if b := h.boot; b != nil && !isDone(b.done) {
		h.mu.Unlock()
		return fmt.Errorf("cannot start host %s: it is on", h.spec.Name)
	}
	b := &boot{done: make(chan struct{})}
	h.boot = b
	go h.supervise(b)
	h.mu.Unlock()
	return h.ready(ctx, 0)
}

// Ready waits until the host answers and lets accounts log in.
func (h *Host) Ready(ctx context.Context) error { return h.ready(ctx, 0) }

// Boots counts how often the host's PID 1 was started since the last Start.
func (h *Host) Boots() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boot == nil {
		return 0
	}
	return h.boot.n
}

// ReadyAfter is Ready for a boot later than the given value of Boots: for a reboot that was asked for inside.
func (h *Host) ReadyAfter(ctx context.Context, boots int) error { return h.ready(ctx, boots) }

// Reboot restarts the host in good order and waits until one can log in again.
func (h *Host) Reboot(ctx context.Context) error {
	boots := h.Boots()
	if err := h.signal(signalReboot); err != nil {
		return fmt.Errorf("cannot reboot host %s: %w", h.spec.Name, err)
	}
	return h.ready(ctx, boots)
}

// PowerOff stops the host in good order and waits until it is off.
func (h *Host) PowerOff(ctx context.Context) error { return h.stop(ctx, signalPowerOff) }

// PowerOffNow makes the host's systemd power off at once, without stopping its services.
func (h *Host) PowerOffNow(ctx context.Context) error { return h.stop(ctx, signalHalt) }

// PowerCut kills the host's PID 1, and with it every process of the host between two instructions. What was written
// to files is kept, synced or not.
func (h *Host) PowerCut(ctx context.Context) error { return h.stop(ctx, syscall.SIGKILL) }

// Suspend stops all processes of the host where they are; its clock runs on, as a monotonic clock too.
func (h *Host) Suspend() error { return freeze(h.cgroups, true) }

// Resume undoes Suspend.
func (h *Host) Resume() error { return freeze(h.cgroups, false) }

func (h *Host) stop(ctx context.Context, sig syscall.Signal) error {
	h.mu.Lock()
	b := h.boot
	h.mu.Unlock()
	if b == nil || isDone(b.done) {
		return nil
	}
	if err := h.signal(sig); err != nil {
		return fmt.Errorf("cannot power off host %s: %w", h.spec.Name, err)
	}
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot power off host %s: it still runs: %w", h.spec.Name, context.Cause(ctx))
	}
}

func (h *Host) signal(sig syscall.Signal) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boot == nil || h.boot.init == nil {
		return errors.New("it is off")
	}
	return unix.PidfdSendSignal(int(h.boot.init.Fd()), sig, nil, 0)
}

// wait returns when the host is off and its supervisor has ended.
func (h *Host) wait(ctx context.Context) {
	h.mu.Lock()
	b := h.boot
	h.mu.Unlock()
	if b == nil {
		return
	}
	select {
	case <-b.done:
	case <-ctx.Done():
	}
}

// supervise runs nspawn until the host is off, and again each time the host reboots. It owns the boot.
func (h *Host) supervise(b *boot) {
	defer close(b.done)
	for {
		status, err := h.runOnce(b)
		if err := h.note(); err != nil {
			h.lab.log.Logf("lab %d: %v", h.lab.id, err)
		}
		if status != rebootStatus || isDone(h.lab.closing) {
			b.err = err
			return
		}
	}
}

// runOnce boots the host and returns nspawn's exit status.
func (h *Host) runOnce(b *boot) (int, error) {
	console, err := os.OpenFile(h.dir+"/console.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return -1, fmt.Errorf("cannot open console: %w", err)
	}
	defer console.Close()
	var script strings.Builder
	for _, dir := range h.cgroups {
		fmt.Fprintf(&script, "echo $$ >%s/cgroup.procs || exit 1\n", dir)
	}
	script.WriteString(`exec systemd-nspawn "$@"`)
	cmd := exec.Command("sh", "-c", script.String(), "nspawn",
		"--quiet", "--register=no", "--keep-unit", "--settings=no", "--link-journal=no",
		"--resolv-conf=off", "--timezone=off", "--console=pipe",
		"--machine="+fmt.Sprintf("%s-%s", h.lab.linkName(), h.spec.Name), "--hostname="+h.spec.Name,
		"--network-namespace-path="+h.lab.namespace(fmt.Sprintf("h%d", h.n)),
		"-D", h.root())
	if h.spec.NoSystemd {
		cmd.Args = append(cmd.Args, "/"+initPath, "init")
	} else {
		cmd.Args = append(cmd.Args, "-b")
	}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return -1, fmt.Errorf("cannot start nspawn: %w", err)
	}
	gone := make(chan struct{})
	found := make(chan struct{})
	go func() {
		defer close(found)
		h.findInit(b, cmd.Process.Pid, gone)
	}()
	err = cmd.Wait()
	close(gone)
	<-found
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.init != nil {
		b.init.Close()
	}
	b.pid, b.init = 0, nil
	return cmd.ProcessState.ExitCode(), err
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
