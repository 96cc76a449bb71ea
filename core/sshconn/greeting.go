package sshconn

import (
	"context"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshlogin"
)

// atTheDoor gives a failed handshake the words for a server that hung up before
// it identified itself, where it is one: neither the way there nor time was at
// an end.
func (c *Conn) atTheDoor(ctx context.Context, err error, d *sshlogin.Door) error {
	hung := d.HungUp(err)
	if hung == nil || c.Lost() != nil || ctx.Err() != nil {
		return err
	}
	return fault.New(fault.Unreachable, "hung_up", "the SSH server of %s takes no login: %w", c.Config, hung).WithHint("%s", sshlogin.Crowded)
}
