package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/plugins/sdk"
)

// Limits are the time-outs of everything that waits for a plugin. Zero fields
// take the defaults.
type Limits struct {
	Start    time.Duration // from exec to the first answered call; 10 s
	Describe time.Duration // for `NAME describe`; 10 s
	Call     time.Duration // of a call whose context has no deadline; 2 min
	Stop     time.Duration // for a plugin to end by itself; 2 s
}

func (l Limits) withDefaults() Limits {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&l.Start, 10*time.Second)
	set(&l.Describe, 10*time.Second)
	set(&l.Call, 2*time.Minute)
	set(&l.Stop, 2*time.Second)
	return l
}

// passedOn are the variables of the host's environment that a plugin gets. The
// agent's socket, display variables and whatever else may carry a secret are
// not among them.
var passedOn = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"}

func pluginEnv() []string {
	var env []string
	for _, k := range passedOn {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// Process is a running plugin. It is safe for concurrent use. Close ends it;
// without it the plugin lives until its host dies.
type Process struct {
	c     *Catalog
	found Found
	dir   *runDir
	img   *image

	client *plugin.Client
	tail   *tail
	conn   *grpc.ClientConn

	hostServer *grpc.Server
	served     chan struct{} // closed when the host's services have ended

	mu     sync.Mutex
	proc   *process // nil before go-plugin asked for it
	killed bool     // no process may start any more

	closeOnce sync.Once
	closeErr  error
}

// launch starts a plugin that Find gave and attaches it to the host services
// that register adds.
func (c *Catalog) launch(ctx context.Context, f Found, register func(*grpc.Server)) (_ *Process, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	limits := c.Limits.withDefaults()
	dir, err := c.newRunDir()
	if err != nil {
		return nil, c.problem(CodeNotStarted, f.Path, f.Entry.Description.Version, "was not started: %s", err)
	}
	p := &Process{c: c, found: f, dir: dir, tail: &tail{max: 8 << 10}, served: make(chan struct{})}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.img, err = newImage(f.Path, dir.path); err != nil {
		return nil, c.problem(CodeNotStarted, f.Path, f.Entry.Description.Version, "cannot be read: %s", err)
	}
	if p.img.sha256 != f.Entry.SHA256 {
		hint := "if you trust the new file, run: fleet plugin install " + f.Path
		if f.Own {
			hint = "install fleet again: its own plugin is not the one it was built with"
		}
		return nil, c.problem(CodeAltered, f.Path, f.Entry.Description.Version,
			"is not the file that was locked: its SHA-256 is %s, locked is %s", p.img.sha256, f.Entry.SHA256).WithHint("%s", hint)
	}

	deadline := time.Now().Add(limits.Start)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: sdk.Handshake,
		VersionedPlugins: map[int]plugin.PluginSet{
			sdk.ProtocolVersion: {string(f.Kind): hosted{p: p, register: register}},
		},
		RunnerFunc:       p.runner,
		AutoMTLS:         true,
		SkipHostEnv:      true,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		StartTimeout:     max(time.Until(deadline), time.Millisecond),
		Stderr:           p.tail,
		Logger:           pluginLog(c.log(), f),
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: dir.path},
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(sdk.MaxMessage), grpc.MaxCallSendMsgSize(sdk.MaxMessage)),
		},
	})
	if err := p.connect(ctx, deadline, limits.Start); err != nil {
		return nil, err
	}
	return p, nil
}

// pluginLog passes a plugin's warnings on at their level and the rest as debug.
func pluginLog(l hclog.Logger, f Found) hclog.Logger {
	return l.Named("plugin").With("file", f.Path, "version", f.Entry.Description.Version)
}

// runner gives go-plugin the process to start: the private copy under the
// plugin's own name.
func (p *Process) runner(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
	name := filepath.Base(p.found.Path)
	cmd.Path, cmd.Args, cmd.Err = p.img.path, []string{name}, nil
	cmd.Dir = "/"
	cmd.Env = append(append(pluginEnv(), sdk.EnvRunDir+"="+p.dir.path), cmd.Env...)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed {
		return nil, errors.New("ended before it was started")
	}
	proc, err := newProcess(name, cmd)
	if err != nil {
		return nil, err
	}
	p.proc = proc
	return proc, nil
}

// connect starts the process and makes the first call, all before the deadline.
func (p *Process) connect(ctx context.Context, deadline time.Time, allowed time.Duration) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	done := make(chan error, 1)
	go func() { // ends when the process does, which Close sees to
		done <- func() error {
			if _, err := p.client.Start(); err != nil {
				return err
			}
			client, err := p.client.Client()
			if err != nil {
				return err
			}
			_, err = client.Dispense(string(p.found.Kind)) // runs hosted.GRPCClient
			return err
		}()
	}()
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		return p.startProblem(ctx, err, allowed)
	case <-ctx.Done():
		p.kill()
		<-done
		return p.startProblem(ctx, ctx.Err(), allowed)
	}
}

// startProblem tells the ways apart in which a start fails.
func (p *Process) startProblem(ctx context.Context, err error, allowed time.Duration) error {
	problem := func(code, format string, args ...any) *fault.Error {
		return p.c.problem(code, p.found.Path, p.found.Entry.Description.Version, format, args...)
	}
	text := err.Error()
	upgrade := "upgrade the plugin, or report it to whoever wrote it"
	if p.found.Own {
		upgrade = "install fleet again"
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case strings.Contains(text, "incompatible API version"), strings.Contains(text, "incompatible core API"):
		return problem(CodeTooNew, "does not speak what it describes: %s", firstLine(text)).WithHint("%s", upgrade)
	case strings.Contains(text, "Unrecognized remote plugin message") && p.proc.wrote.Load() > 0,
		strings.Contains(text, "unsupported plugin protocol"), strings.Contains(text, "parsing"), strings.Contains(text, "unknown address type"):
		return problem(CodeGarbled, "wrote something that is not fleet's plugin protocol: %s", firstLine(text)).WithHint("%s", upgrade)
	case p.proc == nil || !p.proc.started():
		return problem(CodeNotStarted, "was not started: %s", firstLine(text)).
			WithHint("check that the file was made for this system")
	case ctx.Err() != nil, strings.Contains(text, "timeout while waiting for plugin"):
		return problem(CodeSlow, "did not answer within %s of its start; %s", allowed, lastWords(p.tail.String())).WithHint("%s", upgrade)
	}
	p.awaitEnd()
	if how := p.proc.ended(); how != "" {
		return problem(CodeCrashed, "ended before it served anything (%s); %s", how, lastWords(p.tail.String())).WithHint("%s", upgrade)
	}
	return problem(CodeGarbled, "does not answer as a plugin does: %s", firstLine(text)).WithHint("%s", upgrade)
}

// awaitEnd waits a moment for the process's own end, so that the error can say how.
func (p *Process) awaitEnd() {
	t := time.NewTimer(endTime)
	defer t.Stop()
	for _, c := range []<-chan struct{}{p.proc.exited, p.proc.silent} {
		select {
		case <-c:
		case <-t.C:
			return
		}
	}
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return fmt.Sprintf("%q", s)
}

// hosted is the go-plugin side of a Process.
type hosted struct {
	plugin.NetRPCUnsupportedPlugin
	p        *Process
	register func(*grpc.Server)
}

func (hosted) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return sdk.ErrUnsupported }

// GRPCClient serves the host's part and tells the plugin where it is.
func (h hosted) GRPCClient(ctx context.Context, b *plugin.GRPCBroker, cc *grpc.ClientConn) (any, error) {
	if _, err := healthv1.NewHealthClient(cc).Check(ctx, &healthv1.HealthCheckRequest{Service: plugin.GRPCServiceName}); err != nil {
		return nil, err
	}
	ready := make(chan *grpc.Server, 1)
	id := b.NextId()
	go func() { // ends when hostServer stops or the broker closes
		defer close(h.p.served)
		b.AcceptAndServe(id, func(opts []grpc.ServerOption) *grpc.Server {
			s := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(sdk.MaxMessage))...)
			h.register(s)
			ready <- s
			return s
		})
	}()
	select {
	case h.p.hostServer = <-ready:
	case <-h.p.served:
		return nil, errors.New("cannot serve the plugin's host")
	}
	h.p.conn = cc
	return nil, sdk.Attach(ctx, cc, id)
}

// deadlineSlack is how much apart two processes see one deadline pass.
const deadlineSlack = 250 * time.Millisecond

// call runs one call with a deadline and turns the plugin's death into the one
// error that says so. What the plugin itself answers passes as it is.
func (p *Process) call(ctx context.Context, what string, f func(context.Context) error) error {
	outer := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.c.Limits.withDefaults().Call)
		defer cancel()
	}
	err := f(ctx)
	if err == nil || outer.Err() != nil {
		return err
	}
	// An error of the connection comes a moment before the process is reaped.
	if sdk.ConnectionLost(err) {
		p.awaitEnd()
	}
	version := p.found.Entry.Description.Version
	if how := p.proc.ended(); how != "" {
		return p.c.problem(CodeCrashed, p.found.Path, version, "ended during %s (%s); %s", what, how, lastWords(p.tail.String())).
			WithHint("run the command again; if it happens again, upgrade the plugin or report it")
	}
	// The deadline travels with the call, and the plugin's side may end it a
	// moment before this one notices.
	end, _ := ctx.Deadline()
	cut := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if ctx.Err() != nil || cut && time.Until(end) < deadlineSlack {
		return p.c.problem(CodeSlow, p.found.Path, version, "did not finish %s in time", what).
			WithHint("run the command again; if it happens again, upgrade the plugin or report it")
	}
	return err
}

// Description is what the plugin said of itself when it was locked.
func (p *Process) Description() sdk.Description { return p.found.Entry.Description }

func (p *Process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
	if p.proc != nil {
		_ = p.proc.Kill(context.Background())
	}
}

// Close ends the plugin and removes everything of it. It returns after the
// process is gone.
func (p *Process) Close() error {
	p.closeOnce.Do(func() {
		if p.client != nil {
			done := make(chan struct{})
			go func() {
				defer close(done)
				p.client.Kill()
			}()
			t := time.NewTimer(p.c.Limits.withDefaults().Stop)
			select {
			case <-done:
			case <-t.C:
				p.kill()
				<-done
			}
			t.Stop()
		}
		if p.hostServer != nil {
			p.hostServer.Stop()
			<-p.served
		}
		if p.img != nil {
			p.img.close()
		}
		p.closeErr = p.dir.remove()
	})
	return p.closeErr
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	max int
	b   []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if over := len(t.b) - t.max; over > 0 {
		t.b = slices.Delete(t.b, 0, over)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.ToValidUTF8(t.b, []byte("?")))
}
