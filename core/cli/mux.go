package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/wire"
)

func muxCommand() *command.Command {
	return &command.Command{Name: "mux", Group: groupTools, Summary: "the SSH connections that commands share",
		Help: "A command that reaches a machine from a terminal starts a process that keeps its SSH connection for those " +
			"that follow, and ends when nobody has used it for ten minutes. Without a terminal, as under cron, a running one " +
			"is used and none is started. --no-mux on any command goes without. It also updates machines that are connected to; " +
			"see fleet help update.",
		Sub: []*command.Command{
			{Name: "start", Summary: "start sharing, also where there is no terminal", Flags: command.JSONFlags(false), Run: muxStart},
			{Name: "status", Summary: "show what is open and who uses it", Flags: command.JSONFlags(false), Run: muxStatus},
			{Name: "stop", Summary: "close every shared connection", Flags: command.JSONFlags(false), Run: muxStop},
		}}
}

func muxStart(ctx context.Context, c *command.Call) error {
	o, err := operator.Mux(c)
	if err != nil {
		return err
	}
	o.Private, o.MayStart = false, true
	s, err := mux.Open(ctx, o)
	if err != nil {
		return err
	}
	a, err := s.Call(ctx, mux.Hello{Op: mux.OpStatus})
	if err != nil {
		return err
	}
	return showMux(c, a.Mux)
}

// onMux asks the shared server; without one the answer is that none runs.
func onMux(ctx context.Context, c *command.Call, op string) (*wire.Mux, error) {
	none := &wire.Mux{Schema: wire.SchemaMux, Connections: []wire.MuxConnection{}}
	o, err := operator.Mux(c)
	if err != nil {
		return nil, err
	}
	s, err := mux.Running(ctx, o)
	if s == nil || err != nil {
		return none, err
	}
	// Looking at one must not make it give way to a newer one.
	a, err := s.AskAsIs(ctx, mux.Hello{Op: op})
	if err != nil {
		return nil, err
	}
	return a.Mux, nil
}

func muxStatus(ctx context.Context, c *command.Call) error {
	m, err := onMux(ctx, c, mux.OpStatus)
	if err != nil {
		return err
	}
	return showMux(c, m)
}

func muxStop(ctx context.Context, c *command.Call) error {
	m, err := onMux(ctx, c, mux.OpStop)
	if err != nil {
		return err
	}
	if c.WantsJSON() {
		m.Running, m.Connections = false, []wire.MuxConnection{}
		return c.Print(m)
	}
	switch clients := attachedTo(m); {
	case !m.Running:
		c.Notef("nothing is shared")
	case clients > 0:
		c.Notef("stopped; %d attached to it reconnect by themselves", clients)
	default:
		c.Notef("stopped")
	}
	return nil
}

func attachedTo(m *wire.Mux) (clients int) {
	for _, w := range m.Connections {
		clients += w.Clients
	}
	return clients
}

func showMux(c *command.Call, m *wire.Mux) error {
	if c.WantsJSON() {
		return c.Print(m)
	}
	if !m.Running {
		c.Notef("nothing is shared")
		return nil
	}
	c.Notef("process %d, fleet %s, since %s", m.PID, clean(m.Version), m.Since.Local().Format(time.DateTime))
	if len(m.Connections) == 0 {
		c.Notef("no connection is open")
		return nil
	}
	if err := muxGrid(m, time.Now()).write(screenOf(c)); err != nil {
		return err
	}
	for _, w := range m.Connections {
		for _, u := range w.Updates {
			c.Notef("%s: %s", clean(u.Machine), updateWords(u))
		}
	}
	return nil
}

// updateWords say what became of an update that nobody asked for by name.
func updateWords(u wire.MuxUpdate) string {
	words := map[string]string{
		wire.UpdateAvailable: "runs %s; fleet update brings %s",
		wire.UpdateDeferred:  "the update from %s to %s waits",
		wire.UpdateRunning:   "is being updated from %s%.0s",
		wire.UpdateDone:      "was updated from %s to %s",
		wire.UpdateHeld:      "runs %s, and %s was left again there; fleet update brings it all the same",
		wire.UpdateFailed:    "cannot be updated from %s to %s",
	}[u.State]
	if words == "" {
		return clean(u.State)
	}
	text := fmt.Sprintf(words, clean(u.From), clean(u.To))
	if u.Detail != "" && (u.State == wire.UpdateFailed || u.State == wire.UpdateDeferred) {
		text += ": " + clean(u.Detail)
	}
	return text
}

func muxGrid(m *wire.Mux, now time.Time) *grid {
	g := &grid{head: []string{"HOST", "DESTINATION", "STATE", "FOR", "CLIENTS", "ERROR"}, flex: []int{0, 1, 5}}
	for _, w := range m.Connections {
		sh := map[string]shade{wire.MuxConnected: good, wire.MuxReconnecting: warning, wire.MuxDown: bad}[w.State]
		g.add(cell{text: w.Host}, cell{text: w.Destination}, cell{w.State, sh}, cell{text: age(now.Sub(w.Since.Time))},
			cell{text: strconv.Itoa(w.Clients)}, cell{text: w.Error})
	}
	return g
}

// forget has the shared server, if there is one, drop what was reached for a
// plane.
func forget(ctx context.Context, c *command.Call, plane string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	o, err := operator.Mux(c)
	if err != nil {
		return
	}
	if s, err := mux.Running(ctx, o); s != nil && err == nil {
		s.AskAsIs(ctx, mux.Hello{Op: mux.OpForget, Plane: plane})
	}
}
