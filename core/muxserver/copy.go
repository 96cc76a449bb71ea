package muxserver

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/carry"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/tree"
	"fleet.example/fleet/core/wire"
)

// maxCopies bounds the copies that the server makes itself, each of which has
// buffers of some megabytes. Further clients make theirs over streams.
const maxCopies = 16

// copy makes an attempt of a copy between a place that the client has opened and
// the agent. That saves the bytes a process and a socket on their way: what the
// client may do with the descriptor is all that is done with it.
func (a *asker) copy(ctx context.Context) {
	conn, ok := a.conn.(*net.UnixConn)
	s := a.server
	s.mu.Lock()
	take := ok && s.copies < maxCopies
	if take {
		s.copies++
	}
	s.mu.Unlock()
	if !take {
		a.answer(mux.Answer{Error: mux.Exit(fault.New(fault.Failure, mux.CodeDeclined, "fleet-host makes no further copy"))})
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.copies--
	}()
	w, err := s.way(a.hello)
	if err != nil {
		a.answer(mux.Answer{Error: mux.Exit(err)})
		return
	}
	defer w.leave()
	var reached *agent
	var warning string
	err = a.onAgent(ctx, w, func(g *agent) (err error) {
		reached = g
		_, warning, err = g.tokenOf(ctx, false)
		return err
	})
	if err != nil {
		a.answer(mux.Answer{Error: mux.Exit(err)})
		return
	}
	if a.answer(mux.Answer{Warning: warning}) == nil {
		a.ordered(ctx, reached, conn)
	}
}

// ordered makes the attempt that the client orders next.
func (a *asker) ordered(ctx context.Context, g *agent, conn *net.UnixConn) {
	conn.SetReadDeadline(time.Now().Add(messageTimeout))
	var order mux.CopyOrder
	file, err := mux.Take(conn)
	if err != nil {
		return
	}
	if err := mux.ReadMessage(conn, &order); err != nil {
		if file != nil {
			file.Close()
		}
		return
	}
	conn.SetReadDeadline(time.Time{})
	tell := &teller{asker: a, end: func() {}}
	if !slices.Equal(order.Groups, mux.Groups()) {
		if file != nil {
			file.Close()
		}
		tell.say(mux.Ended(carry.Outcome{}, fault.New(fault.Failure, mux.CodeDeclined, "the client is in other groups than fleet-host")))
		return
	}
	c := carry.Copy{Request: order.Request, Trouble: tell.trouble, Progress: tell.progress}
	if c.Request.Op == wire.TreeReceive { // the agent's part is the other one
		c.Source, err = tree.TakeSource(order.Hand, file)
	} else {
		c.Destination, err = tree.TakeDestination(order.Hand, file)
	}
	if err != nil {
		tell.say(mux.Ended(carry.Outcome{}, err))
		return
	}
	if c.Source != nil {
		defer c.Source.Close()
	} else {
		defer c.Destination.Close()
	}
	ctx, stop := a.watch(ctx) // the client says nothing more
	defer stop()
	ctx, tell.end = context.WithCancel(ctx)
	defer tell.end()
	var beats sync.WaitGroup
	defer beats.Wait()
	over := make(chan struct{})
	defer close(over)
	beats.Go(func() { tell.beat(over) })
	client := agentclient.New(copied{g})
	defer client.Close()
	o, err := c.Run(ctx, client)
	tell.say(mux.Ended(o, err))
}

// teller says what becomes of a copy to the client. One that does not listen
// ends its copy.
type teller struct {
	asker *asker
	end   func()

	mu           sync.Mutex
	files, bytes int64
}

func (t *teller) say(n mux.CopyNews) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asker.conn.SetWriteDeadline(time.Now().Add(messageTimeout))
	if mux.WriteMessage(t.asker.conn, n) != nil {
		t.end()
	}
}

func (t *teller) trouble(p tree.Problem) { t.say(mux.CopyNews{Problem: &p}) }

func (t *teller) progress(files, bytes int64) {
	t.mu.Lock()
	t.files, t.bytes = files, bytes
	t.mu.Unlock()
	t.say(mux.CopyNews{Files: files, Bytes: bytes})
}

// beat shows that the server is alive.
func (t *teller) beat(over <-chan struct{}) {
	tick := time.NewTicker(mux.NewsEvery)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		n := mux.CopyNews{Files: t.files, Bytes: t.bytes}
		t.mu.Unlock()
		t.say(n)
	}
}

// copied reaches the agent for a copy that this process makes.
type copied struct{ agent *agent }

func (c copied) Dial(ctx context.Context) (net.Conn, error) {
	far, err := c.agent.dial(ctx, false)
	if err != nil {
		return nil, err
	}
	return newTimed(far), nil
}

func (c copied) Token(ctx context.Context, renew bool) (secret.Text, error) {
	return c.agent.ownToken(ctx, renew)
}
