package agentclient

import (
	"context"
	"errors"
	"net"
	"net/http"

	"fleet.example/fleet/core/splice"
	"fleet.example/fleet/core/wire"
)

// Tree opens a connection of a copy, on which the agent has the part that req
// says. as is where the copy goes, of one that the agent receives. ctx bounds its
// making alone.
func (c *Client) Tree(ctx context.Context, req wire.TreeRequest) (conn net.Conn, as string, err error) {
	resp, err := c.upgrade(ctx, http.MethodPost, wire.PathTree, req, wire.UpgradeTree)
	if err != nil {
		return nil, "", err
	}
	conn, ok := resp.Body.(net.Conn)
	if !ok {
		resp.Body.Close()
		return nil, "", errors.New("the agent did not upgrade the connection")
	}
	if r, ok := conn.(*read); ok {
		splice.Roomy(r.Conn)
	}
	return conn, resp.Header.Get(wire.HeaderTreeAs), nil
}

// Refusal is the failure that an agent's refusal is.
func Refusal(d wire.ErrorDetail) error { return (&Error{Detail: d}).asFault() }
