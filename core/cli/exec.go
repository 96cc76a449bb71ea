package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	ufcli "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/quick"
	"fleet.example/fleet/core/wire"
)

func execCommand(reach Reach) *command.Command {
	spec := fanout.Spec{Does: "run the command", Linked: true, FailureExit: fault.ExecFailure}
	return &command.Command{Name: "exec", Group: groupReach, Args: "MACHINE|SELECTOR -- CMD…", Summary: "run a command on a machine",
		Help: `The words of CMD reach the program exactly as they are; no shell reads them.
Standard input is /dev/null without -i. The exit code is the command's, 128 plus
the number of the signal that ended it, or 255 when fleet itself could not do its
part. The command goes on when the connection is lost; it is ended (SIGTERM) when
nobody reads its output any more, as in a pipe to head.

On many machines each line of output begins with the machine's name, and the
exit code is 3 when some failed. An interrupt goes to the command on every
machine, and no further machine begins; a second one leaves the commands running.

With --jsonl, output comes as {"machine","name","stream","data"}, with data_b64
instead of data where it is no UTF-8, and each machine's result follows its
output, with the command's exit code.`,
		Max: 1, Rest: command.RestRequired, FailureExit: fault.ExecFailure,
		Flags: append(append(command.JSONFlags(true),
			&ufcli.BoolFlag{Name: "t", Usage: "give it a terminal (and the input that goes with it)"},
			&ufcli.BoolFlag{Name: "i", Usage: "pass standard input on"},
			&ufcli.StringFlag{Name: "w", Aliases: []string{"workspace"}, Usage: "run in `WORKSPACE`"},
			&ufcli.StringSliceFlag{Name: "env", Usage: "set `K=V` in its environment"},
			&ufcli.StringFlag{Name: "env-file", Usage: "take its environment from `FILE`, - for standard input"},
			&ufcli.BoolFlag{Name: "detach", Usage: "do not wait; print the session's id"},
			&ufcli.StringFlag{Name: quick.RejoinFlag, Hidden: true, Usage: "go on with `SESSION@OFFSET`, which this command began"},
		), spec.Flags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			spec := spec
			spec.Streams = !c.Bool("detach")
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			if err := checkExec(c, sel.Many()); err != nil {
				return err
			}
			req, err := execRequest(c)
			if err != nil {
				return err
			}
			machines, err := sel.Machines(ctx, c, reach.Find)
			if err != nil {
				return err
			}
			return sel.Each(ctx, c, machines, reached(reach, func(ctx context.Context, o *fanout.One, t Target, a *agentclient.Client) (fanout.Outcome, error) {
				return execOn(ctx, reach.Behalf, o, t, a, *req)
			}), nil)
		}}
}

// checkExec refuses what makes no sense together.
func checkExec(c *command.Call, many bool) error {
	switch {
	case c.Bool("t") && c.Bool("detach"):
		return fault.Usagef("-t needs somebody at the terminal; it does not go with --detach")
	case c.Bool("i") && c.Bool("detach"):
		return fault.Usagef("-i does not go with --detach")
	case many && c.Bool("t"):
		return fault.Usagef("-t is for one machine: many cannot share a terminal")
	case many && c.Bool("i"):
		return fault.Usagef("-i is for one machine: many cannot share one standard input")
	case c.String("w") != "" && wire.CheckWorkspaceName(c.String("w")) != nil:
		return fault.Usagef("-w: %s", wire.CheckWorkspaceName(c.String("w")))
	case c.Bool("t") && c.Bool("jsonl"):
		return fault.Usagef("-t and --jsonl do not go together")
	case many && c.Bool("json") && !c.Bool("detach"):
		return fault.Usagef("output makes no one document").WithHint("--jsonl prints it as it comes, and the results")
	}
	return nil
}

func execOn(ctx context.Context, behalf Behalf, o *fanout.One, t Target, a *agentclient.Client, req wire.SessionRequest) (fanout.Outcome, error) {
	if !o.Bool("detach") {
		return remoteExit(attached(ctx, o, t, streams{input: req.Stdin, pty: req.PTY != nil, signals: true}, func(ctx context.Context, at agentclient.Attachment) (*frame.ExitStatus, error) {
			if req.PTY != nil {
				req.PTY.Rows, req.PTY.Cols = at.Size.Rows, at.Size.Cols
			}
			if f := o.String(quick.RejoinFlag); f != "" {
				var err error
				var sig syscall.Signal
				if req.ID, at.From, sig, err = rejoined(f); err != nil {
					return nil, err
				}
				if sig != 0 {
					syscall.Kill(os.Getpid(), sig) // it is taken as any other that comes now
				}
			}
			if behalf != nil {
				if err := begin(ctx, behalf, a, &req, &at); err != nil {
					return nil, err
				}
			}
			id, exit, err := a.Run(ctx, req, at)
			if unread(err) {
				return endUnread(ctx, a, id)
			}
			return exit, err
		}))
	}
	s, err := a.Create(ctx, req)
	if err != nil {
		return fanout.Outcome{}, err
	}
	return fanout.Outcome{Document: s, Words: s.ID, Show: func(c *command.Call) error {
		_, err := fmt.Fprintln(c.Stdout, s.ID)
		return err
	}}, nil
}

// unreadPatience bounds what ending a command whose output nobody reads takes.
const unreadPatience = 10 * time.Second

// unread reports whether nobody reads this side's output any more.
func unread(err error) bool {
	return errors.Is(err, agentclient.ErrOutput) && errors.Is(err, syscall.EPIPE)
}

// endUnread ends a command whose output nobody reads, and ends as a local one
// does. The signal is not SIGPIPE: many programs ignore that one and watch
// their writes instead, which go on succeeding there.
func endUnread(ctx context.Context, a *agentclient.Client, id string) (*frame.ExitStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, unreadPatience)
	defer cancel()
	if _, err := a.Signal(ctx, id, "TERM"); err != nil {
		var refused *agentclient.Error
		if !errors.As(err, &refused) { // refused: it ended by itself
			return nil, fmt.Errorf("nobody reads the output, and session %s cannot be ended: %w", id, err)
		}
	}
	var exit frame.ExitStatus
	exit.Code = 128 + int(syscall.SIGPIPE)
	return &exit, nil
}

func execRequest(c *command.Call) (*wire.SessionRequest, error) {
	req := &wire.SessionRequest{Argv: c.Rest, Workspace: c.String("w"), Stdin: c.Bool("i") || c.Bool("t"), Env: map[string]string{}}
	if c.Bool("t") {
		req.PTY = &wire.PTY{Term: c.Getenv("TERM")}
	}
	if f := c.String("env-file"); f != "" {
		if f == "-" && req.Stdin {
			return nil, fault.Usagef("--env-file - and -i both want standard input")
		}
		if err := readEnv(c, f, req.Env); err != nil {
			return nil, err
		}
	}
	for _, kv := range c.StringSlice("env") {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, fault.Usagef("--env takes K=V")
		}
		req.Env[k] = v
	}
	return req, nil
}

// maxEnvFile bounds a file of variables.
const maxEnvFile = 1 << 20

// readEnv reads a file of variables, or standard input.
func readEnv(c *command.Call, name string, env map[string]string) error {
	if name == "-" {
		return parseEnv(c.Stdin, "standard input", env)
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("cannot read variables: %w", err)
	}
	defer f.Close()
	return parseEnv(f, name, env)
}

// parseEnv reads K=V lines; blank ones and those that begin with # are skipped.
// Its errors never quote a line: the values are what the file is for. A file
// that is too large is refused whole, since a part of it is another environment.
func parseEnv(r io.Reader, name string, env map[string]string) error {
	text, err := io.ReadAll(io.LimitReader(r, maxEnvFile+1))
	if err != nil {
		return fmt.Errorf("cannot read variables: %w", err)
	}
	if len(text) > maxEnvFile {
		return fault.Usagef("%s: more than %d bytes of variables", name, maxEnvFile)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if t := strings.TrimSpace(line); t == "" || t[0] == '#' {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return fault.Usagef("%s: line %d is not K=V", name, n)
		}
		env[k] = v
	}
	return nil
}

func shellCommand(reach Reach) *command.Command {
	return &command.Command{Name: "shell", Group: groupReach, Args: "MACHINE", Summary: "open the account's login shell on a machine",
		Help: "Enter ~ . leaves the shell running and ends the connection; fleet attach comes back to it. Without a\nterminal the shell reads commands from standard input, and the exit code is its own.",
		Min:  1, Max: 1, FailureExit: fault.ExecFailure,
		Flags: []ufcli.Flag{&ufcli.StringFlag{Name: "w", Aliases: []string{"workspace"}, Usage: "open it in `WORKSPACE`"}},
		Run: func(ctx context.Context, c *command.Call) error {
			terminal := command.IsTerminal(c.Stdin)
			if w := c.String("w"); w != "" && wire.CheckWorkspaceName(w) != nil {
				return fault.Usagef("-w: %s", wire.CheckWorkspaceName(w))
			}
			return with(ctx, c, reach, func(o *fanout.One, t Target, a *agentclient.Client) error {
				return attached(ctx, o, t, streams{input: true, pty: terminal, signals: true}, func(ctx context.Context, at agentclient.Attachment) (*frame.ExitStatus, error) {
					req := wire.SessionRequest{Shell: true, Workspace: c.String("w")}
					if terminal {
						req.PTY = &wire.PTY{Term: c.Getenv("TERM"), Rows: at.Size.Rows, Cols: at.Size.Cols}
					}
					_, exit, err := a.Run(ctx, req, at)
					return exit, err
				})
			})
		}}
}

func attachCommand(reach Reach) *command.Command {
	return &command.Command{Name: "attach", Group: groupReach, Args: "MACHINE SESSION", Summary: "follow a session, from its kept output on",
		Help: `The output comes from the offset --from on, by default all that is kept: the last
64 MiB of it, for as long as the session runs and, of those that ended last, for a
week. A command that somebody follows, as plain fleet exec does, waits at that limit
for its output to be read and loses none.

On a terminal, or with -i, input is passed on, and Enter ~ . leaves the session
running. An interrupt ends the following and never the session: fleet kill does that.`,
		Min: 2, Max: 2, FailureExit: fault.ExecFailure,
		Flags: []ufcli.Flag{
			&ufcli.Int64Flag{Name: "from", Usage: "begin at output offset `N`; -1 for what is to come"},
			&ufcli.BoolFlag{Name: "i", Usage: "pass standard input on"},
		},
		Run: func(ctx context.Context, c *command.Call) error {
			if err := checkSession(c.Arg(1)); err != nil {
				return err
			}
			if c.Int64("from") < -1 {
				return fault.Usagef("--from takes an offset from 0, or -1, not %d", c.Int64("from"))
			}
			return with(ctx, c, reach, func(o *fanout.One, t Target, a *agentclient.Client) error {
				s, err := a.Session(ctx, c.Arg(1))
				if err != nil {
					return err
				}
				running := s.State == wire.SessionRunning
				input := running && (c.Bool("i") || command.IsTerminal(c.Stdin))
				return attached(ctx, o, t, streams{input: input, pty: running && s.PTY}, func(ctx context.Context, at agentclient.Attachment) (*frame.ExitStatus, error) {
					exit, _, err := a.Attach(ctx, s.ID, c.Int64("from"), at)
					return exit, err
				})
			})
		}}
}

// streams is what of this process a session is connected with, besides output.
type streams struct {
	input   bool
	pty     bool
	signals bool // the first interrupt goes to the command
}

// attached connects this process's streams with a session and turns its end
// into an exit code. An interrupt that does not go to the command ends the
// waiting, not the command.
func attached(parent context.Context, o *fanout.One, t Target, with streams, run func(context.Context, agentclient.Attachment) (*frame.ExitStatus, error)) error {
	c := o.Call
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	defer cancel(nil)
	forward, stop := signals(c.IO, with.signals, cancel)
	defer stop()
	if err := parent.Err(); err != nil {
		return err // the interrupt came before there was a command to pass it on to
	}
	at := agentclient.Attachment{Stdout: o.Out, Stderr: o.Err, Signals: forward,
		Notice: func(text string) { c.Notef("fleet: %s: %s", t.Name(), text) },
		Lost:   func(from, to int64) { c.Notef("fleet: %d bytes of output are no longer kept", to-from) }}
	if with.input {
		at.Stdin = c.Stdin
	}
	if with.pty && command.IsTerminal(c.Stdin) {
		restore, err := terminal(c, &at, cancel)
		if err != nil {
			return err
		}
		defer restore()
		at.Notice = func(text string) { // a raw terminal's lines end so
			fmt.Fprintf(c.Stderr, "fleet: %s: %s\r\n", command.Clean(t.Name()), command.Clean(text))
		}
	}
	// While this is asked for, writing to a pipe that nobody reads is an error and
	// does not end this process before it has ended the command, or has given the
	// terminal back.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	exit, err := run(ctx, at)
	if unread(err) {
		c.Notef("fleet: %s: nobody reads the output; the session goes on", t.Name())
		return &command.Exit{Status: 128 + int(syscall.SIGPIPE)}
	}
	if errors.Is(err, agentclient.ErrInterrupted) || errors.Is(err, agentclient.ErrNotBegun) {
		return fault.New(fault.Interrupted, fault.CodeCanceled, "%w", err)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		switch {
		case errors.Is(cause, agentclient.ErrDetached):
			c.Notef("\r\nfleet: %s", cause)
			return nil
		case errors.Is(cause, errTerminal):
			return cause
		}
		return fault.New(fault.Interrupted, fault.CodeCanceled, "interrupted; the session goes on")
	}
	switch {
	case err != nil:
		return err
	case exit.Gone:
		return fault.New(fault.Failure, "session_gone", "the session's host process is gone; how the command ended is not known")
	case exit.Error != "":
		c.Notef("fleet: %s: %s", t.Name(), exit.Error)
	}
	if exit.Code != 0 {
		return &command.Exit{Status: exit.Code}
	}
	return nil
}

// signals passes the first interrupt on, if asked to, and cancels at the next.
func signals(std command.IO, first bool, cancel context.CancelCauseFunc) (<-chan string, func()) {
	got, out, done := make(chan os.Signal, 4), make(chan string, 4), make(chan struct{})
	taken := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		taken = append(taken, syscall.SIGHUP)
	}
	stop := std.Signals(got, taken...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-got:
				if n > 0 || !first || s == syscall.SIGHUP { // the last: whose command it is has gone
					cancel(context.Canceled)
					continue
				}
				out <- strings.TrimPrefix(unix.SignalName(s.(syscall.Signal)), "SIG")
			}
		}
	}()
	return out, func() {
		stop()
		close(done)
		<-ended
	}
}

var errTerminal = errors.New("cannot use terminal")

// terminal makes the caller's terminal raw once the session is there, follows
// its size and watches for the escape, and for Ctrl-C while nothing is connected.
// The returned function undoes that.
func terminal(c *command.Call, at *agentclient.Attachment, cancel context.CancelCauseFunc) (restore func(), err error) {
	fd := int(c.Stdin.(interface{ Fd() uintptr }).Fd())
	size := func() (s agentclient.Size) {
		if cols, rows, err := term.GetSize(fd); err == nil {
			s = agentclient.Size{Rows: uint16(rows), Cols: uint16(cols)}
		}
		return s
	}
	state, err := term.GetState(fd)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTerminal, err)
	}
	winch, sizes, done, ended := make(chan os.Signal, 1), make(chan agentclient.Size, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(winch, syscall.SIGWINCH)
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-winch:
				select {
				case sizes <- size():
				case <-done:
					return
				}
			}
		}
	}()
	at.Size, at.Sizes = size(), sizes
	input := &escape{r: c.Stdin, fresh: true, leave: cancel}
	at.Stdin = input
	raw := false
	at.Connected = func(is bool) {
		input.apart.Store(!is)
		if is && !raw {
			raw = true
			if _, err := term.MakeRaw(fd); err != nil {
				cancel(fmt.Errorf("%w: %w", errTerminal, err))
			}
		}
	}
	return func() {
		signal.Stop(winch)
		close(done)
		<-ended
		term.Restore(fd, state)
	}, nil
}

// escape looks for Enter ~ . as ssh(1) does; Enter ~ ~ stands for one tilde.
// Ctrl-C is the command's, unless nothing is connected.
type escape struct {
	r     io.Reader
	fresh bool // at the beginning of a line
	tilde bool // after a tilde there
	apart atomic.Bool
	leave context.CancelCauseFunc
}

const ctrlC = 3

func (e *escape) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	for {
		n, err := e.r.Read(p[:len(p)/2])
		out := make([]byte, 0, 2*n)
		for _, b := range p[:n] {
			switch {
			case b == ctrlC && e.apart.Load():
				e.leave(agentclient.ErrInterrupted)
				return 0, agentclient.ErrDetached
			case e.tilde && b == '.':
				e.leave(agentclient.ErrDetached)
				return 0, agentclient.ErrDetached // no end of input: the session goes on
			case e.tilde:
				e.tilde, e.fresh = false, false
				out = append(out, '~')
				if b == '~' {
					continue
				}
			case e.fresh && b == '~':
				e.tilde = true
				continue
			}
			out = append(out, b)
			e.fresh = b == '\r' || b == '\n'
		}
		if len(out) > 0 || err != nil {
			return copy(p, out), err
		}
	}
}
