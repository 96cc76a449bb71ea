package sshconn

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// shell is a POSIX sh at the other end of a channel, which reads scripts with
// their length in front and runs one after the other.
type shell struct {
	session *ssh.Session
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  tail
	heard   tail // standard output until the shell is ready
	ready   atomic.Bool
	late    atomic.Bool // it was not ready in time
	cut     *io.PipeReader
	closing sync.Once
	gone    func() // called once, when it is closed
}

// command starts the shell. It holds nothing that a login shell could take
// for its own: no exclamation mark, no line break, no single quote inside.
const command = `sh -c 'printf "%%s\n" %s; while IFS= read -r n; do s=$(dd bs=1 count="$n" 2>/dev/null) || exit 1; eval "$s"; done'`

func mark() string {
	var b [12]byte
	rand.Read(b[:])
	return "fleet-" + hex.EncodeToString(b[:])
}

// close ends the shell and whoever waits for it. A server closes its end of a
// channel only when the program has ended, so the program is asked to end, and
// readers here do not wait for it.
func (sh *shell) close() {
	sh.closing.Do(func() {
		sh.session.Signal(ssh.SIGTERM)
		sh.session.Close()
		if sh.cut != nil {
			sh.cut.CloseWithError(errClosed)
		}
		sh.stderr.end()
		sh.gone()
	})
}

var errClosed = errors.New("the channel was closed here")

// takeShell returns the connection's idle shell, or a new one.
func (c *Conn) takeShell(ctx context.Context) (sh *shell, kept bool, err error) {
	c.shellMu.Lock()
	sh, c.idle = c.idle, nil
	c.shellMu.Unlock()
	if sh != nil {
		return sh, true, nil
	}
	sh, err = c.openShell(ctx)
	if refused := new(ssh.OpenChannelError); errors.As(err, &refused) {
		return c.awaitShell(ctx, err)
	}
	return sh, false, err
}

// putShell keeps the shell for the next script, unless one is kept already.
func (c *Conn) putShell(sh *shell) {
	c.shellMu.Lock()
	defer c.shellMu.Unlock()
	if c.idle == nil {
		c.idle = sh
		c.sessions.tell()
		return
	}
	sh.close()
}

// openShell opens a channel and waits for sh to be the one that reads. Some
// dropbear answers the request for a command by closing the channel when
// another one ends at that moment. Nothing was sent then, so one more is asked
// for.
func (c *Conn) openShell(ctx context.Context) (*shell, error) {
	sh, err := c.openShellOnce(ctx)
	if errors.Is(err, errUnanswered) && ctx.Err() == nil {
		return c.openShellOnce(ctx)
	}
	return sh, err
}

var errUnanswered = errors.New("the host closed the channel instead of running a command")

func (c *Conn) openShellOnce(ctx context.Context) (*shell, error) {
	session, gone, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	sh := &shell{session: session, gone: gone}
	sh.stderr.cond = sync.NewCond(&sh.stderr.mu)
	sh.heard.cond = sync.NewCond(&sh.heard.mu)
	stop := context.AfterFunc(ctx, sh.close)
	defer stop()
	ready := mark()
	session.Stderr = &sh.stderr
	sh.in, err = session.StdinPipe()
	if err == nil {
		var out io.Reader
		if out, err = session.StdoutPipe(); err == nil {
			r, w := io.Pipe()
			go func() { // ends with the channel, or with the connection
				_, err := io.Copy(w, sh.hearing(out))
				w.CloseWithError(err)
			}()
			sh.cut, sh.out = r, bufio.NewReaderSize(r, 64<<10)
			if err = session.Start(fmt.Sprintf(command, ready)); errors.Is(err, io.EOF) {
				err = errUnanswered
			}
		}
	}
	if err == nil {
		defer sh.expect(patience(ctx))()
		err = sh.until(ready)
	}
	if err != nil {
		if errors.Is(err, errEnded) {
			sh.lastWords(ctx)
		}
		sh.close()
		return nil, c.noShell(ctx, err, sh)
	}
	sh.ready.Store(true)
	return sh, nil
}

// lastWords waits until what an ended program said on standard error is here: it
// came before the end of standard output did, and is read by another goroutine.
func (sh *shell) lastWords(ctx context.Context) {
	all := make(chan struct{})
	go func() { // ends with the session, which the caller closes
		sh.session.Wait()
		close(all)
	}()
	timer := time.NewTimer(stderrWait)
	defer timer.Stop()
	select {
	case <-all:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// send starts a script and waits until it runs. It returns the mark at which
// the script's output ends.
func (sh *shell) send(body string, args []string) (end string, err error) {
	begin, end := mark(), mark()
	var b strings.Builder
	b.WriteString("set --")
	for _, a := range args {
		b.WriteByte(' ')
		b.WriteString(Quote(a))
	}
	fmt.Fprintf(&b, "\nprintf '%%s\\n' %s\n%s\nr=$?\nprintf '\\n%s\\n' >&2\nprintf '\\n%s %%s\\n' \"$r\"\n", begin, body, end, end)
	if _, err := fmt.Fprintf(sh.in, "%d\n%s", b.Len(), b.String()); err != nil {
		return "", err
	}
	return end, sh.until(begin)
}

// until reads lines up to and including the one that ends in the mark.
func (sh *shell) until(mark string) error {
	read := 0
	for {
		line, err := sh.out.ReadSlice('\n')
		read += len(line)
		if strings.HasSuffix(strings.TrimRight(string(line), "\r\n"), mark) {
			return nil
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			err = nil
		}
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		if err != nil {
			return err
		}
		if read > maxNoise {
			return errEndless
		}
	}
}

// collect reads a script's output up to its end mark.
func (sh *shell) collect(r *Result, mark string, limit int64) error {
	end := []byte("\n" + mark + " ")
	var keep []byte // not yet known to lie before the mark
	take := func(b []byte) {
		room := limit - int64(len(r.Stdout))
		if int64(len(b)) > room {
			b, r.Truncated = b[:max(room, 0)], true
		}
		r.Stdout = append(r.Stdout, b...)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := sh.out.Read(buf)
		keep = append(keep, buf[:n]...)
		if i := bytes.Index(keep, end); i >= 0 {
			if j := bytes.IndexByte(keep[i+len(end):], '\n'); j >= 0 {
				take(keep[:i])
				status, convErr := strconv.Atoi(string(keep[i+len(end) : i+len(end)+j]))
				if convErr != nil {
					return errors.New("the host garbled the end mark")
				}
				r.Exit = status
				return nil
			}
		} else if n := len(keep) - len(end); n > 0 {
			take(keep[:n])
			keep = append(keep[:0], keep[n:]...)
		}
		if errors.Is(err, io.EOF) {
			return errors.New("the command was cut off")
		}
		if err != nil {
			return err
		}
	}
}

// tail keeps the last bytes of standard error.
type tail struct {
	mu    sync.Mutex
	cond  *sync.Cond
	b     []byte
	ended bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - maxStderr; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	t.cond.Broadcast()
	return len(p), nil
}

func (t *tail) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.cond.Broadcast()
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// stderrWait bounds how long standard error may lag behind standard output.
// A wrapper that keeps standard error to itself costs this once a script.
const stderrWait = 2 * time.Second

// upTo waits for the mark and returns what stood before it.
func (t *tail) upTo(mark string) (string, error) {
	late := false
	timer := time.AfterFunc(stderrWait, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		late = true
		t.cond.Broadcast()
	})
	defer timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	m := []byte("\n" + mark + "\n")
	for {
		if i := bytes.Index(t.b, m); i >= 0 {
			text := string(t.b[:i])
			t.b = append(t.b[:0], t.b[i+len(m):]...)
			return text, nil
		}
		if late || t.ended {
			text := string(t.b)
			t.b = nil
			return text, nil
		}
		t.cond.Wait()
	}
}
