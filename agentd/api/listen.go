package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"fleet.example/fleet/agentd/locate"
	"fleet.example/fleet/core/peer"
)

// maxSockPath is what sun_path holds on every system, without its final zero.
const maxSockPath = 103

// Listen makes a UNIX socket that only this account reaches: in a directory
// that is private, with mode 0600, and accepting peers of this account (and
// root) alone. What stands there is replaced: the caller holds the lock that
// says that no other agentd serves it.
func Listen(path string) (net.Listener, error) {
	if len(path) > maxSockPath {
		return nil, fmt.Errorf("socket path %s is %d bytes long, at most %d work on every system", path, len(path), maxSockPath)
	}
	if err := locate.Prepare(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("%s is there and is not a socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(true)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return &guarded{UnixListener: l, slots: make(chan struct{}, maxConns), closed: make(chan struct{})}, nil
}

// maxConns bounds the connections of one socket; more wait to be accepted.
const maxConns = 1024

// guarded accepts only peers of this account, and not too many.
type guarded struct {
	*net.UnixListener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Close ends Accept also while it waits for a place.
func (g *guarded) Close() error {
	g.once.Do(func() { close(g.closed) })
	return g.UnixListener.Close()
}

func (g *guarded) Accept() (net.Conn, error) {
	for {
		select {
		case g.slots <- struct{}{}:
		case <-g.closed:
			return nil, net.ErrClosed
		}
		c, err := g.AcceptUnix()
		if err != nil {
			<-g.slots
			return nil, err
		}
		if peer.Own(c) {
			return &slotConn{UnixConn: c, free: func() { <-g.slots }}, nil
		}
		c.Close()
		<-g.slots
	}
}

// slotConn gives its place back once, when it is closed.
type slotConn struct {
	*net.UnixConn
	once sync.Once
	free func()
}

func (c *slotConn) Close() error {
	err := c.UnixConn.Close()
	c.once.Do(c.free)
	return err
}
