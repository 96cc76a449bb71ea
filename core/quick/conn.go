package quick

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// conn is a connection to a UNIX socket without the network poller, which is
// slower to start than one exchange takes.
type conn struct {
	fd  int
	buf []byte
}

// sendTime bounds how long the other side may take to take what is sent.
const sendTime = 10 * time.Second

// dial connects to a socket. What is sent is bounded by sendTime, and what is
// waited for by First until patient is called.
func dial(path string) (*conn, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	c := &conn{fd: fd}
	err = limit(fd, syscall.SO_RCVTIMEO, First)
	if err == nil {
		err = limit(fd, syscall.SO_SNDTIMEO, First) // for a server that does not accept
	}
	if err == nil {
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = limit(fd, syscall.SO_SNDTIMEO, sendTime)
	}
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return c, nil
}

func limit(fd, option int, d time.Duration) error {
	t := syscall.NsecToTimeval(int64(d))
	return syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, option, &t)
}

// patient has reads wait for ever: a command takes as long as it takes.
func (c *conn) patient() error { return limit(c.fd, syscall.SO_RCVTIMEO, 0) }

// send sends one frame, in one write: frames of two goroutines do not mix.
func (c *conn) send(kind byte, p []byte) error {
	b, err := AppendFrame(nil, kind, p)
	if err != nil {
		return err
	}
	return c.write(b)
}

func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(c.fd, b)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Read reads at least one byte.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := syscall.Read(c.fd, p)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// next reads one frame. The payload is good until the next call.
func (c *conn) next() (kind byte, p []byte, err error) {
	kind, c.buf, err = ReadFrame(c, c.buf)
	return kind, c.buf, err
}
