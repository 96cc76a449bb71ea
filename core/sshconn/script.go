package sshconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/core/fault"
)

// A script reaches the host on standard input, after a mark of ours has come
// back: whatever the login shell is (fish and csh quote differently) and
// whatever its start-up files print or swallow, the command line itself is one
// fixed single-quoted `sh -c`, and nothing that matters is sent before sh is
// the one that reads. A script's own output stands between two more marks,
// which also carry its exit status past any wrapper.
//
// Scripts without streamed input share one channel, one after the other: a
// login shell whose start-up files take a second then costs it once.

// Script is a POSIX sh script to run on the host.
type Script struct {
	Body  string
	Args  []string  // $1, $2, …
	Input []byte    // what the script reads, up to MaxInput
	Stdin io.Reader // what it reads instead of Input, of any length
	// StdinSize is how many bytes Stdin has. Without it, the script fails where
	// the server opens one session at a time.
	StdinSize int64
	// MaxStdout bounds what is kept of standard output, in bytes. 0 means 1 MiB.
	MaxStdout int64
	// Timeout bounds the whole run. 0 means two minutes.
	Timeout time.Duration
}

// Result is how a script ended.
type Result struct {
	Stdout    []byte
	Stderr    string // the last 8 KiB
	Exit      int
	Truncated bool // standard output was longer than MaxStdout
}

const (
	defaultMaxStdout = 1 << 20
	maxStderr        = 8 << 10
	maxNoise         = 1 << 20 // what may be printed before our mark, in bytes
	scriptTimeout    = 2 * time.Minute

	// MaxInput bounds Script.Input, in bytes.
	MaxInput = 64 << 10
)

// Run runs a script. A non-zero exit status is a result, not an error.
func (c *Conn) Run(ctx context.Context, s Script) (*Result, error) {
	if err := c.checkConfirmed(); err != nil {
		return nil, err
	}
	return c.run(ctx, s)
}

// RunOK is Run where a non-zero exit status is an error in the words of the
// script's standard error.
func (c *Conn) RunOK(ctx context.Context, s Script) ([]byte, error) {
	r, err := c.Run(ctx, s)
	if err != nil {
		return nil, err
	}
	if r.Exit != 0 {
		return nil, r.Err()
	}
	return r.Stdout, nil
}

// Err is a non-zero exit as an error.
func (r *Result) Err() error {
	text := strings.TrimSpace(r.Stderr)
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = strings.TrimSpace(text[i+1:])
	}
	if text == "" {
		text = "exit status " + strconv.Itoa(r.Exit)
	}
	return errors.New(text)
}

func (c *Conn) run(ctx context.Context, s Script) (*Result, error) {
	timeout := s.Timeout
	if timeout == 0 {
		timeout = scriptTimeout
	}
	if len(s.Input) > MaxInput {
		return nil, fmt.Errorf("cannot run a script with %d bytes of input", len(s.Input))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	limit := s.MaxStdout
	if limit == 0 {
		limit = defaultMaxStdout
	}
	if s.Stdin != nil {
		return c.runAlone(ctx, s, limit)
	}
	sh, kept, err := c.takeShell(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, sh.close)
	r, err := sh.exec(s, limit)
	if kept && errors.Is(err, errNotStarted) && stop() {
		// The kept shell ended since its last script, and this one did not begin.
		sh.close()
		if sh, err = c.openShell(ctx); err != nil {
			return nil, err
		}
		stop = context.AfterFunc(ctx, sh.close)
		r, err = sh.exec(s, limit)
	}
	if !stop() || err != nil {
		sh.close()
		if err == nil {
			return r, nil // the answer was whole when the context ended
		}
		return nil, c.lost(ctx, err, sh)
	}
	c.putShell(sh)
	return r, nil
}

// errNotStarted says that the mark before a script's first command did not come
// back: a script that was cut off is one that sh cannot parse to its end.
var errNotStarted = errors.New("the script did not begin")

// exec runs one script in a shell that goes on afterwards.
func (sh *shell) exec(s Script, limit int64) (*Result, error) {
	body := "(\n" + s.Body + "\n) </dev/null"
	if s.Stdin != nil {
		body = fmt.Sprintf("head -c %d | {\n(\n%s\n)\nr=$?; cat >/dev/null; exit $r; }", s.StdinSize, s.Body)
	} else if len(s.Input) > 0 {
		// What the script does not read is drained, or it would be taken for
		// the next script.
		body = fmt.Sprintf("dd bs=1 count=%d 2>/dev/null | {\n(\n%s\n)\nr=$?; cat >/dev/null; exit $r; }", len(s.Input), s.Body)
	}
	end, err := sh.send(body, s.Args)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	// Nothing is sent after the input before the script has ended, so that a
	// head that reads ahead takes nothing that is not for it.
	if s.Stdin != nil {
		_, err = io.CopyN(sh.in, s.Stdin, s.StdinSize)
	} else {
		_, err = sh.in.Write(s.Input)
	}
	if err != nil {
		return nil, err
	}
	r := &Result{}
	if err := sh.collect(r, end, limit); err != nil {
		return nil, err
	}
	if r.Stderr, err = sh.stderr.upTo(end); err != nil {
		return nil, err
	}
	return r, nil
}

// runAlone runs a script with streamed input in a channel of its own.
func (c *Conn) runAlone(ctx context.Context, s Script, limit int64) (*Result, error) {
	sh, kept, err := c.ownShell(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, sh.close)
	defer stop()
	if kept && s.StdinSize > 0 {
		r, err := sh.exec(s, limit)
		if err != nil {
			sh.close()
			return nil, c.lost(ctx, err, sh)
		}
		if stop() {
			c.putShell(sh)
		}
		return r, nil
	}
	defer sh.close()
	end, err := sh.send("(\n"+s.Body+"\n)", s.Args)
	if err != nil {
		return nil, c.lost(ctx, err, sh)
	}
	copied := make(chan error, 1)
	go func() { // ends with the input, or when close ends the channel
		_, err := io.Copy(sh.in, s.Stdin)
		sh.in.Close()
		copied <- err
	}()
	r := &Result{}
	if err := sh.collect(r, end, limit); err != nil {
		return nil, c.lost(ctx, err, sh)
	}
	if r.Stderr, err = sh.stderr.upTo(end); err != nil {
		return nil, c.lost(ctx, err, sh)
	}
	sh.close()
	if err := <-copied; err != nil && r.Exit == 0 && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot send to %s: %w", c.Config, err)
	}
	return r, nil
}

func (c *Conn) lost(ctx context.Context, err error, sh *shell) error {
	if cause := ctx.Err(); errors.Is(cause, context.DeadlineExceeded) {
		return fault.New(fault.Unreachable, "timeout", "no answer from %s in time", c.Config)
	} else if cause != nil {
		return cause
	}
	if text := strings.TrimSpace(sh.stderr.String()); text != "" {
		return fault.New(fault.Unreachable, "ssh", "cannot run a command on %s: %w: %s", c.Config, err, text)
	}
	return fault.New(fault.Unreachable, "ssh", "cannot run a command on %s: %w", c.Config, err)
}

// Quote quotes a word for POSIX sh.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// ReadOnly runs a script that changes nothing, and may therefore run before
// the key is confirmed. Only fixed probes and the commands that a plugin
// described beforehand come this way, never with input.
func (c *Conn) ReadOnly(ctx context.Context, s Script) (*Result, error) {
	if s.Stdin != nil || len(s.Input) > 0 {
		return c.Run(ctx, s)
	}
	return c.run(ctx, s)
}
