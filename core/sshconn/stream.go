package sshconn

import (
	"context"
	"errors"
	"net"
	"time"
)

// Stream runs a script whose standard input and output become a connection,
// once the script is running. It serves where a channel to a UNIX socket is
// refused: the script then runs a bridge to the socket.
func (c *Conn) Stream(ctx context.Context, s Script) (net.Conn, error) {
	if err := c.checkConfirmed(); err != nil {
		return nil, err
	}
	sh, _, err := c.ownShell(ctx)
	if err != nil {
		return nil, err
	}
	// The context bounds the making of the stream. Afterwards its owner ends it.
	stop := context.AfterFunc(ctx, sh.close)
	defer stop()
	if _, err := sh.send("(\n"+s.Body+"\n)", s.Args); err != nil {
		sh.close()
		return nil, c.lost(ctx, err, sh)
	}
	return &stream{shell: sh, addr: streamAddr(c.Config.String())}, nil
}

// stream is a shell as a net.Conn. Deadlines are not supported, as on the
// channels of x/crypto/ssh.
type stream struct {
	*shell
	addr streamAddr
}

type streamAddr string

func (streamAddr) Network() string  { return "ssh" }
func (a streamAddr) String() string { return string(a) }

var errDeadline = errors.New("deadlines are not supported on an SSH stream")

func (s *stream) Read(b []byte) (int, error)       { return s.out.Read(b) }
func (s *stream) Write(b []byte) (int, error)      { return s.in.Write(b) }
func (s *stream) CloseWrite() error                { return s.in.Close() }
func (s *stream) Close() error                     { s.close(); return nil }
func (s *stream) LocalAddr() net.Addr              { return s.addr }
func (s *stream) RemoteAddr() net.Addr             { return s.addr }
func (s *stream) SetDeadline(time.Time) error      { return errDeadline }
func (s *stream) SetReadDeadline(time.Time) error  { return errDeadline }
func (s *stream) SetWriteDeadline(time.Time) error { return errDeadline }
