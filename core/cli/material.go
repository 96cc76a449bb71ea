package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

const (
	// rollWait is how long a rotation of the gate is waited for where --timeout
	// does not say.
	rollWait = 15 * time.Minute
	lookEach = time.Second
	// drillBack is how long a drill is waited for beyond its time.
	drillBack = 10 * time.Minute
)

func rotateGateCommand() *command.Command {
	return &command.Command{Name: "gate", Args: "[--leave MACHINE…]", Summary: "have the whole fleet change its gate token", Max: -1,
		Help: `The plane makes the next version of the token and takes it through four steps:
widen (both versions are accepted), roll (machines fetch the new one with their
checks), prove (nobody used the old one for longer than the slowest interval),
narrow (the old one is refused, seen to be refused, and erased). The plane goes
on whether or not this command does; run again, it joins.

It does not narrow while a machine has not presented the new version, and names
those: bring them back, delete them, or name them with --leave, which narrows
past them. A machine that was left fetches the token by itself when it is back,
with its own credential. Callers that are no known machine stand in the list by
the path that they call, and are left by it.

Exit 8 when --timeout is over first; the rotation stays under way. For owners,
and for their tokens with the scopes read and rotate.`,
		Flags: materialFlags(),
		Run: func(ctx context.Context, c *command.Call) error {
			if err := checkMaterial(c, wire.MaterialGate); err != nil {
				return err
			}
			return onPlane(c, func(p *planeclient.Client) error { return rotateMaterial(ctx, c, p, gateMover{}) })
		}}
}

func materialFlags(more ...ufcli.Flag) []ufcli.Flag {
	return append(append(command.JSONFlags(true), more...),
		&ufcli.BoolFlag{Name: "status", Usage: "show it, and change nothing"},
		&ufcli.BoolFlag{Name: "resume", Usage: "go on waiting for the one that is under way, and begin none"},
		&ufcli.BoolFlag{Name: "abort", Usage: "go back to the version before"},
		&ufcli.StringSliceFlag{Name: "leave", Usage: "narrow past `MACHINE`, by its id or exact name; arguments are such, too"},
		command.DurationFlag("timeout", "wait at most `D`; 0 waits for ever", rollWait))
}

// mover is what is particular to rotating one kind of material.
type mover interface {
	kind() string
	// begin and abort fill in a request, from where the rotation is. joins reports
	// that one that is under way is the one that is meant.
	begin(ctx context.Context, now func() (wire.MaterialRotation, error), req *wire.RotationRequest) (joins bool, err error)
	abort(ctx context.Context, now func() (wire.MaterialRotation, error), req *wire.RotationRequest) error
	// seen is told of where the rotation is, again and again, and once more when
	// it has ended.
	seen(ctx context.Context, r wire.MaterialRotation)
}

// gateMover rotates the gate's token, which the plane makes.
type gateMover struct{}

func (gateMover) kind() string { return wire.MaterialGate }
func (gateMover) begin(context.Context, func() (wire.MaterialRotation, error), *wire.RotationRequest) (bool, error) {
	return false, nil
}
func (gateMover) abort(context.Context, func() (wire.MaterialRotation, error), *wire.RotationRequest) error {
	return nil
}
func (gateMover) seen(context.Context, wire.MaterialRotation) {}

// word is a kind of material as people call it.
func word(kind string) string {
	if kind == wire.MaterialTrust {
		return "ca"
	}
	return kind
}

func drillCommand() *command.Command {
	return &command.Command{Name: "drill", Group: groupMachine, Summary: "rehearse, and leave everything as it was",
		Sub: []*command.Command{{Name: "rotate", Summary: "rotate the gate token to a throw-away version and back, and name the stragglers",
			Help: `The whole rotation, with a version that is narrowed away again: machines fetch
it, present it, and go back to the one they had. Whoever had not taken part when
it turned back is named: those would hold up a rotation in earnest. Exit 3 when
there are any. Machines that are absent then are not touched, and nobody is shut
out at any time, so it may stand in a crontab: two at once are one.`,
			Flags: append(command.JSONFlags(true),
				command.DurationFlag("timeout", "turn back after `D` at the latest", 10*time.Minute)),
			Run: func(ctx context.Context, c *command.Call) error {
				if c.Span("timeout") <= 0 {
					return fault.Usagef("--timeout says when the drill turns back")
				}
				return onPlane(c, func(p *planeclient.Client) error { return drill(ctx, c, p) })
			}}}}
}

// checkMaterial refuses flags that make no sense together, before anything is
// asked.
func checkMaterial(c *command.Call, kind string) error {
	leave := leaving(c)
	if len(c.Args) > 0 && !c.IsSet("leave") {
		return fault.Usagef("%q: machines are named with --leave", command.Clean(c.Args[0]))
	}
	said := 0
	for _, flag := range []string{"status", "resume", "abort"} {
		if c.Bool(flag) {
			said++
		}
	}
	switch {
	case said > 1:
		return fault.Usagef("--status, --resume and --abort exclude each other")
	case said > 0 && c.IsSet("to"):
		return fault.Usagef("--to begins a rotation, --status, --resume and --abort are about one that was begun")
	case said == 0 && kind != wire.MaterialGate && !c.IsSet("to"):
		return fault.Usagef("--to is missing").WithHint("fleet rotate %s --status shows the one that is under way, or the last one", word(kind))
	case len(leave) > 0 && (c.Bool("status") || c.Bool("abort")):
		return fault.Usagef("--leave goes with a rotation that is to go on")
	case c.Bool("status") && c.IsSet("timeout"):
		return fault.Usagef("--status waits for nothing")
	}
	for _, w := range leave {
		if strings.HasPrefix(w, "/") { // the path that unknown callers call
			continue
		}
		if err := fanout.CheckWord(w); err != nil {
			return err
		}
	}
	return nil
}

// leaving are the machines and callers that --leave names.
func leaving(c *command.Call) []string { return append(c.StringSlice("leave"), c.Args...) }

// rotateMaterial is fleet rotate gate, url and ca.
func rotateMaterial(ctx context.Context, c *command.Call, p *planeclient.Client, m mover) error {
	kind := m.kind()
	if c.Bool("status") {
		r, err := p.MaterialRotation(ctx, kind)
		if err != nil {
			return err
		}
		return showRotation(c, r)
	}
	names, err := leaves(ctx, c, p, leaving(c))
	if err != nil {
		return err
	}
	req := wire.RotationRequest{Action: wire.RotationStart, Leave: names}
	var r wire.MaterialRotation
	now := func() (wire.MaterialRotation, error) { return p.MaterialRotation(ctx, kind) }
	joins := false
	switch {
	case c.Bool("abort"):
		req.Action = wire.RotationAbort
		err = m.abort(ctx, now, &req)
	case !c.Bool("resume"):
		joins, err = m.begin(ctx, now, &req)
	}
	if err != nil {
		return err
	}
	if joins {
		r, err = now()
		req.Action = wire.RotationLeave
	}
	if c.Bool("resume") {
		if r, err = p.MaterialRotation(ctx, kind); err == nil && r.State != wire.RotationRunning {
			return fault.New(fault.Refused, wire.CodeConflict, "no rotation of the %s is under way", word(kind)).WithHint("fleet rotate %s begins one", word(kind))
		}
		req.Action = wire.RotationLeave
	}
	if err == nil && (req.Action != wire.RotationLeave || len(names) > 0) {
		r, err = p.SteerRotation(ctx, kind, req)
	}
	if err != nil {
		return err
	}
	r, err = watchRotation(ctx, c, p, r, c.Span("timeout"), m.seen)
	if err != nil {
		return rotationLeft(c, r, err)
	}
	m.seen(ctx, r)
	if err := showRotation(c, r); err != nil {
		return err
	}
	if want := wire.RotationDone; r.State != want && !c.Bool("abort") {
		return fault.New(fault.Refused, "aborted", "the rotation of the %s was taken back: version %d stays", word(kind), r.Version)
	}
	return nil
}

// leaves finds what --leave names: machines by their ids, callers by the path.
func leaves(ctx context.Context, c *command.Call, p *planeclient.Client, words []string) (names []string, err error) {
	for _, w := range words {
		if strings.HasPrefix(w, "/") {
			names = append(names, w)
			continue
		}
		m, err := fanout.AtPlane(ctx, p, w, true)
		if err != nil {
			return nil, err
		}
		names = append(names, m.ID)
	}
	return names, nil
}

func drill(ctx context.Context, c *command.Call, p *planeclient.Client) error {
	limit := c.Span("timeout")
	r, err := p.SteerRotation(ctx, wire.MaterialGate, wire.RotationRequest{Action: wire.RotationStart, Drill: true, DrillS: limit.Seconds()})
	if err != nil {
		return err
	}
	if r, err = watchRotation(ctx, c, p, r, limit+drillBack, gateMover{}.seen); err != nil {
		return rotationLeft(c, r, err)
	}
	if err := showRotation(c, r); err != nil {
		return err
	}
	switch n := len(r.Missed); {
	case r.State != wire.RotationDrilled:
		return fault.New(fault.Refused, "aborted", "the drill was ended: %s", r.State)
	case n > 0:
		return fault.New(fault.Partial, "stragglers", "%s did not take part: %s", many(n, "caller", "callers"), names(r.Missed)).
			WithHint("a rotation in earnest waits for these, or is told to leave them")
	}
	return nil
}

// errWaited says that the time was over.
var errWaited = errors.New("waited out")

// watchRotation waits until the rotation has ended, and tells of its steps. A
// plane that is out for a while is waited for, too. What was seen last is
// returned in any case.
func watchRotation(ctx context.Context, c *command.Call, p *planeclient.Client, r wire.MaterialRotation, limit time.Duration,
	seen func(context.Context, wire.MaterialRotation)) (wire.MaterialRotation, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	told, trouble := "", ""
	for {
		if line := stepLine(r); line != told && r.State == wire.RotationRunning {
			told = line
			switch {
			case c.Bool("jsonl"):
				if err := c.Print(r); err != nil {
					return r, err
				}
			case !c.WantsJSON():
				c.Notef("%s", line)
			}
		}
		if r.State != wire.RotationRunning {
			return r, nil
		}
		seen(ctx, r)
		select {
		case <-ctx.Done():
			return r, context.Cause(ctx)
		case <-time.After(lookEach):
		}
		now, err := p.MaterialRotation(ctx, r.Kind)
		switch {
		case err == nil:
			r, trouble = now, ""
		case ctx.Err() != nil:
			return r, context.Cause(ctx)
		case fault.Of(err).Exit != fault.Unreachable && fault.Of(err).Code != wire.CodeBusy:
			return r, err
		case err.Error() != trouble:
			trouble = err.Error()
			c.Notef("%s; waiting for it", trouble)
		}
	}
}

// rotationLeft shows where a rotation is that is waited for no longer.
func rotationLeft(c *command.Call, r wire.MaterialRotation, err error) error {
	if !errors.Is(err, errWaited) {
		return err
	}
	if err := showRotation(c, r); err != nil {
		return err
	}
	words := "it waits for " + r.Waiting
	if held := holding(r.Stragglers); len(held) > 0 {
		words = "it does not narrow while there are stragglers: " + names(held)
	}
	if r.Problem != "" {
		words = r.Problem
	}
	return fault.New(fault.NotYet, "not_yet", "the rotation of the %s is in step %s: %s", word(r.Kind), r.Step, clean(words)).
		WithHint("fleet rotate %s --resume goes on waiting, --leave MACHINE narrows past one, --abort goes back", word(r.Kind))
}

// holding are the stragglers that were not left.
func holding(all []wire.RotationStraggler) (held []wire.RotationStraggler) {
	for _, s := range all {
		if !s.Left {
			held = append(held, s)
		}
	}
	return held
}

const maxNames = 10

// names are a few of the stragglers in one line.
func names(all []wire.RotationStraggler) string {
	var words []string
	for _, s := range all[:min(len(all), maxNames)] {
		words = append(words, stragglerName(s))
	}
	if more := len(all) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

func stragglerName(s wire.RotationStraggler) string {
	if s.Endpoint != "" {
		return "unknown callers of " + clean(s.Endpoint)
	}
	return shown(s.Name, s.Machine)
}

func many(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// stepLine is a rotation in one line.
func stepLine(r wire.MaterialRotation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", clean(word(r.Kind)), clean(r.State))
	if r.State != wire.RotationRunning {
		fmt.Fprintf(&b, ", version %d", r.Version)
		return b.String()
	}
	b.Reset()
	from, to := r.From, r.To
	if r.Back {
		from, to = to, from
	}
	fmt.Fprintf(&b, "%s: %s, version %d to %d", clean(word(r.Kind)), clean(r.Step), from, to)
	switch {
	case r.Drill && r.Back:
		b.WriteString(" (drill, going back)")
	case r.Drill:
		b.WriteString(" (drill)")
	case r.Back:
		b.WriteString(" (going back)")
	}
	fmt.Fprintf(&b, ", %d of %d machines have moved", r.Machines.Moved, r.Machines.All)
	if r.Problem != "" {
		b.WriteString(": " + clean(r.Problem))
	}
	return b.String()
}

func showRotation(c *command.Call, r wire.MaterialRotation) error {
	if c.WantsJSON() {
		return c.Print(r)
	}
	w := c.Stdout
	fmt.Fprintln(w, stepLine(r))
	if r.State == wire.RotationIdle {
		return nil
	}
	if r.State != wire.RotationRunning {
		fmt.Fprintf(w, "from version %d to %d, begun by %s at %s\n", r.From, r.To, clean(r.By), r.StartedAt)
	}
	if r.Retiring != 0 && r.State == wire.RotationRunning {
		last := "never"
		if r.Uses.LastAt != nil {
			last = r.Uses.LastAt.String()
		}
		fmt.Fprintf(w, "uses of version %d: %d, the last %s\n", r.Retiring, r.Uses.Count, last)
	}
	if r.Waiting != "" {
		fmt.Fprintf(w, "waiting for %s\n", clean(r.Waiting))
	}
	if r.ProvedAt != nil {
		fmt.Fprintf(w, "the retired version was seen to be refused at %s\n", r.ProvedAt)
	}
	showStragglers(w, "straggler", r.Stragglers)
	showStragglers(w, "missed", r.Missed)
	return nil
}

func showStragglers(w io.Writer, word string, all []wire.RotationStraggler) {
	for _, s := range all {
		fmt.Fprintf(w, "%s: %s", word, stragglerName(s))
		if s.Machine != "" {
			fmt.Fprintf(w, "  %s  %s  version %d", clean(s.Machine), clean(s.Presence), s.Version)
		}
		if s.LastCheck != nil {
			fmt.Fprintf(w, ", last check %s", s.LastCheck)
		}
		if s.Uses > 0 {
			fmt.Fprintf(w, ", %s of the retiring version", many(int(s.Uses), "use", "uses"))
		}
		if s.Left {
			fmt.Fprint(w, "  (left)")
		}
		fmt.Fprintln(w)
	}
}
