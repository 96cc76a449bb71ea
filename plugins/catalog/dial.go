package catalog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// Dial connects to the target's SSH server and returns the unread stream. One
// that is detached is the caller's own connection and outlives the plugin, as
// every direct TCP one does. Any other needs the plugin for as long as it is open.
func (t *Transport) Dial(ctx context.Context, target sdk.Target) (conn net.Conn, detached bool, err error) {
	socket := filepath.Join(t.dir.path, "h"+rand.Text()[:8])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, false, fmt.Errorf("cannot wait for the transport's connection: %w", err)
	}
	defer l.Close() // removes the socket too

	type taken struct {
		conn net.Conn
		err  error
	}
	got := make(chan taken, 1)
	go func() { // ends when l closes or its deadline passes, at the latest
		conn, err := takeOver(l)
		got <- taken{conn, err}
	}()
	err = t.call(ctx, "Dial", func(ctx context.Context) error {
		_, detached, err = sdk.RemoteDial(ctx, t.conn, target, socket)
		return err
	})
	if err == nil {
		// The plugin has written everything it has to; nothing is left to wait for.
		_ = l.SetDeadline(time.Now().Add(time.Second))
	} else {
		l.Close()
	}
	r := <-got
	switch {
	case err != nil:
		if r.conn != nil {
			r.conn.Close()
		}
		return nil, false, err
	case r.err != nil:
		return nil, false, t.c.problem(CodeGarbled, t.found.Path, t.found.Entry.Description.Version, "did not hand the connection over: %s", r.err).
			WithHint("upgrade the plugin, or report it to whoever wrote it")
	}
	return r.conn, detached, nil
}

// Dir is a private directory of the launch, with a short path. It is removed
// when the plugin ends, whoever is left to do it.
func (t *Transport) Dir() string { return t.dir.path }

// takeOver accepts one connection and what comes on it.
func takeOver(l *net.UnixListener) (net.Conn, error) {
	u, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	_ = u.SetReadDeadline(time.Now().Add(10 * time.Second))
	b, oob := make([]byte, 1), make([]byte, syscall.CmsgSpace(4*4))
	n, oobn, _, _, err := u.ReadMsgUnix(b, oob)
	if err != nil {
		u.Close()
		return nil, err
	}
	fds, err := descriptors(oob[:oobn])
	if err == nil && n == 1 && b[0] == sdk.HandoverStream && len(fds) == 0 {
		return u, u.SetReadDeadline(time.Time{})
	}
	u.Close()
	if err == nil && n == 1 && b[0] == sdk.HandoverDescriptor && len(fds) == 1 {
		f := os.NewFile(uintptr(fds[0]), "transport")
		defer f.Close()
		return net.FileConn(f) // refuses what is no stream socket
	}
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
	return nil, errors.Join(err, errors.New("not a handover"))
}

func descriptors(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := syscall.ParseSocketControlMessage(oob)
	for _, m := range msgs {
		got, rightsErr := syscall.ParseUnixRights(&m)
		err = errors.Join(err, rightsErr)
		for _, fd := range got {
			syscall.CloseOnExec(fd)
		}
		fds = append(fds, got...)
	}
	return fds, err
}
