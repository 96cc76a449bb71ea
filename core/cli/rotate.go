package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

// rotateWait is how long --wait waits where --timeout does not say.
const rotateWait = 5 * time.Minute

// askAtOnce bounds the requests under way: the plane makes those that come
// together durable together. Waiting costs the plane nothing
// more for a thousand machines than for one, so all wait at once.
const askAtOnce = 128

func rotateCommand() *command.Command {
	spec := fanout.Spec{Does: "rotate its credential", Several: true, Cheap: true}
	return &command.Command{Name: "rotate", Group: groupMachine, Args: "MACHINE…|SELECTOR", Summary: "have machines replace their credentials", Max: -1,
		Verbs: []*command.Command{rotateGateCommand(), rotateURLCommand(), rotateCACommand()},
		Help: `A machine that is asked makes its next secret itself, with its next check, and
the plane takes it over when it is first used; the one before works until then.
An absent or stopped machine rotates when it is back. Asking twice is asking
once: a second run joins the first, so the command is safe from cron.

--kind mtls has machines come to be known by certificates that the plane issues,
for hours at a time, for a key that never leaves the machine; --kind bearer has
them come back to a secret. Until what is new works, what was before is taken.

Each result has a status: done, requested (it waits for the machine), deferred
(the machine is there and cannot yet, as with a full disk, or where it does not
reach the plane's listener for certificates; it tries on), failed.
Without --wait a request that waits is a success; with it, exit 8 when --timeout
is over first. A token needs the scopes read and rotate.`,
		Flags: append(append(command.JSONFlags(true),
			&ufcli.StringFlag{Name: "kind", Usage: "have the credential be of `KIND` afterwards: bearer or mtls"},
			command.DurationFlag("older-than", "only credentials issued `D` ago or earlier, by the plane's clock", 0),
			&ufcli.BoolFlag{Name: "wait", Usage: "return when the machines have rotated"},
			command.DurationFlag("timeout", "with --wait, give up after `D`; 0 waits for ever", rotateWait)), spec.Flags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			if c.IsSet("timeout") && !c.Bool("wait") {
				return fault.Usagef("--timeout goes with --wait")
			}
			if k := c.String("kind"); c.IsSet("kind") && k != wire.KindBearer && k != wire.KindMTLS {
				return fault.Usagef("--kind is %s or %s, not %q", wire.KindBearer, wire.KindMTLS, k)
			}
			sel, err := spec.Parse(c)
			if err != nil {
				return err
			}
			return onPlane(c, func(p *planeclient.Client) error {
				machines, err := sel.Machines(ctx, c, atPlane(p))
				if err != nil {
					return err
				}
				r := &rotation{plane: p, ask: make(chan struct{}, askAtOnce), fetch: p.Machine}
				if len(machines) > 1 {
					r.fetch = newRows(p, sel.Selector()).row
				}
				return sel.Each(ctx, c, machines, r.one, nil)
			})
		}}
}

// rotation is one command's.
type rotation struct {
	plane *planeclient.Client
	ask   chan struct{} // holds one for each request under way
	fetch func(context.Context, string) (wire.Machine, error)
}

// one asks one machine and, with --wait, waits for it.
func (r *rotation) one(ctx context.Context, o *fanout.One) (fanout.Outcome, error) {
	failed := fanout.Outcome{Status: wire.StatusFailed}
	select {
	case r.ask <- struct{}{}:
	case <-ctx.Done():
		return failed, ctx.Err()
	}
	m, err := r.plane.AskToRotate(ctx, o.ID, o.Span("older-than"), o.String("kind"))
	<-r.ask
	if err != nil {
		return failed, err
	}
	asked := m.Requests.Rotate
	if asked == nil {
		return rotated(m, "young enough"), nil
	}
	if !o.Bool("wait") {
		return unrotated(m, asked), nil
	}
	limit := o.Span("timeout")
	m, err = await(ctx, m, func(m wire.Machine) bool { return !waits(m, asked) }, "rotated", limit,
		func(ctx context.Context) (wire.Machine, error) { return r.fetch(ctx, o.ID) })
	switch {
	case err == nil && o.String("kind") != "" && m.Credential.Kind != o.String("kind"):
		return failed, fault.New(fault.Failure, wire.CodeConflict, "another request took this one's place: %s has a credential of kind %s",
			shown(m.Name, m.ID), m.Credential.Kind)
	case err == nil:
		return rotated(m, ""), nil
	case ctx.Err() != nil || fault.Of(err).Exit != fault.NotYet:
		return failed, err
	}
	out := unrotated(m, asked)
	return out, notRotated(m, limit)
}

// waits reports whether the request still waits for the machine. The value is
// the request: a later one says that this one was answered.
func waits(m wire.Machine, asked *wire.Time) bool {
	return m.Requests.Rotate != nil && m.Requests.Rotate.Equal(asked.Time)
}

// rotated is a machine that has nothing left to do.
func rotated(m wire.Machine, why string) fanout.Outcome {
	words := fmt.Sprintf("generation %d", m.Credential.Generation)
	if m.Credential.Kind == wire.KindMTLS {
		words += ", by certificate"
	}
	if at := m.Credential.IssuedAt; at != nil {
		words += ", issued at " + at.Format(time.RFC3339)
	}
	if why != "" {
		words += ": " + why
	}
	return outcome(m, wire.StatusDone, nil, words, why)
}

// unrotated is a machine that the request waits for.
func unrotated(m wire.Machine, asked *wire.Time) fanout.Outcome {
	status := wire.StatusRequested
	if hindered(m) != nil {
		status = wire.StatusDeferred
	}
	words, _ := whatFor(m)
	return outcome(m, status, asked, words, words)
}

func outcome(m wire.Machine, status string, asked *wire.Time, words, detail string) fanout.Outcome {
	doc := wire.Rotation{Schema: wire.SchemaRotation, Machine: m.ID, Name: m.Name, Status: status, Kind: m.Credential.Kind, Generation: m.Credential.Generation,
		IssuedAt: m.Credential.IssuedAt, RequestedAt: asked, Detail: detail}
	words = status + ": " + words
	return fanout.Outcome{Document: doc, Status: status, Words: words, Show: func(c *command.Call) error {
		_, err := fmt.Fprintf(c.Stdout, "%s  %s  %s\n", m.ID, clean(m.Name), clean(words))
		return err
	}}
}

// hindered is the blocker of a machine that is there and cannot keep a new
// secret, or cannot use a certificate.
func hindered(m wire.Machine) *wire.Blocker {
	i := slices.IndexFunc(m.Readiness.Blockers, func(b wire.Blocker) bool {
		return b.Code == "credential_unwritable" || b.Code == "certificate_unusable"
	})
	if i < 0 || m.Presence != wire.Present {
		return nil
	}
	return &m.Readiness.Blockers[i]
}

// behind reports whether what was heard of the machine last was a credential
// that has been superseded.
func behind(m wire.Machine) bool {
	at := m.Credential.BehindAt
	return at != nil && (m.LastCheck == nil || at.After(m.LastCheck.Time))
}

// barred reports whether the machine's bearer was presented after its last
// check, where a certificate is wanted: by a machine that lost its key, or by
// somebody else.
func barred(m wire.Machine) bool {
	at := m.Credential.BarredAt
	return at != nil && (m.LastCheck == nil || at.After(m.LastCheck.Time))
}

const stays = "the request stays; fleet show says whether it still waits"

// whatFor says what a rotation waits for, and what a person can do about it.
func whatFor(m wire.Machine) (words, hint string) {
	name := shown(m.Name, m.ID)
	switch b := hindered(m); {
	case b != nil && b.Code == "certificate_unusable":
		return "it " + b.Detail, b.Remedy
	case b != nil:
		return "it cannot write its next secret: " + b.Detail, b.Remedy
	case behind(m):
		return "it presents a credential that has been superseded: its disk went back, or was copied",
			fmt.Sprintf("bring the credential files of its data directory back, or fleet delete %s and install it again", name)
	case m.Lifecycle.State == wire.LifecycleStopped:
		return "it was stopped, and rotates once it is started", "fleet start " + name
	case m.Presence == wire.Never:
		return "it has never checked, and rotates once it does", stays
	case m.Presence != wire.Present:
		return "it is absent, and rotates when it is back", stays
	}
	return "it rotates with its next checks", stays
}

func notRotated(m wire.Machine, limit time.Duration) error {
	words, hint := whatFor(m)
	code := "not_yet"
	if behind(m) {
		code = wire.CodeBehind
	}
	return fault.New(fault.NotYet, code, "after %v %s has not rotated: %s", limit, shown(m.Name, m.ID), clean(words)).WithHint("%s", clean(hint))
}
