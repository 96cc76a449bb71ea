// Package operator opens what a command of fleet or fleet-host works on: the
// person's state of one plane, and the client that speaks to it.
//
// It links neither SSH nor gRPC, so that the front stays quick to start.
package operator

import (
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/state"
)

// Plane opens the plane that the call means, with its stored session or the
// token that --token-file names.
func Plane(c *command.Call) (*state.Plane, *planeclient.Client, error) {
	p, err := Known(c)
	if err != nil {
		return nil, nil, err
	}
	var token secret.Text
	if f := c.String("token-file"); f != "" {
		token, err = state.TokenFile(f)
	} else {
		token, err = p.Session()
	}
	if err != nil {
		return nil, nil, err
	}
	client, err := planeclient.New(planeclient.Options{URL: p.URL(), RootsPEM: p.RootsPEM(), Token: token})
	return p, client, err
}

// Known opens the plane that the call means without asking for a session.
func Known(c *command.Call) (*state.Plane, error) {
	return state.DirsOf(c.Getenv).OpenPlane(c.String("plane"))
}
