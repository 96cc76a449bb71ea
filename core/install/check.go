package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/sdk"
)

// Agent is what an install asks of a machine's agent, over its socket.
type Agent interface {
	Identity(ctx context.Context) (wire.Identity, error)
	Status(ctx context.Context) (wire.AgentStatus, error)
	Restart(ctx context.Context, reason string) error
	Close() error
}

// OpenAgent reaches the agent behind a connection.
type OpenAgent func(ctx context.Context, c *sshconn.Conn, d place.Dirs) (Agent, error)

// checkTimeout bounds how long the first check may take.
const checkTimeout = 45 * time.Second

// lostAfter is how long an agent must say that no credential of its own works
// before it is believed.
const lostAfter = 3 * time.Second

// firstCheck waits until the agent itself says which row the plane gave it.
func (r *run) firstCheck(ctx context.Context) (bool, string, error) {
	id, err := r.awaitRow(ctx, time.Time{})
	if err != nil {
		return false, "", err
	}
	if r.switched {
		r.prune(ctx)
	}
	return false, "generation " + fmt.Sprint(id.Generation), nil
}

// awaitRow waits for a check of the running agent that succeeded after the given
// time.
func (r *run) awaitRow(ctx context.Context, after time.Time) (wire.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var last error
	var lost time.Time // since when the agent says that it has no credential that works
	wait := 20 * time.Millisecond
	for {
		id, why, err := r.askRow(ctx)
		// What this install handed over may take the agent a moment to read.
		if none := id.Credential == wire.CredentialMissing || id.Credential == wire.CredentialBehind; err != nil || !none || !r.secret.Empty() {
			lost = time.Time{}
		} else if lost.IsZero() {
			lost = time.Now()
		}
		switch {
		case err != nil:
			last = err
		case !lost.IsZero() && time.Since(lost) > lostAfter:
			return id, r.credentialLost()
		case id.Credential == wire.CredentialRevoked:
			return id, fault.New(fault.Refused, wire.CodeRevoked, "the plane told the machine that it was deleted").WithHint("fleet install again once its row is gone")
		// A row of an earlier run stands, but is no check (R5).
		case id.Row != nil && id.Row.Fresh && !id.Row.ConfirmedAt.Before(after):
			return id, nil
		default:
			last = errors.New(why)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return id, fault.New(fault.NotYet, "no_check", "the agent runs but has not checked in: %w", last).
					WithHint("does the machine reach %s? Running this again goes on from here", r.PlaneURL)
			}
			return id, ctx.Err()
		case <-time.After(wait):
			wait = min(2*wait, time.Second)
		}
	}
}

func (r *run) askRow(ctx context.Context) (id wire.Identity, why string, err error) {
	a, err := r.Open(ctx, r.conn, r.dirs)
	if err != nil {
		return id, "", err
	}
	defer a.Close()
	if id, err = a.Identity(ctx); err != nil || id.Row != nil && id.Row.Fresh {
		return id, "", err
	}
	st, err := a.Status(ctx)
	if err != nil {
		return id, "", err
	}
	why = "no check yet"
	if st.LastCheck != nil && !st.LastCheck.OK {
		why = st.LastCheck.Error
	}
	return id, why, nil
}

// match holds the three facts against each other and writes the link (R5).
func (r *run) match(ctx context.Context) (bool, string, error) {
	a, err := r.Open(ctx, r.conn, r.dirs)
	if err != nil {
		return false, "", err
	}
	defer a.Close()
	id, err := a.Identity(ctx)
	if err != nil {
		return false, "", err
	}
	row, err := r.Plane.Machine(ctx, r.admitted.Machine)
	if err != nil {
		return false, "", err
	}
	if err := Match(id, row.ID, r.facts.UID); err != nil {
		return false, "", err
	}
	if row.Presence != wire.Present {
		return false, "", fault.New(fault.NotYet, "not_present", "the plane shows %s as %s", row.ID, row.Presence)
	}
	r.doc.Matched.PlaneRow, r.doc.Machine = true, &row
	err = r.Links.SaveLink(ctx, state.Link{Machine: row.ID, Name: row.Name, Host: r.o.Host, SSHArgs: r.o.SSH.Args(),
		Account: r.facts.User, DataDir: r.dirs.Data, Runtime: r.dirs.Runtime, Scope: r.scope, Manager: r.managerName(),
		Artifact: r.runs, Last: "ok", At: time.Now().UTC().Format(time.RFC3339), Audience: id.OrderAudience})
	return false, row.Name + r.keptWords(row), err
}

// keptWords says that a name or labels that were asked for are not what the
// row has: they are taken when a machine is admitted, and persons change them
// from then on.
func (r *run) keptWords(row wire.Machine) string {
	words := ""
	if r.o.Name != "" && r.o.Name != row.Name {
		words = fmt.Sprintf("; admitted before, so its name stays: fleet rename %s %s", row.ID, r.o.Name)
	}
	for _, k := range slices.Sorted(maps.Keys(r.o.Labels)) {
		if v := r.o.Labels[k]; row.Labels[k] != v {
			return words + fmt.Sprintf("; admitted before, so its labels stay: fleet label %s %s=%s", row.ID, k, v)
		}
	}
	return words
}

// Match is the three-way match: the account that SSH authenticated, on the
// host whose key is pinned (the connection sees to that), and the row that the
// plane gave the agent's credential. selected is the row that the person means.
func Match(id wire.Identity, selected string, uid int) error {
	switch {
	case uid >= 0 && id.UID != uid:
		return fault.New(fault.Refused, "account_mismatch", "the agent behind the socket runs as uid %d, not as the account that logged in (uid %d)", id.UID, uid)
	case id.Credential == wire.CredentialRevoked:
		return fault.New(fault.Refused, wire.CodeRevoked, "the machine was deleted from the plane").WithHint("fleet install admits it again")
	case id.Row == nil:
		return fault.New(fault.Refused, "no_row", "the agent has not been confirmed by the plane yet")
	case id.Row.Machine != selected:
		return fault.New(fault.Refused, "row_mismatch", "the agent there is %s, and %s was meant", id.Row.Machine, selected).
			WithHint("fleet host link %s HOST names the right destination", selected)
	}
	return nil
}

// restartTimeout bounds how long an agent may take to become another version.
const restartTimeout = 15 * time.Second

// restartAgent makes a running agent become the version that current names. An
// agent that cannot do that by itself is restarted by its service manager.
func (r *run) restartAgent(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	err := r.becomeCurrent(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	r.Notef("the agent does not restart by itself (%v), asking the service manager", err)
	return r.manager.Restart(ctx, h, spec)
}

// becomeCurrent asks the agent to restart in place and waits until the one
// that answers is another. The answer to the request may be lost in the
// restart, so what counts is who answers afterwards.
func (r *run) becomeCurrent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()
	before, err := r.status(ctx, func(a Agent) error { return a.Restart(ctx, wire.ReasonUpdate) })
	if before.StartedAt == nil {
		return err
	}
	wait := 20 * time.Millisecond
	for {
		now, err := r.status(ctx, nil)
		if err == nil && now.StartedAt != nil && now.StartedAt.After(before.StartedAt.Time) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent did not restart in %s: %v", restartTimeout, err)
		case <-time.After(wait):
			wait = min(2*wait, time.Second)
		}
	}
}

// status opens the agent, asks for its status, and then does the deed.
func (r *run) status(ctx context.Context, deed func(Agent) error) (wire.AgentStatus, error) {
	a, err := r.Open(ctx, r.conn, r.dirs)
	if err != nil {
		return wire.AgentStatus{}, err
	}
	defer a.Close()
	st, err := a.Status(ctx)
	if err == nil && deed != nil {
		err = deed(a)
	}
	return st, err
}

// sessions is how many sessions run, -1 if the agent cannot be asked.
func (r *run) sessions(ctx context.Context) int {
	st, err := r.status(ctx, nil)
	if err != nil {
		return -1
	}
	return st.Sessions
}

// running puts a number of sessions into words.
func running(n int) string {
	if n == 1 {
		return "1 session runs on the machine"
	}
	return fmt.Sprintf("%d sessions run on the machine", n)
}

// runsCurrent reports whether the running agent is of a version. One that
// cannot be asked, or does not say, counts as if it were.
func (r *run) runsCurrent(ctx context.Context, id string) bool {
	st, err := r.status(ctx, nil)
	return err != nil || st.Artifact == "" || st.Artifact == id
}
