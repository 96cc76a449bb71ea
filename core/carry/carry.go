// Package carry makes one attempt of a copy between a place here and one behind
// an agent: it asks the agent for its part, and takes the other itself. The
// front does that, or the fleet-host that has the SSH connection, in which the
// bytes then go through one process and one socket less.
//
// It knows nothing of how an agent is reached, nor whether there is another
// attempt.
package carry

import (
	"context"
	"math"
	"net"
	"sync"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/tree"
	"fleet.example/fleet/core/wire"
)

// Copy is one attempt. Of Source and Destination there is the one that is here;
// they stay open.
type Copy struct {
	// Request is for the agent, all but what it sums with.
	Request     wire.TreeRequest
	Source      *tree.Source
	Destination *tree.Destination
	// Trouble is told what is not copied, and Progress how far the copy is; both
	// from several goroutines.
	Trouble  func(tree.Problem)
	Progress func(files, bytes int64)
}

// Outcome is what an attempt came to.
type Outcome struct {
	Result tree.Result
	As     string // where an agent that receives has the copy go
	Begun  bool   // the agent took its part
}

// Run makes the attempt.
func (c Copy) Run(ctx context.Context, client *agentclient.Client) (o Outcome, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	req := c.Request
	req.Sum = wire.TreeSumXXH64
	conn, a, err := client.Tree(ctx, req)
	if err != nil {
		return o, err
	}
	o.As, o.Begun = a.As, true
	sum := tree.Sum(a.Sum == wire.TreeSumXXH64)
	wide := func(add func(net.Conn) error) func() {
		return func() {
			wg.Go(func() {
				Widen(ctx, []Place{{client, req.ID}}, func(lanes []net.Conn) error { return add(lanes[0]) })
			})
		}
	}
	if c.Source != nil {
		var s *tree.Sender
		s = tree.NewSender(ctx, conn, c.Source, tree.SendOptions{Sum: sum, Again: req.Again, Trouble: c.Trouble, Progress: c.Progress,
			Wide: wide(func(lane net.Conn) error { return s.AddLane(lane) })})
		o.Result, err = s.Run()
		return o, err
	}
	var r *tree.Receiver
	r = tree.NewReceiver(ctx, conn, c.Destination, tree.ReceiveOptions{Sum: sum, Recursive: req.Recursive, Again: req.Again,
		Trouble: c.Trouble, Progress: c.Progress,
		Wide: wide(func(lane net.Conn) error { return r.AddLane(lane) })})
	o.Result, err = r.Run()
	return o, err
}

// Place is an agent's end of a copy.
type Place struct {
	Client *agentclient.Client
	ID     string
}

// Over distance one channel carries no more than what its window lets be under
// way: 2 MiB with OpenSSH.
const (
	awayFrom, awayLanes = 10 * time.Millisecond, 3 // the round trip, and connections beside the first
	farFrom, farLanes   = 40 * time.Millisecond, 7
)

// Widen opens further connections, if the machines are far enough away. Each
// time add gets one of each place.
func Widen(ctx context.Context, places []Place, add func([]net.Conn) error) {
	var rtt time.Duration
	for _, p := range places {
		best := time.Duration(math.MaxInt64)
		for range 2 { // the first may need a connection
			began := time.Now()
			if _, err := p.Client.Identity(ctx); err != nil {
				return
			}
			best = min(best, time.Since(began))
		}
		rtt = max(rtt, best)
	}
	n := 0
	switch {
	case rtt >= farFrom:
		n = farLanes
	case rtt >= awayFrom:
		n = awayLanes
	}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			var lanes []net.Conn
			for _, p := range places {
				conn, _, err := p.Client.Tree(ctx, wire.TreeRequest{Op: wire.TreeLane, ID: p.ID})
				if err != nil { // there are fewer, then
					break
				}
				lanes = append(lanes, conn)
			}
			if len(lanes) < len(places) || add(lanes) != nil {
				for _, l := range lanes {
					l.Close()
				}
			}
		})
	}
	wg.Wait()
}
