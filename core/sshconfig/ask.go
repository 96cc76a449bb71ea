package sshconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"fleet.example/fleet/core/fault"
)

const (
	// askTimeout bounds `ssh -G`; a Match exec may take its time.
	askTimeout = 20 * time.Second
	// maxAnswer bounds what ssh -G may print, in bytes.
	maxAnswer = 1 << 20
	// maxWords bounds what is kept of ssh's standard error, in bytes.
	maxWords = 64 << 10
)

// answer is what ssh said of a destination, beside what it says where nothing
// is configured.
type answer struct {
	dump     dump
	defaults defaults
	origin   string
	warnings []string // what ssh said beside it
}

// defaults is a configuration in which nothing is set, by which a person's
// choices are told from ssh's, and what it shows of the ssh program.
type defaults struct {
	dump dump
	// expands: this ssh expands IdentityAgent and UserKnownHostsFile before it
	// prints them, as OpenSSH does since 8.4.
	expands bool
	// jumpToken: this ssh knows %j and makes it a part of %C.
	jumpToken bool
}

// ask resolves a host through ssh, or through what is kept of its answers.
func (r Resolver) ask(ctx context.Context, host string, f Flags) (*answer, error) {
	program, err := r.program()
	if err != nil {
		return nil, err
	}
	args := append(f.Args(), "--", host)
	a := &answer{}
	seen := r.look(program, f, args)
	text, kept := r.Cache.get(seen.key)
	plain, plainKept := r.Cache.get(seen.programKey)
	if r.Person != nil && !(kept && plainKept) {
		return nil, ErrNotKept
	}
	var wg sync.WaitGroup // for the questions, each of which has its own deadline
	var plainErr, filesErr error
	if !plainKept {
		wg.Go(func() { plain, plainErr = askDefaults(ctx, program) })
	}
	var files *filesRead
	if !kept && seen.key != "" {
		wg.Go(func() { files, filesErr = askFiles(ctx, program, args) })
	}
	var words string
	if !kept {
		text, words, err = run(ctx, program, append([]string{"-G"}, args...), host)
	}
	wg.Wait()
	if err == nil {
		err = plainErr
	}
	if err != nil {
		return nil, err
	}
	if !plainKept {
		r.Cache.put(seen.programKey, plain)
	}
	a.warnings = said(words)
	switch {
	case kept:
		a.origin = "from the cache"
	case r.Cache == nil:
		a.origin = "asked ssh"
	default:
		why := seen.why
		if len(a.warnings) > 0 {
			why = "ssh warns of something"
		}
		if why == "" {
			why = r.keep(seen, r.look(program, f, args), files, filesErr, text)
		}
		if a.origin = "asked ssh"; why != "" {
			a.origin += ", and its answer is not kept: " + why
		}
	}
	a.dump, a.defaults = parseDump(text), parseDefaults(plain)
	return a, nil
}

// program finds ssh.
func (r Resolver) program() (string, error) {
	if r.Person == nil {
		program, err := exec.LookPath("ssh")
		if err != nil {
			return "", ErrNoSSH
		}
		return program, nil
	}
	for _, dir := range filepath.SplitList(r.Getenv("PATH")) {
		if !filepath.IsAbs(dir) {
			return "", ErrNotKept
		}
		program := filepath.Join(dir, "ssh")
		if st, err := os.Stat(program); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return program, nil
		}
	}
	return "", ErrNotKept
}

// keep puts an answer into the cache if it is certain what it depends on, and
// says why not otherwise.
func (r Resolver) keep(before, after *view, files *filesRead, filesErr error, text string) string {
	switch {
	case filesErr != nil:
		return filesErr.Error()
	case after.key != before.key || !after.still(before):
		return "a configuration file changed meanwhile"
	case !before.settled(r.Cache.now()):
		return "a configuration file changed a moment ago"
	case parseDump(text).has("setenv"):
		return "it has SetEnv, whose values may be secret"
	}
	if why := before.readsAs(files); why != "" {
		return why
	}
	if err := r.Cache.put(before.key, text); err != nil {
		return err.Error()
	}
	return ""
}

// The host and jump of the question for defaults. They have no meaning.
const (
	plainHost = "host"
	plainJump = "jump"
)

// askDefaults asks for a configuration in which nothing is set, except where
// the answer shows what this ssh does with tokens.
func askDefaults(ctx context.Context, program string) (string, error) {
	probe := []string{"-G", "-F", "/dev/null", "-J", plainJump, "-o", "ControlPath=%C", "-o", "IdentityAgent=%%", "--", plainHost}
	text, _, err := run(ctx, program, probe, plainHost)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		// OpenSSH before 7.3 has neither -J nor IdentityAgent.
		text, _, err = run(ctx, program, []string{"-G", "-F", "/dev/null", "--", plainHost}, plainHost)
	}
	return text, err
}

func parseDefaults(text string) defaults {
	d := parseDump(text)
	p := place{localHost: localHost(), hostName: d.one("hostname"), userName: d.one("user"), port: 22, jump: plainJump}
	return defaults{dump: d.without("proxyjump", "controlpath", "identityagent"),
		expands:   d.one("identityagent") == "%",
		jumpToken: d.one("controlpath") == p.hash(true)}
}

// filesRead is what ssh -v said of the files that it read.
type filesRead struct {
	names []string
	ran   bool // a program was run
}

// askFiles asks ssh which files it reads.
func askFiles(ctx context.Context, program string, args []string) (*filesRead, error) {
	_, words, err := run(ctx, program, append([]string{"-G", "-v"}, args...), "")
	if err != nil {
		return nil, err
	}
	if len(words) >= maxWords {
		return nil, errors.New("ssh says more than is read of it")
	}
	return parseFilesRead(words), nil
}

func parseFilesRead(words string) *filesRead {
	var f filesRead
	for line := range strings.Lines(words) {
		line = strings.TrimRight(line, "\r\n")
		if _, name, ok := strings.Cut(line, "Reading configuration data "); ok {
			f.names = append(f.names, unvis(name))
		}
		f.ran = f.ran || strings.Contains(line, "Executing command")
	}
	return &f
}

// unvis undoes vis(3), by which ssh writes what is not printable ASCII: three
// octal digits for a byte, and a backslash twice.
func unvis(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		if s[i] == '\\' && i+1 < len(s) && s[i+1] == '\\' {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// run runs ssh and returns what it printed.
func run(ctx context.Context, program string, args []string, host string) (out, words string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Args[0] = "ssh"
	cmd.WaitDelay = time.Second
	// What a Match exec started ends with ssh.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	stdout, stderr := &limited{left: maxAnswer, full: cancel}, &limited{left: maxWords}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err = cmd.Run()
	switch {
	case stdout.left == 0:
		return "", "", fmt.Errorf("cannot resolve %s: ssh -G prints more than %d bytes", host, maxAnswer)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", "", fault.New(fault.Failure, "ssh_config", "cannot resolve %s: ssh -G gave no answer in %s", host, askTimeout)
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case err != nil:
		f := fault.New(fault.Failure, "ssh_config", "cannot resolve %s: %s", host, complaint(stderr.buf.String(), err.Error()))
		f.Err = err
		return "", "", f
	}
	return stdout.buf.String(), stderr.buf.String(), nil
}

// complaint is what ssh said when it gave up. What is wrong and where it
// stands may be two lines.
func complaint(words, fallback string) string {
	lines := said(words)
	switch n := len(lines); {
	case n == 0:
		return fallback
	case n > maxComplaints:
		lines = append(lines[:maxComplaints], fmt.Sprintf("and %d more", n-maxComplaints))
	}
	return strings.Join(lines, "; ")
}

// maxComplaints bounds how many of ssh's lines an error repeats.
const maxComplaints = 4

// said are the lines of ssh's standard error that say what is wrong.
func said(words string) []string {
	var lines []string
	for line := range strings.Lines(words) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "Pseudo-terminal will not be allocated") || strings.Contains(line, ": terminating, ") {
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

// limited keeps the first bytes written to it and drops the rest. full, where
// set, is called when no more is kept.
type limited struct {
	buf  bytes.Buffer
	left int
	full func()
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.buf.Write(p[:n])
	if l.left -= n; l.left == 0 && l.full != nil {
		l.full()
	}
	return len(p), nil
}
