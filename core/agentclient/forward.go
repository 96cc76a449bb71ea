package agentclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"

	"fleet.example/fleet/core/wire"
)

// Forward opens a connection to a port of the machine, "8080", or to a UNIX
// socket, by its path. ctx bounds its making alone.
func (c *Client) Forward(ctx context.Context, to string) (net.Conn, error) {
	resp, err := c.upgrade(ctx, http.MethodGet, wire.PathForward+"?"+url.Values{"to": {to}}.Encode(), nil, wire.UpgradeForward)
	if err != nil {
		return nil, err
	}
	conn, ok := resp.Body.(net.Conn)
	if !ok {
		resp.Body.Close()
		return nil, errors.New("the agent did not upgrade the connection")
	}
	return conn, nil
}
