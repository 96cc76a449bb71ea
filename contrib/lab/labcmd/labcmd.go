//go:build linux

// Package labcmd is the command line of the lab: up, down, exec, ls. It keeps hosts for a person or a script, where
// a Go test calls package lab itself. It knows nothing of fleet.
package labcmd

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"fleet.example/fleet/contrib/lab"
)

// label marks the labs that `lab down` takes down when it is given no number.
const label = "lab up"

const usage = `usage: lab up [-n HOSTS] [--account NAME]... [--key PUBFILE] [--detach]
       lab down [LAB]
       lab exec [--account NAME] HOST -- COMMAND [ARG...]
       lab ls
`

// Main runs one command and returns its exit status: 0 done, 1 not done, 2 called wrongly; exec returns the
// command's own.
func Main(args []string, stdout, stderr io.Writer) int {
	// Whoever read the output may be gone by the time a detached lab says more.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	commands := map[string]func(context.Context, []string, io.Writer, io.Writer) error{
		"up": up, "down": down, "exec": execute, "ls": list, "check": check,
	}
	command, ok := commands[args[0]]
	if !ok {
		fmt.Fprint(stderr, usage)
		return 2
	}
	err := command(ctx, args[1:], stdout, stderr)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "lab: %v\n%s", err, usage)
		return 2
	case errors.As(err, &exit) && args[0] == "exec" && exit.ExitCode() > 0:
		return exit.ExitCode()
	}
	fmt.Fprintln(stderr, "lab:", err)
	return 1
}

var errUsage = errors.New("wrong arguments")

func newFlags(name string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet("lab "+name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	return flags
}

// parse turns flag's complaint into one that Main answers with the usage.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil && !errors.Is(err, flag.ErrHelp) {
		return fmt.Errorf("%w: %v", errUsage, err)
	} else {
		return err
	}
}

type logTo struct{ w io.Writer }

func (l logTo) Logf(format string, args ...any) { fmt.Fprintf(l.w, format+"\n", args...) }

func up(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := newFlags("up", stderr)
	n := flags.Int("n", 1, "how many hosts, named h1, h2, …")
	var accounts []lab.Account
	flags.Func("account", "an `account` on each host; may be given more than once (default user)", func(name string) error {
		accounts = append(accounts, lab.Account{Name: name})
		return nil
	})
	key := flags.String("key", "", "a public key file that the accounts accept, besides the lab's own key")
	detach := flags.Bool("detach", false, "return once the hosts are up")
	if err := parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *n < 1 {
		return errUsage
	}
	if err := lab.Available(); err != nil {
		return fmt.Errorf("the lab cannot run: %w", err)
	}
	var keys []string
	if *key != "" {
		data, err := os.ReadFile(*key)
		if err != nil {
			return fmt.Errorf("cannot read key: %w", err)
		}
		keys = append(keys, string(data))
	}
	if *detach {
		again := []string{"up", "-n", strconv.Itoa(*n), "--key", *key}
		for _, a := range accounts {
			again = append(again, "--account", a.Name)
		}
		return detached(ctx, again, stdout, stderr)
	}
	return foreground(ctx, *n, lab.HostSpec{Accounts: accounts, AuthorizedKeys: keys}, stdout, stderr)
}

// foreground owns the lab until a signal.
func foreground(ctx context.Context, n int, spec lab.HostSpec, stdout, stderr io.Writer) (err error) {
	start, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(n)*30*time.Second)
	defer cancel()
	l, err := lab.New(start, logTo{stderr}, lab.Options{Label: label})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	for i := range n {
		spec.Name = "h" + strconv.Itoa(i+1)
		if _, err := l.Host(start, spec); err != nil {
			return err
		}
	}
	if err := printJSON(stdout, l.Record()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// detached starts the same command in a session of its own, and returns when that has printed its record.
func detached(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot detach: %w", err)
	}
	said, err := os.CreateTemp("", "lab-up")
	if err != nil {
		return fmt.Errorf("cannot detach: %w", err)
	}
	defer said.Close()
	defer os.Remove(said.Name())
	cmd := exec.Command(self, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("cannot detach: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot detach: %w", err)
	}
	stopped := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stopped()
	var record lab.Record
	if err := json.NewDecoder(out).Decode(&record); err != nil {
		waitErr := cmd.Wait()
		text, _ := os.ReadFile(said.Name())
		return fmt.Errorf("cannot bring lab up: %w\n%s", errors.Join(err, waitErr), text)
	}
	return printJSON(stdout, record)
}

// down asks the owner of a lab to take it down, and waits until it is gone.
func down(ctx context.Context, args []string, _, stderr io.Writer) error {
	flags := newFlags("down", stderr)
	if err := parse(flags, args); err != nil {
		return err
	}
	only := -1
	if flags.NArg() > 0 {
		id, err := strconv.Atoi(flags.Arg(0))
		if err != nil || flags.NArg() > 1 {
			return errUsage
		}
		only = id
	}
	labs, err := lab.List()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	found := only < 0
	for _, r := range labs {
		if r.ID != only && (only >= 0 || r.Label != label) {
			continue
		}
		found = true
		if err := lab.Down(ctx, r); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("no lab %d", only)
	}
	return nil
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := newFlags("exec", stderr)
	account := flags.String("account", "", "the account; default: the host's first")
	if err := parse(flags, args); err != nil {
		return err
	}
	argv := flags.Args()
	if len(argv) < 2 {
		return errUsage
	}
	name, argv := argv[0], argv[1:]
	if argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return errUsage
	}
	host, err := findHost(name)
	if err != nil {
		return err
	}
	if *account == "" {
		*account = host.Account
	}
	cmd, err := lab.Command(ctx, host, *account, argv...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	return cmd.Run()
}

// findHost takes a host by name or address, from this command's labs first.
func findHost(name string) (lab.HostInfo, error) {
	labs, err := lab.List()
	if err != nil {
		return lab.HostInfo{}, err
	}
	var found []lab.HostInfo
	for _, r := range labs {
		for _, h := range r.Hosts {
			if r.Alive() && (h.Addr == name || h.Name == name && r.Label == label) {
				found = append(found, h)
			}
		}
	}
	switch len(found) {
	case 0:
		return lab.HostInfo{}, fmt.Errorf("no host %s", name)
	case 1:
		return found[0], nil
	}
	return lab.HostInfo{}, fmt.Errorf("%d hosts are called %s: give the address", len(found), name)
}

func list(_ context.Context, args []string, stdout, _ io.Writer) error {
	if len(args) > 0 {
		return errUsage
	}
	labs, err := lab.List()
	if err != nil {
		return err
	}
	if labs == nil {
		labs = []lab.Record{}
	}
	return printJSON(stdout, labs)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// check says whether a lab can run here, and if not, why.
func check(context.Context, []string, io.Writer, io.Writer) error { return lab.Available() }
