// Package direct is the transport that connects to a target by TCP, without
// any hop in between. It resolves names as the system does and tries their
// addresses as RFC 8305 says.
//
// It must not know SSH, keys or configuration files: what is to be dialled
// comes resolved from the host.
package direct

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"time"

	"fleet.example/fleet/plugins/sdk"
)

// Describe says what the plugin is.
func Describe(version string) sdk.Description {
	return sdk.Description{Name: "direct", Version: version, Summary: "connects to an SSH server by TCP"}
}

// Transport is the direct transport. Its zero value is ready.
type Transport struct{}

// Dial connects by TCP. A target that needs jump hosts or a proxy command is
// refused: connecting past them would reach another machine or none.
func (Transport) Dial(ctx context.Context, _ sdk.TransportHost, t sdk.Target) (net.Conn, error) {
	switch {
	case len(t.Jumps) > 0:
		return nil, fmt.Errorf("%w: the direct transport uses no jump hosts", sdk.ErrUnsupported)
	case t.Proxy.Command != "":
		return nil, fmt.Errorf("%w: the direct transport runs no proxy command", sdk.ErrUnsupported)
	case t.Hop.Host == "" || t.Hop.Port < 1 || t.Hop.Port > 65535:
		return nil, fmt.Errorf("%w: target %q port %d", sdk.ErrInvalid, t.Hop.Host, t.Hop.Port)
	}
	network, err := network(t.AddressFamily)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: t.ConnectTimeout, KeepAlive: 30 * time.Second}
	if t.BindAddress != "" {
		if d.LocalAddr, err = net.ResolveTCPAddr(network, net.JoinHostPort(t.BindAddress, "0")); err != nil {
			return nil, fmt.Errorf("cannot use bind address %s: %w", t.BindAddress, err)
		}
	}
	conn, err := d.DialContext(ctx, network, net.JoinHostPort(t.Hop.Host, strconv.Itoa(t.Hop.Port)))
	if err != nil {
		return nil, inWords(err)
	}
	return conn, nil
}

func network(family string) (string, error) {
	switch family {
	case "", "any":
		return "tcp", nil
	case "inet":
		return "tcp4", nil
	case "inet6":
		return "tcp6", nil
	}
	return "", fmt.Errorf("%w: address family %q", sdk.ErrInvalid, family)
}

// inWords keeps what a caller acts on: a name that does not exist, time that
// ran out, and a peer that cannot be reached are three things.
func inWords(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return &meaning{err, fs.ErrNotExist}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &meaning{err, context.DeadlineExceeded}
	}
	return &meaning{err, sdk.ErrUnreachable}
}

type meaning struct {
	error
	as error
}

func (m *meaning) Unwrap() []error { return []error{m.error, m.as} }
