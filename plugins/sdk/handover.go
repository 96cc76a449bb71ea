package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// The first byte on a handover connection.
const (
	HandoverDescriptor = 'F' // the stream comes as a descriptor
	HandoverStream     = 'S' // the stream follows
)

// handOver gives conn to the host that listens on socket. A connection that is
// a descriptor goes over as one, and the plugin is out of the way; another is
// copied until either end closes. Once it returns nil, conn belongs to it.
func handOver(ctx context.Context, socket string, conn net.Conn) (detached bool, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return false, fmt.Errorf("cannot reach the host to hand the connection over: %w", err)
	}
	u := c.(*net.UnixConn)
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn, Needed:
		defer u.Close()
		if err := sendDescriptor(u, conn.(syscall.Conn)); err != nil {
			return false, fmt.Errorf("cannot hand the connection over: %w", err)
		}
		_, needed := conn.(Needed)
		return !needed, conn.Close()
	}
	if _, err := u.Write([]byte{HandoverStream}); err != nil {
		u.Close()
		return false, fmt.Errorf("cannot hand the connection over: %w", err)
	}
	go splice(u, conn) // ends with either connection, and both end with the process
	return false, nil
}

// sendDescriptor sends the byte and the descriptor in one message. The
// descriptor is only lent for the call, which leaves its flags alone.
func sendDescriptor(u *net.UnixConn, conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) {
		_, _, sent = u.WriteMsgUnix([]byte{HandoverDescriptor}, syscall.UnixRights(int(fd)), nil)
	}); err != nil {
		return err
	}
	return sent
}

// closeWriter is a connection whose sending half can end first.
type closeWriter interface{ CloseWrite() error }

// splice copies both ways. The end of one direction is passed on where the
// connection can, so that the other may still finish; an error ends both.
func splice(a, b net.Conn) {
	done := make(chan error, 2)
	pass := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if w, ok := dst.(closeWriter); ok && err == nil {
			err = w.CloseWrite()
		} else if err == nil {
			err = errors.New("no half close")
		}
		done <- err
	}
	go pass(a, b)
	go pass(b, a)
	if err := <-done; err != nil {
		a.Close()
		b.Close()
	}
	<-done
	a.Close()
	b.Close()
}
