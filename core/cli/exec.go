package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	ufcli "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/wire"
)

func execCommand(reach Reach) *command.Command {
	return &command.Command{Name: "exec", Group: groupReach, Args: "MACHINE -- CMD…", Summary: "run a command on a machine",
		Help: "The words of CMD reach the program exactly as they are; no shell reads them. Standard input is\n" +
			"/dev/null without -i. The exit code is the command's, 128 plus the number of the signal that ended\n" +
			"it, or 255 when fleet itself could not do its part. The command goes on when the connection is lost.",
		Min: 1, Max: 1, Rest: command.RestRequired, FailureExit: fault.ExecFailure,
		Flags: append(command.JSONFlags(false),
			&ufcli.BoolFlag{Name: "t", Usage: "give it a terminal (and the input that goes with it)"},
			&ufcli.BoolFlag{Name: "i", Usage: "pass standard input on"},
			&ufcli.StringFlag{Name: "w", Aliases: []string{"workspace"}, Usage: "run in `WORKSPACE`"},
			&ufcli.StringSliceFlag{Name: "env", Usage: "set `K=V` in its environment"},
			&ufcli.StringFlag{Name: "env-file", Usage: "take its environment from `FILE`, - for standard input"},
			&ufcli.BoolFlag{Name: "detach", Usage: "do not wait; print the session's id"},
		),
		Run: func(ctx context.Context, c *command.Call) error {
			req, err := execRequest(c)
			if err != nil {
				return err
			}
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error {
				if c.Bool("detach") {
					s, err := a.Create(ctx, *req)
					if err != nil {
						return err
					}
					if c.WantsJSON() {
						return c.Print(s)
					}
					fmt.Fprintln(c.Stdout, s.ID)
					return nil
				}
				return attached(ctx, c, t, req.Stdin, req.PTY != nil, func(ctx context.Context, at agentclient.Attachment) (*frame.ExitStatus, error) {
					if req.PTY != nil {
						req.PTY.Rows, req.PTY.Cols = at.Size.Rows, at.Size.Cols
					}
					_, exit, err := a.Run(ctx, *req, at)
					return exit, err
				})
			})
		}}
}

func execRequest(c *command.Call) (*wire.SessionRequest, error) {
	req := &wire.SessionRequest{Argv: c.Rest, Workspace: c.String("w"), Stdin: c.Bool("i") || c.Bool("t"), Env: map[string]string{}}
	if c.Bool("t") {
		if c.Bool("detach") {
			return nil, fault.Usagef("-t needs somebody at the terminal; it does not go with --detach")
		}
		req.PTY = &wire.PTY{Term: c.Getenv("TERM")}
	}
	if c.Bool("detach") && c.Bool("i") {
		return nil, fault.Usagef("-i does not go with --detach")
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

// readEnv reads K=V lines; blank ones and those that begin with # are skipped.
// Its errors never quote a line: the values are what the file is for.
func readEnv(c *command.Call, name string, env map[string]string) error {
	r := c.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("cannot read variables: %w", err)
		}
		defer f.Close()
		r = f
	}
	sc := bufio.NewScanner(io.LimitReader(r, maxEnvFile))
	sc.Buffer(nil, maxEnvFile)
	for n := 1; sc.Scan(); n++ {
		line := sc.Text()
		if t := strings.TrimSpace(line); t == "" || t[0] == '#' {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return fault.Usagef("%s: line %d is not K=V", name, n)
		}
		env[k] = v
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("cannot read variables: %w", err)
	}
	return nil
}

func shellCommand(reach Reach) *command.Command {
	return &command.Command{Name: "shell", Group: groupReach, Args: "MACHINE", Summary: "open the account's login shell on a machine",
		Help: "Enter ~ . leaves the shell running and ends the connection; fleet attach comes back to it.",
		Min:  1, Max: 1, FailureExit: fault.ExecFailure,
		Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error {
				return attached(ctx, c, t, true, true, func(ctx context.Context, at agentclient.Attachment) (*frame.ExitStatus, error) {
					_, exit, err := a.Run(ctx, wire.SessionRequest{Shell: true, PTY: &wire.PTY{Term: c.Getenv("TERM"), Rows: at.Size.Rows, Cols: at.Size.Cols}}, at)
					return exit, err
				})
			})
		}}
}

func attachCommand(reach Reach) *command.Command {
	return &command.Command{Name: "attach", Group: groupReach, Args: "MACHINE SESSION", Summary: "follow a session, from its kept output on",
		Help: "The output comes from the offset --from on, by default all that is kept. On a terminal, or with -i,\ninput is passed on, and Enter ~ . leaves the session running.",
		Min:  2, Max: 2, FailureExit: fault.ExecFailure,
		Flags: []ufcli.Flag{
			&ufcli.Int64Flag{Name: "from", Usage: "begin at output offset `N`; -1 for what is to come"},
			&ufcli.BoolFlag{Name: "i", Usage: "pass standard input on"},
		},
		Run: func(ctx context.Context, c *command.Call) error {
			return with(ctx, c, reach, func(t Target, a *agentclient.Client) error {
				s, err := a.Session(ctx, c.Arg(1))
				if err != nil {
					return err
				}
				running := s.State == wire.SessionRunning
				input := running && (c.Bool("i") || command.IsTerminal(c.Stdin))
				return attached(ctx, c, t, input, running && s.PTY, func(ctx context.Context, at agentclient.Attachment) (*frame.ExitStatus, error) {
					exit, _, err := a.Attach(ctx, s.ID, c.Int64("from"), at)
					return exit, err
				})
			})
		}}
}

// attached connects this process's streams with a session and turns its end
// into an exit code. The first interrupt goes to the command; a second one
// ends the waiting, not the command.
func attached(ctx context.Context, c *command.Call, t Target, input, pty bool, run func(context.Context, agentclient.Attachment) (*frame.ExitStatus, error)) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	forward, stop := signals(cancel)
	defer stop()
	at := agentclient.Attachment{Stdout: c.Stdout, Stderr: c.Stderr, Signals: forward,
		Notice: func(text string) { c.Notef("fleet: %s: %s", t.Name(), text) },
		Lost:   func(from, to int64) { c.Notef("fleet: %d bytes of output are no longer kept", to-from) }}
	if input {
		at.Stdin = c.Stdin
	}
	if pty && command.IsTerminal(c.Stdin) {
		restore, err := terminal(c, &at, cancel)
		if err != nil {
			return err
		}
		defer restore()
	}
	exit, err := run(ctx, at)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		if errors.Is(cause, agentclient.ErrDetached) {
			c.Notef("\r\nfleet: %s", cause)
			return nil
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

// signals passes the first interrupts on and cancels at the next.
func signals(cancel context.CancelCauseFunc) (<-chan string, func()) {
	got, out, done := make(chan os.Signal, 4), make(chan string, 4), make(chan struct{})
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-got:
				if n > 0 {
					cancel(context.Canceled)
					continue
				}
				out <- strings.TrimPrefix(unix.SignalName(s.(syscall.Signal)), "SIG")
			}
		}
	}()
	return out, func() {
		signal.Stop(got)
		close(done)
		<-ended
	}
}

// terminal makes the caller's terminal raw, follows its size and watches for
// the escape. The returned function undoes that.
func terminal(c *command.Call, at *agentclient.Attachment, cancel context.CancelCauseFunc) (restore func(), err error) {
	fd := int(c.Stdin.(interface{ Fd() uintptr }).Fd())
	size := func() (s agentclient.Size) {
		if cols, rows, err := term.GetSize(fd); err == nil {
			s = agentclient.Size{Rows: uint16(rows), Cols: uint16(cols)}
		}
		return s
	}
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("cannot use terminal: %w", err)
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
	at.Stdin = &escape{r: c.Stdin, fresh: true, leave: func() { cancel(agentclient.ErrDetached) }}
	return func() {
		signal.Stop(winch)
		close(done)
		<-ended
		term.Restore(fd, state)
	}, nil
}

// escape looks for Enter ~ . as ssh(1) does; Enter ~ ~ stands for one tilde.
type escape struct {
	r     io.Reader
	fresh bool // at the beginning of a line
	tilde bool // after a tilde there
	leave func()
}

func (e *escape) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	for {
		n, err := e.r.Read(p[:len(p)/2])
		out := make([]byte, 0, 2*n)
		for _, b := range p[:n] {
			switch {
			case e.tilde && b == '.':
				e.leave()
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
