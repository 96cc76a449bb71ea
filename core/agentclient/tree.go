package agentclient

import (
	"context"
	"errors"
	"net"
	"net/http"

	"fleet.example/fleet/core/splice"
	"fleet.example/fleet/core/wire"
)

// TreeAnswer is what an agent says of its part in a copy.
type TreeAnswer struct {
	As  string // where the copy goes, of one that the agent receives
	Sum string // with what content is sent: see wire.TreeRequest
}

// Tree opens a connection of a copy, on which the agent has the part that req
// says. ctx bounds its making alone.
func (c *Client) Tree(ctx context.Context, req wire.TreeRequest) (net.Conn, TreeAnswer, error) {
	var a TreeAnswer
	resp, err := c.upgrade(ctx, http.MethodPost, wire.PathTree, req, wire.UpgradeTree)
	if err != nil {
		return nil, a, err
	}
	conn, ok := resp.Body.(net.Conn)
	if !ok {
		resp.Body.Close()
		return nil, a, errors.New("the agent did not upgrade the connection")
	}
	if r, ok := conn.(*read); ok {
		splice.Roomy(r.Conn)
	}
	a.As, a.Sum = resp.Header.Get(wire.HeaderTreeAs), resp.Header.Get(wire.HeaderTreeSum)
	return conn, a, nil
}

// Refusal is the failure that an agent's refusal is.
func Refusal(d wire.ErrorDetail) error { return (&Error{Detail: d}).asFault() }
