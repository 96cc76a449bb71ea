package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"fleet.example/fleet/agentd/api"
	"fleet.example/fleet/agentd/files"
	"fleet.example/fleet/agentd/latch"
	"fleet.example/fleet/agentd/watch"
	"fleet.example/fleet/agentd/workspace"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
)

const sockRetry = 15 * time.Second

// serve serves both sockets. A socket that cannot be made is a blocker, and is
// tried again.
func (a *Agent) serve(ctx context.Context) {
	watches := &watch.Set{}
	defer watches.Close()
	s := &api.Server{Agent: a, Sessions: a.sessions, Tokens: a.tokens, Log: a.LogFile, Logger: a.Log, Watches: watches,
		Workspaces: &workspace.Manager{Dir: filepath.Join(a.Dirs.Data, place.WorkspacesDir), Account: a.Account, Getenv: a.Getenv, Umask: a.Umask, Log: a.Log},
		Files:      &files.Files{Tree: files.Everything{}, Home: a.Account.Home, Umask: fs.FileMode(a.Umask)}}
	handOver := a.handing.Load
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { a.serveLoopback(ctx, s) })
	for ctx.Err() == nil {
		agent, err := api.Listen(filepath.Join(a.Dirs.Runtime, place.AgentSocket), a.Sockets.Take(place.AgentSocket))
		var mint *api.Listener
		if err == nil {
			if mint, err = api.Listen(filepath.Join(a.Dirs.Runtime, place.MintSocket), a.Sockets.Take(place.MintSocket)); err != nil {
				agent.Close()
			}
		}
		if err != nil {
			msg := "cannot serve the agent's socket: " + err.Error()
			if old := a.sockErr.Swap(&msg); old == nil || *old != msg {
				a.Log.Error("cannot serve sockets", "error", err)
			}
			a.probes.Recheck()
			select {
			case <-ctx.Done():
			case <-time.After(sockRetry):
			}
			continue
		}
		a.sockErr.Store(nil)
		a.probes.Recheck()
		sctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { api.Serve(sctx, s.AgentServer(), agent, handOver); cancel() })
		wg.Go(func() { api.Serve(sctx, s.MintServer(), mint, handOver); cancel() })
		wg.Go(func() { a.guardSockets(sctx); cancel() })
		wg.Wait()
		a.Sockets.Put(place.AgentSocket, agent.Left())
		a.Sockets.Put(place.MintSocket, mint.Left())
	}
}

// loopbackName is the loopback listener among the sockets that are handed over.
const loopbackName = "loopback"

// serveLoopback serves the port of the loopback interface that a person wanted,
// if one did. One that cannot be had is a finding, and is tried again.
func (a *Agent) serveLoopback(ctx context.Context, s *api.Server) {
	addr := a.Listen
	if addr == "" {
		b, err := durable.ReadPrivate(filepath.Join(a.Dirs.Data, place.ListenFile), 256)
		if err != nil {
			a.Sockets.Take(loopbackName).Close()
			if !errors.Is(err, fs.ErrNotExist) {
				a.loopbackTrouble(err)
			}
			return
		}
		addr = strings.TrimSpace(string(b))
	}
	for ctx.Err() == nil {
		l, err := api.ListenLoopback(addr, a.Sockets.Take(loopbackName))
		var srv *api.HTTP
		if err == nil {
			if srv, err = s.LoopbackServer(); err != nil {
				l.Close()
			}
		}
		if err == nil {
			a.loopbackTrouble(nil)
			at := l.Addr().String()
			a.loopback.Store(&at)
			api.Serve(ctx, srv, l, a.handing.Load)
			a.loopback.Store(nil)
			a.Sockets.Put(loopbackName, l.Left())
			if ctx.Err() != nil {
				return
			}
			err = errors.New("the port is served no more, and is made again")
		}
		a.loopbackTrouble(err)
		select {
		case <-ctx.Done():
		case <-time.After(sockRetry):
		}
	}
}

// loopbackTrouble remembers what keeps the port from being served.
func (a *Agent) loopbackTrouble(err error) {
	if err == nil {
		if a.loopErr.Swap(nil) != nil {
			a.probes.Recheck()
		}
		return
	}
	msg := "cannot serve the loopback port: " + err.Error()
	if old := a.loopErr.Swap(&msg); old == nil || *old != msg {
		a.Log.Error("cannot serve the loopback port", "error", err)
		a.probes.Recheck()
	}
}

// guardSockets returns when somebody removed a socket's file, so that it is made again.
func (a *Agent) guardSockets(ctx context.Context) {
	t := time.NewTicker(sockRetry)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			for _, name := range []string{place.AgentSocket, place.MintSocket} {
				if _, err := os.Lstat(filepath.Join(a.Dirs.Runtime, name)); err != nil {
					a.Log.Warn("a socket's file is gone, making it again", "error", err)
					return
				}
			}
		}
	}
}

// Identity answers GET /v1/identity.
func (a *Agent) Identity() wire.Identity {
	st := a.store.Status()
	id := wire.Identity{Schema: wire.SchemaIdentity, Machine: st.Machine, Account: a.Account.Name, UID: a.Account.UID,
		Host: a.host, Plane: st.Plane, Credential: st.State, Generation: st.Generation,
		OrderAudience: OrderAudience(a.Dirs.Data), Version: a.Version}
	if st.Row != nil {
		row := &wire.IdentityRow{Machine: st.Row.Machine, ConfirmedAt: wire.Time{Time: st.Row.At}, AgeS: time.Since(st.Row.At).Seconds()}
		if l := a.loop.Load(); l != nil {
			_, row.Fresh = l.Fresh()
		}
		id.Row = row
	}
	return id
}

// Status answers GET /v1/status.
func (a *Agent) Status() wire.AgentStatus {
	st := a.store.Status()
	s := wire.AgentStatus{Schema: wire.SchemaAgent, State: "running", Latched: a.latched.Load(), Machine: st.Machine,
		Version: a.Version, PID: os.Getpid(), StartedAt: wire.TimeOf(a.started), Plane: st.Plane, Credential: st.State,
		Generation: st.Generation, Sessions: a.sessions.Running(), Draining: a.draining.Load(),
		DataDir: a.Dirs.Data, Socket: filepath.Join(a.Dirs.Runtime, place.AgentSocket)}
	if at := a.loopback.Load(); at != nil {
		s.Listen = *at
	}
	cert := a.certs.Status()
	s.CredentialKind = cert.Rung
	if cert.Expires != nil {
		s.ExpiresAt = wire.TimeOf(*cert.Expires)
	}
	switch {
	case s.Latched:
		s.State = "stopped"
	case st.Revoked:
		s.State = "revoked"
	}
	if dir, id := filepath.Split(a.programs); filepath.Base(dir) == place.VersionsDir {
		s.Artifact = id
	}
	s.Blockers, s.Probed = a.probes.Blockers()
	if l := a.loop.Load(); l != nil {
		s.LastCheck = l.Status()
	}
	return s
}

// Stop leaves the latch and ends agentd, or remembers the reason of the stop
// that the service manager is about to make.
func (a *Agent) Stop(reason string) error {
	if reason != wire.ReasonPerson {
		a.mu.Lock()
		a.expected, a.until = reason, time.Now().Add(reasonHolds)
		a.mu.Unlock()
		return nil
	}
	if err := latch.Set(a.Dirs.Data); err != nil {
		return err
	}
	a.latched.Store(true)
	a.Log.Info("a person stops this machine's agent")
	a.tell(order{orderStop, wire.ReasonPerson})
	return nil
}

// reason is why a signal that came now was sent.
func (a *Agent) reason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.expected != "" && time.Now().Before(a.until) {
		return a.expected
	}
	if latch.Present(a.Dirs.Data) { // left by `agentd stop` before the manager's signal
		return wire.ReasonPerson
	}
	return wire.ReasonSignal
}

// Start removes the latch and checks again.
func (a *Agent) Start() error {
	if err := latch.Clear(a.Dirs.Data); err != nil {
		return err
	}
	a.tell(order{what: orderStart})
	return nil
}

// Restart hands over to what `current` names.
func (a *Agent) Restart() error {
	a.tell(order{what: orderRestart})
	return nil
}

func (a *Agent) tell(o order) {
	select {
	case a.orders <- o:
	default: // the main loop is ending already
	}
}

// Drain sets or clears that this machine takes no new work. It outlives a restart.
func (a *Agent) Drain(on bool) error {
	path := filepath.Join(a.Dirs.Data, drainFile)
	var err error
	if on {
		err = durable.WriteFile(path, []byte("draining\n"), 0o600)
	} else {
		err = durable.Remove(path)
	}
	if err != nil {
		return err
	}
	if a.draining.Swap(on) != on {
		a.Log.Info("draining", "on", on)
	}
	a.probes.Recheck()
	return nil
}

// Draining reports whether new sessions are refused.
func (a *Agent) Draining() bool { return a.draining.Load() }

// Probe runs the probes now.
func (a *Agent) Probe(ctx context.Context) error { return a.probes.Now(ctx) }

// Reload reads the credential files again and checks at once.
func (a *Agent) Reload() {
	a.store.Reload()
	a.Log.Info("credential files read again", "machine", a.store.Machine())
	a.probes.Recheck()
	if l := a.loop.Load(); l != nil {
		l.Reload()
	}
}
