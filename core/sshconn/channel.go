package sshconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/crypto/ssh"
)

// DialUnix opens a channel to a UNIX socket on the host. A refusal is an
// *ssh.OpenChannelError; WhyRefused tells what it means.
func (c *Conn) DialUnix(ctx context.Context, path string) (net.Conn, error) {
	if err := c.checkConfirmed(); err != nil {
		return nil, err
	}
	return c.dialUnix(ctx, path)
}

func (c *Conn) dialUnix(ctx context.Context, path string) (net.Conn, error) {
	conn, err := c.client.DialContext(ctx, "unix", path)
	if err == nil {
		c.channels.Add(1)
	}
	return conn, err
}

// TryUnix opens a channel to a UNIX socket and closes it, without a byte sent.
// It may be asked before the key is confirmed.
func (c *Conn) TryUnix(ctx context.Context, path string) error {
	conn, err := c.dialUnix(ctx, path)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Refusal is why a server opened no channel to a UNIX socket.
type Refusal string

const (
	RefusedMissing   Refusal = "missing"   // nothing listens at the path, or the account may not go there
	RefusedTooLong   Refusal = "too long"  // the path does not fit a socket's address
	RefusedForbidden Refusal = "forbidden" // the server opens none for the account
	RefusedExhausted Refusal = "exhausted" // the server opens no more on this connection
)

// maxSocketPath is what fits sun_path with its final zero, by uname -s: unix(7).
var maxSocketPath = map[string]int{"Linux": 107, "Darwin": 103}

// WhyRefused tells the causes of a refused channel apart. A server says the
// same for all of them (RFC 4254 5.1 has no reason for most, and OpenSSH gives
// "connect failed" for each), so the host is asked what is at the path, and the
// server whether it still starts programs.
//
//   - Nothing that listens at the path, or a path that fits no address, is that.
//   - A server that opened such channels on this connection before does not
//     forbid them: it has come to an end of something, as one that says
//     resource shortage or starts no program any more.
//   - What is left is a server that forbids them.
func (c *Conn) WhyRefused(ctx context.Context, path string, err error) (Refusal, error) {
	refused := new(ssh.OpenChannelError)
	if !errors.As(err, &refused) {
		return "", err
	}
	// On Linux the kernel lists every socket with the path it was bound to.
	r, err := c.run(ctx, Script{Args: []string{path}, Body: `
uname -s
if [ ! -S "$1" ]; then echo missing
elif [ -r /proc/net/unix ] && ! grep -qF -- " $1" /proc/net/unix; then echo missing
fi`})
	if err != nil {
		return "", fmt.Errorf("cannot tell why a channel was refused: %w", err)
	}
	system, missing, _ := strings.Cut(strings.TrimSpace(string(r.Stdout)), "\n")
	limit := maxSocketPath[system]
	switch {
	case limit > 0 && len(path) > limit:
		return RefusedTooLong, nil
	case missing != "":
		return RefusedMissing, nil
	case refused.Reason == ssh.Prohibited || refused.Reason == ssh.UnknownChannelType:
		return RefusedForbidden, nil
	case refused.Reason == ssh.ResourceShortage || c.channels.Load() > 0:
		return RefusedExhausted, nil
	}
	// A refused session says nothing: the one that is open may be all there may be.
	sh, err := c.openShell(ctx)
	if err == nil {
		c.putShell(sh)
		return RefusedForbidden, nil
	}
	if errors.As(err, &refused) {
		return RefusedForbidden, nil
	}
	return RefusedExhausted, nil
}
