package sshconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Stream runs a script whose standard input and output become a connection,
// once the script is running. It serves where a channel to a UNIX socket is
// refused: the script then runs a bridge to the socket.
func (c *Conn) Stream(ctx context.Context, s Script) (net.Conn, error) {
	if err := c.checkConfirmed(); err != nil {
		return nil, err
	}
	sh, err := c.openShell(ctx)
	if refused := new(ssh.OpenChannelError); errors.As(err, &refused) {
		return c.siblingStream(ctx, s, err)
	}
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

// maxSiblings bounds the connections that a connection opens beside itself.
const maxSiblings = 8

// siblingStream is Stream over another connection, made the same way, where the
// server opens no further session on this one: MaxSessions is reached, or there
// is one for a connection's whole life, as with tinyssh.
func (c *Conn) siblingStream(ctx context.Context, s Script, refused error) (net.Conn, error) {
	select {
	case c.siblings <- struct{}{}:
	default:
		return nil, refused
	}
	free := sync.OnceFunc(func() { <-c.siblings })
	p := c.params
	p.Anew = false
	c.notef("the SSH server of %s opens no further session on a connection (MaxSessions), opening another one", c.Config)
	other, err := Dial(ctx, p)
	if err != nil {
		free()
		return nil, err
	}
	end := func() { other.Close(); free() }
	if err := other.checkConfirmed(); err != nil {
		end()
		return nil, err
	}
	sh, err := other.openShell(ctx)
	if err != nil {
		end()
		return nil, err
	}
	stop := context.AfterFunc(ctx, sh.close)
	defer stop()
	if _, err := sh.send("(\n"+s.Body+"\n)", s.Args); err != nil {
		sh.close()
		defer end()
		return nil, other.lost(ctx, err, sh)
	}
	// It goes when this connection does.
	gone := make(chan struct{})
	c.wg.Go(func() {
		defer end()
		defer sh.close()
		select {
		case <-c.closed:
		case <-c.ended:
		case <-gone:
		}
	})
	return &siblingStream{stream: stream{shell: sh, addr: streamAddr(c.Config.String())}, gone: sync.OnceFunc(func() { close(gone) })}, nil
}

type siblingStream struct {
	stream
	gone func()
}

func (s *siblingStream) Close() error {
	err := s.stream.Close()
	s.gone()
	return err
}
