package muxserver

import (
	"context"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/reach"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// Upkept is a machine that Config.Upkeep attends to.
type Upkept struct {
	Hello mux.Hello // of the client that it was reached for
	Conn  *sshconn.Conn
	Runs  string // version that answered
	// Status asks the agent, by the token that the server has.
	Status func(ctx context.Context) (*wire.AgentStatus, error)
	// Say keeps what became of the machine's update, for the status; words are
	// told to the next client, "" nothing.
	Say func(u wire.MuxUpdate, words string)
	// Busy keeps the connection, whoever uses it, until done is called.
	Busy func() (done func())
}

// upkeep has the machine attended to, once for a connection. Nobody waits for
// it but the end of the server. The caller holds g.mu.
func (g *agent) upkeep(runs string) {
	s := g.server
	if s.Upkeep == nil || g.attended {
		return
	}
	g.attended = true
	s.wg.Go(func() { // ends with the connection
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s.wg.Go(func() { // ends with the connection, or with upkeep
			select {
			case <-g.conn.Done():
				cancel()
			case <-ctx.Done():
			}
		})
		s.Upkeep(ctx, Upkept{Hello: g.hello, Conn: g.conn, Runs: runs, Say: g.say,
			Status: func(ctx context.Context) (*wire.AgentStatus, error) {
				client := agentclient.New(kept{g.reach, g})
				defer client.Close()
				return client.Status(ctx)
			},
			Busy: func() func() {
				g.way.hold(1)
				s.enter(1) // a server that was retired meanwhile stays for it
				return func() {
					s.enter(-1)
					g.way.hold(-1)
				}
			}})
	})
}

// kept reaches an agent by the token that the server has, or a newer one.
type kept struct {
	*reach.Agent
	agent *agent
}

func (k kept) Token(ctx context.Context, renew bool) (secret.Text, error) {
	return k.agent.ownToken(ctx, renew)
}

func (g *agent) say(u wire.MuxUpdate, words string) {
	u.Machine, u.At = g.machine, wire.Time{Time: time.Now().UTC()}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.update = &u
	if words != "" {
		g.news = words
	}
}

// told is a warning with what there is to tell once. The caller holds g.mu.
func (g *agent) told(warning string) string {
	news := g.news
	g.news = ""
	switch {
	case news == "":
		return warning
	case warning == "":
		return news
	}
	return warning + "; " + news
}

// hold keeps a connection that no client uses.
func (w *way) hold(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy += n
	w.used = time.Now()
}

func (w *way) isBusy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy > 0
}
