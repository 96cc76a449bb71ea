package sshconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
)

// A server may bound how many programs one connection runs at a time
// (MaxSessions in sshd_config(5); tinyssh takes one and no more). What such a
// server refuses is done in the shell that is open already: see ownShell.

const (
	// readyTimeout bounds how long a login shell's start-up files may take.
	readyTimeout = 20 * time.Second
	// sftpAnswer bounds how long an sftp server may take to show itself.
	sftpAnswer = time.Second
	// settling bounds how long a server may take to notice that a session ended.
	settling = 2 * time.Second
)

// sessions counts a connection's sessions.
type sessions struct {
	changed chan struct{} // told, one waiter at a time, of one that is closed or kept

	mu         sync.Mutex
	open, most int
	ceased     time.Time // when the last one was closed
}

func (s *sessions) opened() (gone func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	s.most = max(s.most, s.open)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		s.ceased = time.Now()
		s.tell()
	})
}

func (s *sessions) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// settling reports whether the server may still count one that was closed.
func (s *sessions) settling() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open < s.most && time.Since(s.ceased) < settling
}

func (s *sessions) none() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open == 0
}

// session opens a channel for a program. gone is to be called once it is
// closed. A server that bounds sessions counts one that was closed until its
// program has ended, so that a refusal shortly after is asked again.
func (c *Conn) session(ctx context.Context) (_ *ssh.Session, gone func(), err error) {
	for {
		s, err := c.client.NewSession()
		if err == nil {
			return s, c.sessions.opened(), nil
		}
		if refused := new(ssh.OpenChannelError); !errors.As(err, &refused) {
			return nil, nil, fault.New(fault.Unreachable, "ssh", "cannot open a channel to %s: %w", c.Config, err)
		}
		if !c.sessions.settling() {
			return nil, nil, c.noSession(err)
		}
		select {
		case <-ctx.Done():
			return nil, nil, c.noSession(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// noSession is the error for a session that the server refused.
func (c *Conn) noSession(err error) error {
	if c.sessions.none() {
		return fault.New(fault.Refused, "no_session", "the SSH server of %s opens no session for the account: %w", c.Config, err).
			WithHint("it lets the account forward and nothing else: MaxSessions must be at least 1 there")
	}
	return fault.New(fault.Refused, "sessions_exhausted", "the SSH server of %s opens no further session on a connection: %w", c.Config, err).
		WithHint("raise MaxSessions there; --no-mux gives a command a connection of its own")
}

// ownShell returns a shell for one script to itself. It is the kept one, with
// kept set, where the server opens no second session.
func (c *Conn) ownShell(ctx context.Context) (sh *shell, kept bool, err error) {
	sh, err = c.openShell(ctx)
	if refused := new(ssh.OpenChannelError); !errors.As(err, &refused) {
		return sh, false, err
	}
	sh, kept, err = c.awaitShell(ctx, err)
	if kept {
		c.notef("the SSH server of %s opens one session at a time (MaxSessions), using the one that is open", c.Config)
	}
	return sh, kept, err
}

// awaitShell waits for a shell that is in use, after the server refused one
// more. Every script that is under way has an end, and gives its shell back.
func (c *Conn) awaitShell(ctx context.Context, refused error) (sh *shell, kept bool, err error) {
	for {
		c.shellMu.Lock()
		sh, c.idle = c.idle, nil
		c.shellMu.Unlock()
		if sh != nil {
			return sh, true, nil
		}
		if c.sessions.none() {
			if sh, err = c.openShell(ctx); err != nil {
				c.sessions.tell() // the next one that waits may try
			}
			return sh, false, err
		}
		select {
		case <-c.sessions.changed:
		case <-ctx.Done():
			return nil, false, refused
		case <-c.closed:
			return nil, false, refused
		}
	}
}

var (
	errEnded   = errors.New("the host closed the channel before sh was there")
	errEndless = errors.New("the host's shell prints without end")
)

// sftpHello is SSH_FXP_INIT of draft-ietf-secsh-filexfer-02, which an sftp
// server answers with SSH_FXP_VERSION and a shell does not.
const (
	sftpHello   = "\x00\x00\x00\x05\x01\x00\x00\x00\x03"
	sftpVersion = 2
)

// hearing keeps the end of what is read before the shell is ready.
func (sh *shell) hearing(r io.Reader) io.Reader { return &heard{sh, r} }

type heard struct {
	sh *shell
	r  io.Reader
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	if n > 0 && !h.sh.ready.Load() {
		h.sh.heard.Write(p[:n])
	}
	return n, err
}

// patience is how long a shell may take to be ready: no longer than leaves time
// to find out what it is that does not answer.
func patience(ctx context.Context) time.Duration {
	at, ok := ctx.Deadline()
	if !ok {
		return readyTimeout
	}
	left := time.Until(at)
	return min(readyTimeout, max(left-2*sftpAnswer, left/2))
}

// expect closes the shell when it is not ready in time. Before, whatever it is
// that does not answer is asked whether it is an sftp server.
func (sh *shell) expect(within time.Duration) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		wait := func(d time.Duration) bool {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-done:
				return false
			case <-timer.C:
				return true
			}
		}
		if !wait(within) {
			return
		}
		sh.late.Store(true)
		io.WriteString(sh.in, sftpHello)
		if wait(sftpAnswer) {
			sh.close()
		}
	})
	return func() { close(done); wg.Wait() }
}

// noShell is the error for a session in which sh did not begin: one sentence
// that names the cause, and what was printed in its place.
func (c *Conn) noShell(ctx context.Context, err error, sh *shell) error {
	out, said := sh.heard.String(), ""
	for _, text := range []string{sh.stderr.String(), out} {
		if line := lastLine(text); line != "" {
			said = line
		}
	}
	printed := "printed nothing"
	if said != "" {
		printed = fmt.Sprintf("printed %q", said)
	}
	const shellHint = "give the account a login shell there that runs sh, and take away what is forced on it (ForceCommand, command= in authorized_keys)"
	exit := new(ssh.ExitMissingError)
	switch {
	case len(out) > 4 && out[4] == sftpVersion && sh.late.Load(), strings.Contains(said, "allows sftp connections only"):
		return fault.New(fault.Refused, "sftp_only", "the SSH server of %s lets the account transfer files and run nothing", c.Config).
			WithHint("take ForceCommand internal-sftp away for the account there, and give it a login shell")
	case sh.late.Load():
		return fault.New(fault.Refused, "shell_not_ready", "the login shell of %s, or what is forced in its place, does not come to run a command, and %s", c.Config, printed).
			WithHint("look for what waits in its start-up files; %s", shellHint)
	case errors.Is(err, errEnded), errors.As(err, &exit):
		return fault.New(fault.Refused, "no_shell", "%s runs no commands for the account: its login shell, or what is forced in its place, ended and %s", c.Config, printed).
			WithHint("%s", shellHint)
	case errors.Is(err, errEndless):
		return fault.New(fault.Refused, "no_shell", "%s runs no commands for the account: its login shell prints without end", c.Config).
			WithHint("look at its start-up files; %s", shellHint)
	}
	return c.lost(ctx, err, sh)
}

// lastLine is the last line that holds anything, cut to what one reads.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = strings.TrimSpace(text[i+1:])
	}
	const most = 200
	return text[max(0, len(text)-most):]
}
