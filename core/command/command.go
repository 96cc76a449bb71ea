// Package command is the one place where fleet's programs meet urfave/cli: it
// turns a table of commands into a program whose flags may stand before or
// after arguments, whose `--` ends them, whose slice flags do not split on
// commas, and which never exits by itself. Errors become words and exit codes
// here and nowhere else.
//
// It knows nothing of what the commands do.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// App is one program.
type App struct {
	Name     string
	Summary  string
	Version  string
	Flags    []cli.Flag // every command takes these too
	Commands []*Command
	Topics   []Topic

	// Signals makes SIGINT and SIGTERM cancel the commands' context. A daemon
	// that tells signals apart leaves it off.
	Signals bool
	// Config, where set, is asked for the value of a flag that neither the
	// command line nor the environment gives.
	Config func() (map[string]string, error)
	// Unknown, where set, is asked for a command that is not in the table, with
	// all other words of the command line. It returns false if it does not know
	// the name either.
	Unknown func(ctx context.Context, io IO, name string, args []string) (exit int, known bool)
}

// Topic is a page of help that is no command's.
type Topic struct{ Name, Summary, Text string }

// Rest says what a command does with the arguments after `--`.
type Rest int

const (
	RestJoined   Rest = iota // they are arguments like the others
	RestRequired             // they are a command line of their own and must be there
)

// Command is one command, or a group of commands when Sub is set.
type Command struct {
	Name    string
	Group   string // heading in the program's help
	Args    string // what stands after the name in the usage line
	Summary string // one line, no full stop
	Help    string // further paragraphs
	Flags   []cli.Flag
	Min     int // fewest arguments
	Max     int // most; negative means no bound
	Rest    Rest
	Sub     []*Command
	// Verbs are commands that stand where the first argument would: a word that
	// names one is that command, with flags of its own, and never an argument.
	Verbs  []*Command
	Hidden bool

	Run func(ctx context.Context, c *Call) error
	// Raw replaces Run for a command whose arguments another program parses.
	// It gets all that follows the command's name.
	Raw func(ctx context.Context, io IO, args []string) int
	// NoConfig is for a command that answers also where the configuration is
	// broken: it is not read.
	NoConfig bool
	// FailureExit, where not 0, is the exit code of every failure of the
	// command's own, as ssh's 255.
	FailureExit int
}

// IO is what a program was given by whoever started it.
type IO struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	// Notify relays signals until stop is called, as package signal does; nil
	// means those of this process.
	Notify func(c chan<- os.Signal, sig ...os.Signal) (stop func())
}

// Signals relays the given signals to c until stop is called.
func (io IO) Signals(c chan<- os.Signal, sig ...os.Signal) (stop func()) {
	if io.Notify != nil {
		return io.Notify(c, sig...)
	}
	signal.Notify(c, sig...)
	return func() { signal.Stop(c) }
}

// interruptible is a context that SIGINT and SIGTERM cancel.
func (io IO) interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	if io.Notify == nil {
		return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	}
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan os.Signal, 1)
	stop := io.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() { // ends with the context
		defer close(ended)
		select {
		case <-got:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-ended
		stop()
	}
}

// OS is the process's own IO.
func OS() IO {
	return IO{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
}

// Call is one use of a command. Flags are read through the embedded context
// (String, Bool, IsSet, …); Args are the arguments without flags.
type Call struct {
	*cli.Context
	IO
	Args  []string
	Rest  []string // what stood after `--`, with RestRequired
	Usage string   // the command's usage line

	config map[string]bool // flags that the configuration gave
}

// Given reports whether the command line or the environment gives the flag. A
// value out of the configuration is one for every command and does not count.
func (c *Call) Given(name string) bool { return c.IsSet(name) && !c.config[name] }

// Arg is the i-th argument, or "".
func (c *Call) Arg(i int) string {
	if i < len(c.Args) {
		return c.Args[i]
	}
	return ""
}

// WantsJSON reports whether one document or JSON Lines were asked for.
func (c *Call) WantsJSON() bool { return c.Bool("json") || c.Bool("jsonl") }

// IsTerminal reports whether the stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// Interactive reports whether the caller may be asked something.
func (c *Call) Interactive() bool {
	return !c.Bool("no-input") && IsTerminal(c.Stdin) && IsTerminal(c.Stderr)
}

// Print writes a document to stdout, indented under --json, on one line under
// --jsonl.
func (c *Call) Print(doc any) error {
	enc := json.NewEncoder(c.Stdout)
	enc.SetEscapeHTML(false)
	if c.Bool("json") {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(doc)
}

// Notef writes one line for a person to stderr. Machines, planes and SSH servers
// have a say in many of them, so what would control a terminal is replaced; a
// line may end as a terminal in raw mode wants it.
func (c *Call) Notef(format string, args ...any) {
	lines := strings.Split(fmt.Sprintf(format, args...), "\r\n")
	for i, l := range lines {
		lines[i] = shown(l)
	}
	io.WriteString(c.Stderr, strings.Join(lines, "\r\n")+"\n")
}

// JSONFlags are --json and, for streams and lists, --jsonl.
func JSONFlags(lines bool) []cli.Flag {
	f := []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON document"}}
	if lines {
		f = append(f, &cli.BoolFlag{Name: "jsonl", Usage: "print JSON Lines"})
	}
	return f
}

// Main runs the program and returns its exit code.
func (a *App) Main(args []string, std IO) int { return a.MainContext(context.Background(), args, std) }

// MainContext is Main within a context.
func (a *App) MainContext(ctx context.Context, args []string, std IO) int {
	if a.Signals {
		var stop context.CancelFunc
		ctx, stop = std.interruptible(ctx)
		defer stop()
	}
	return a.run(ctx, args, std)
}

func (a *App) run(ctx context.Context, args []string, std IO) int {
	inv, err := a.resolve(args[1:])
	if err == nil {
		switch {
		case inv.help:
			return a.showHelp(ctx, std, inv)
		case inv.missing:
			if a.Unknown != nil && inv.unknown != "" && len(inv.path) == 0 {
				if code, known := a.Unknown(ctx, std, inv.unknown, inv.raw); known {
					return code
				}
			}
			err = a.unknownCommand(inv)
		case inv.leaf.Raw != nil:
			return inv.leaf.Raw(ctx, std, inv.raw)
		default:
			err = a.invoke(ctx, inv, std)
		}
	}
	if err == nil {
		return fault.OK
	}
	// What a command passes on as its exit code stands, interrupted or not.
	if passed := (*Exit)(nil); ctx.Err() != nil && !asExit(err, &passed) && fault.Of(err).Code == fault.CodeFailure {
		err = fault.New(fault.Interrupted, fault.CodeCanceled, "interrupted: %w", err)
	}
	return a.report(std, inv, err)
}

// report says what went wrong, in the form that the caller asked for.
func (a *App) report(std IO, inv *invocation, err error) int {
	f := fault.Of(err)
	exit := f.Exit
	if inv != nil && inv.leaf != nil && inv.leaf.FailureExit != 0 && exit != fault.Usage && exit != fault.Interrupted {
		exit = inv.leaf.FailureExit
	}
	var passed *Exit
	if asExit(err, &passed) {
		return passed.Status
	}
	if inv != nil && inv.json {
		enc := json.NewEncoder(std.Stderr)
		enc.SetEscapeHTML(false)
		enc.Encode(wire.CLIError{Schema: wire.SchemaError, Error: wire.CLIErrorDetail{
			Code: f.Code, Message: f.Msg, Hint: f.Hint, Exit: exit}})
		return exit
	}
	fmt.Fprintf(std.Stderr, "%s: %s\n", a.Name, shown(f.Msg))
	if f.Hint != "" {
		fmt.Fprintf(std.Stderr, "hint: %s\n", strings.ReplaceAll(shown(f.Hint), "\n", "\n      "))
	}
	return exit
}

// shown replaces what could control a terminal: messages carry words of
// machines and planes.
func shown(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// Clean makes a word that came from elsewhere safe to show on one line: what
// would control a terminal becomes a visible replacement.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// Fit cleans s and shortens it to n characters.
func Fit(s string, n int) string {
	s = Clean(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// Exit is an error that only sets the exit code: everything has been said
// already, or the code is somebody else's, as a remote command's.
type Exit struct{ Status int }

func (e *Exit) Error() string { return fmt.Sprintf("exit status %d", e.Status) }

func asExit(err error, target **Exit) bool {
	e, ok := err.(*Exit)
	if ok {
		*target = e
	}
	return ok
}

// invoke hands a resolved invocation to urfave/cli, which parses the values
// and runs the command.
func (a *App) invoke(ctx context.Context, inv *invocation, std IO) error {
	leaf := inv.leaf
	if n := len(inv.args); n < leaf.Min || leaf.Max >= 0 && n > leaf.Max {
		return fault.Usagef("%s", countWords(inv.args, leaf)).WithHint("usage: %s", a.usageLine(inv))
	}
	if leaf.Rest == RestRequired && len(inv.rest) == 0 {
		return fault.Usagef("the command to run is missing").WithHint("usage: %s", a.usageLine(inv))
	}
	var config map[string]string
	if a.Config != nil && !leaf.NoConfig {
		var err error
		if config, err = a.Config(); err != nil {
			return err
		}
	}
	var ran error
	app := &cli.App{
		Name: a.Name, HideHelp: true, HideVersion: true,
		DisableSliceFlagSeparator: true,
		// What is said of a wrong call is said by report; the library would print
		// a help of its own first.
		Writer: io.Discard, ErrWriter: io.Discard,
		Reader:         std.Stdin,
		Flags:          inv.flags,
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return fault.Usagef("%s", misuse(err, inv.flags)).WithHint("usage: %s", a.usageLine(inv))
		},
		Action: func(cc *cli.Context) error {
			call := &Call{Context: cc, IO: std, Args: inv.args, Rest: inv.rest, Usage: a.usageLine(inv), config: map[string]bool{}}
			for name, value := range config {
				if known(inv.flags, name) && !cc.IsSet(name) {
					if err := cc.Set(name, value); err != nil {
						return fault.Usagef("configuration: %s", unfit(name, err.Error()))
					}
					call.config[name] = true
				}
			}
			ran = leaf.Run(cc.Context, call)
			return nil
		},
	}
	if err := app.RunContext(ctx, append([]string{a.Name}, inv.normal...)); err != nil {
		// Whatever fails before the command runs is how it was called.
		var f *fault.Error
		if errors.As(err, &f) {
			return err
		}
		return fault.Usagef("%s", misuse(err, inv.flags)).WithHint("usage: %s", a.usageLine(inv))
	}
	return ran
}

func known(flags []cli.Flag, name string) bool {
	for _, f := range flags {
		for _, n := range f.Names() {
			if n == name {
				return true
			}
		}
	}
	return false
}
