package hostcli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/muxserver"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// An update that nobody asked for by name is made by the shared server, beside
// the commands that it serves and never by one of them: a command waits for no
// upload, ends as it would have ended, and writes on standard output what it
// would have written. A server of one command's own makes none, since it ends
// with the command.
const (
	// upkeepAfter leaves a new connection to whoever had it made.
	upkeepAfter = 2 * time.Second
	// upkeepEvery is how often a machine whose sessions are waited for is asked.
	upkeepEvery = 10 * time.Second
	// upkeepsAtOnce bounds the uploads that go on beside the work.
	upkeepsAtOnce = 2
)

// upkeep is a server's.
type upkeep struct {
	*env
	slots chan struct{}
}

func newUpkeep(e *env) *upkeep { return &upkeep{e, make(chan struct{}, upkeepsAtOnce)} }

// attend brings a machine to what lies here, if it is newer and the person
// wants that, once no session runs there.
func (u *upkeep) attend(ctx context.Context, m muxserver.Upkept) {
	when := m.Hello.Updates
	if when != settings.UpdatesOnConnect && when != settings.UpdatesNotice || !pause(ctx, upkeepAfter) {
		return
	}
	dirs := u.artifactDirs()
	if d := m.Hello.Artifacts; d != "" {
		dirs = append([]string{d}, dirs...)
	}
	if !artifact.Offers(dirs, m.Runs) {
		return
	}
	in, link, err := u.open(m, dirs)
	if err != nil {
		return // its link is gone, and with it whoever meant the machine
	}
	name := command.Clean(link.Name)
	for {
		up := wire.MuxUpdate{From: m.Runs}
		if when == settings.UpdatesNotice {
			if a, err := available(ctx, in, m); err == nil {
				up.State, up.To = wire.UpdateAvailable, a.Manifest.Version
				m.Say(up, fmt.Sprintf("%s runs %s; fleet update %s brings %s", name, m.Runs, name, up.To))
			}
			return
		}
		doc, err := u.once(ctx, in, m, link)
		if doc != nil && doc.Artifact != nil {
			up.To = doc.Artifact.Version
		}
		if errors.Is(err, install.ErrNothing) {
			return
		}
		if err != nil {
			up.Detail = fault.Of(err).Msg
		}
		switch code := codeOf(err); {
		case err == nil:
			up.State = wire.UpdateDone
			m.Say(up, fmt.Sprintf("%s was updated from %s to %s", name, m.Runs, up.To))
			return
		case code == wire.CodeDeferred || code == "install_running":
			up.State = wire.UpdateDeferred
			m.Say(up, "")
		case code == "held":
			up.State = wire.UpdateHeld
			m.Say(up, "")
			return
		default:
			up.State = wire.UpdateFailed
			m.Say(up, fmt.Sprintf("cannot update %s from %s: %s", name, m.Runs, up.Detail))
			return
		}
		if !u.untilIdle(ctx, m) {
			return
		}
	}
}

func codeOf(err error) string {
	if err == nil {
		return ""
	}
	return fault.Of(err).Code
}

// open puts together what an update of the machine works with.
func (u *upkeep) open(m muxserver.Upkept, dirs []string) (*install.Env, state.Link, error) {
	p, err := u.dirs.OpenPlane(m.Hello.Plane)
	if err != nil {
		return nil, state.Link{}, err
	}
	links, err := p.Links()
	if err != nil {
		return nil, state.Link{}, err
	}
	link, found, err := state.FindLink(links, m.Hello.Machine, true)
	if err == nil && !found {
		err = fault.New(fault.NotFound, "no_destination", "no link leads to %s", m.Hello.Machine)
	}
	if err != nil {
		return nil, link, err
	}
	in, err := u.installer(p, nil)
	if err != nil {
		return nil, link, err
	}
	signers := in.Signers
	in.Artifact = func(goos, goarch string) (*artifact.Artifact, error) {
		return artifact.Find(dirs, goos, goarch, signers)
	}
	return in, link, nil
}

// available is what an update would bring.
func available(ctx context.Context, in *install.Env, m muxserver.Upkept) (*artifact.Artifact, error) {
	facts, err := m.Conn.Facts(ctx)
	if err != nil {
		return nil, err
	}
	a, err := in.Artifact(facts.GOOS, facts.GOARCH)
	if err == nil && !artifact.Newer(a.Manifest.Version, m.Runs) {
		err = install.ErrNothing
	}
	return a, err
}

// once makes the update, unless sessions run. It is not ended half-way because
// nobody uses the connection.
func (u *upkeep) once(ctx context.Context, in *install.Env, m muxserver.Upkept, link state.Link) (*wire.Install, error) {
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer m.Busy()()
	m.Say(wire.MuxUpdate{From: m.Runs, State: wire.UpdateRunning}, "")
	return in.UpdateOver(ctx, m.Conn, link, m.Runs)
}

// untilIdle waits until no session runs on the machine. It is false when the
// connection ends.
func (u *upkeep) untilIdle(ctx context.Context, m muxserver.Upkept) bool {
	for pause(ctx, upkeepEvery) {
		if st, err := m.Status(ctx); err == nil && st.Sessions == 0 && st.Forwards == 0 && st.Copies == 0 {
			return true
		}
	}
	return false
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
