package muxserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/reach"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

const (
	// matchHolds is how long a match stands before it is made again beside the
	// work.
	matchHolds = time.Minute
	matchIn    = 30 * time.Second
	// refillAfter is how long after its use a stream that was kept ready is
	// replaced.
	refillAfter = 10 * time.Millisecond
)

// agent is the agent of one machine behind one connection.
type agent struct {
	server  *Server
	conn    *sshconn.Conn
	reach   *reach.Agent
	machine string
	way     *way
	hello   mux.Hello // of the first client

	mu       sync.Mutex
	minting  *minting // one mint and match at a time; the others wait and share it
	token    secret.Text
	warning  string
	matched  time.Time
	checking bool
	used     time.Time
	attended bool            // upkeep was begun
	update   *wire.MuxUpdate // what became of it
	news     string          // to tell once
	spares   spares
}

// tokenOf returns a token of an agent that was matched, for a client, who hears
// what there is to tell. With renew, the token before was refused.
func (g *agent) tokenOf(ctx context.Context, renew bool) (secret.Text, string, error) {
	tok, warning, err := g.matchedToken(ctx, renew)
	if err == nil {
		g.mu.Lock()
		g.used = time.Now()
		warning = g.told(warning)
		g.mu.Unlock()
	}
	return tok, warning, err
}

// ownToken is a token for the server itself.
func (g *agent) ownToken(ctx context.Context, renew bool) (secret.Text, error) {
	tok, _, err := g.matchedToken(ctx, renew)
	return tok, err
}

func (g *agent) matchedToken(ctx context.Context, renew bool) (secret.Text, string, error) {
	g.mu.Lock()
	before, old := g.token, time.Since(g.matched) > matchHolds
	if old && !before.Empty() && !renew && !g.checking {
		g.checking = true
		g.server.wg.Go(g.recheck)
	}
	warning := g.warning
	g.mu.Unlock()
	if !before.Empty() && !renew {
		return before, warning, nil
	}
	for {
		g.mu.Lock()
		now, warning, m := g.token, g.warning, g.minting
		if !now.Empty() && now != before {
			g.mu.Unlock()
			return now, warning, nil // another client has minted it meanwhile
		}
		if m == nil {
			m = &minting{done: make(chan struct{})}
			g.minting = m
			g.mu.Unlock()
			return g.mint(ctx, m)
		}
		g.mu.Unlock()
		select {
		case <-m.done:
		case <-ctx.Done():
			return secret.Text{}, "", ctx.Err()
		}
		// An agent that does not answer is waited for once by all who wait, not
		// once by each. Only one whose client left is tried again.
		if m.err != nil && !errors.Is(m.err, context.Canceled) {
			return secret.Text{}, "", m.err
		}
	}
}

// minting is one mint and match, and what came of it.
type minting struct {
	done chan struct{}
	err  error
}

func (g *agent) mint(ctx context.Context, m *minting) (tok secret.Text, warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, matchIn)
	defer cancel()
	var runs string
	if tok, err = g.reach.Mint(ctx, ""); err == nil {
		runs, warning, err = g.match(ctx, tok)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.minting, m.err = nil, err
	close(m.done)
	if err != nil {
		return secret.Text{}, "", err
	}
	g.token, g.warning, g.matched = tok, warning, time.Now()
	g.upkeep(runs)
	return tok, warning, nil
}

// match holds the three facts against each other (R5). The connection sees to
// the first two: it is the account's, and its host key is pinned.
func (g *agent) match(ctx context.Context, tok secret.Text) (runs, warning string, err error) {
	client := agentclient.New(minted{g.reach, tok})
	defer client.Close()
	id, err := client.Identity(ctx)
	if err != nil {
		return "", "", err
	}
	if err := install.Match(*id, g.machine, -1); err != nil {
		return "", "", err
	}
	if !id.Row.Fresh {
		return id.Version, fmt.Sprintf("the machine last heard from the plane %s ago; its row of then stands",
			time.Duration(id.Row.AgeS*float64(time.Second)).Round(time.Second)), nil
	}
	return id.Version, "", nil
}

// recheck makes the match again. If it fails, the next client mints and matches
// for itself and hears why.
func (g *agent) recheck() {
	ctx, cancel := context.WithTimeout(context.Background(), matchIn)
	defer cancel()
	g.mu.Lock()
	tok := g.token
	g.mu.Unlock()
	_, warning, err := g.match(ctx, tok)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.checking = false
	if g.token != tok {
		return
	}
	if err != nil {
		g.token = secret.Text{}
		return
	}
	g.warning, g.matched = warning, time.Now()
}

// minted reaches an agent with a token that was just minted.
type minted struct {
	*reach.Agent
	token secret.Text
}

func (m minted) Token(context.Context, bool) (secret.Text, error) { return m.token, nil }

// dial opens a stream to the agent, from what is kept ready if there is any,
// and has another made ready in its place.
func (g *agent) dial(ctx context.Context, fresh bool) (net.Conn, error) {
	if !fresh {
		if far := g.spares.take(); far != nil {
			g.refill(refillAfter) // what the stream is for goes first
			return far, nil
		}
	}
	far, err := g.reach.Dial(ctx)
	if err == nil {
		g.refill(0)
	}
	return far, err
}

// refill makes streams ready, a moment later, unless each would be a process on
// the machine.
func (g *agent) refill(moment time.Duration) {
	if g.reach.Bridged() {
		return
	}
	for range g.spares.wanted() {
		g.server.wg.Go(func() {
			time.Sleep(moment)
			ctx, cancel := context.WithTimeout(context.Background(), matchIn)
			defer cancel()
			far, err := g.reach.Dial(ctx)
			g.spares.put(far, err)
		})
	}
}

// air lets go of what was kept ready for too long: the agent would close it.
// An agent that is in use gets new ones.
func (g *agent) air() {
	g.spares.air()
	g.mu.Lock()
	inUse := time.Since(g.used) < sparesFor
	g.mu.Unlock()
	if inUse {
		g.refill(0)
	}
}

func (g *agent) end() { g.spares.end() }
