package cli

import (
	"context"
	"io"
	"strconv"
	"strings"
	"syscall"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// Behalf is a process whose command another one does. Until Begin succeeds the
// other may do nothing and say nothing; from then on the process can go on by
// itself wherever the other stops.
type Behalf interface {
	// Begin is called once everything is ready, and returns the id of the session
	// that is started next.
	Begin(ctx context.Context) (session string, err error)
	// SessionErr is where the session's standard error goes. What is fleet's goes
	// to the call's, so that the session's output can be counted.
	SessionErr() io.Writer
	// Jump tells the offset of the next output where some was lost.
	Jump(to int64)
}

// ExecFor does `fleet exec` for another process, whose words, environment and
// streams it is given, over the connections of this one, and returns the exit
// code.
func ExecFor(ctx context.Context, host Host, b Behalf, p sshconfig.Person, args []string, std command.IO) int {
	s := &server{own: host, resolver: func(getenv func(string) string) sshconfig.Resolver {
		r := settings.Resolver(getenv)
		r.Person = &p
		return r
	}}
	app := &command.App{Name: "fleet", Flags: settings.Flags(), Signals: true,
		Config:   func() (map[string]string, error) { return settings.Load(state.DirsOf(std.Getenv)) },
		Commands: []*command.Command{execCommand(Reach{Find: fanout.Linked, Open: s.link, Behalf: b})},
	}
	return app.MainContext(ctx, args, std)
}

// begin brings the agent within reach and tells whose command it is what comes.
func begin(ctx context.Context, b Behalf, a *agentclient.Client, req *wire.SessionRequest, at *agentclient.Attachment) error {
	if err := a.Ready(ctx); err != nil {
		return err
	}
	session, err := b.Begin(ctx)
	if err != nil {
		return err
	}
	req.ID = session
	at.Stderr = b.SessionErr()
	say := at.Lost
	at.Lost = func(from, to int64) {
		b.Jump(to)
		say(from, to)
	}
	return nil
}

// rejoined reads SESSION@OFFSET[:SIGNAL].
func rejoined(s string) (id string, from int64, sig syscall.Signal, err error) {
	id, rest, _ := strings.Cut(s, "@")
	offset, number, signalled := strings.Cut(rest, ":")
	from, err = strconv.ParseInt(offset, 10, 64)
	var n uint64
	if err == nil && signalled {
		n, err = strconv.ParseUint(number, 10, 7)
	}
	if err != nil || from < 0 || !wire.IsSessionID(id) {
		return "", 0, 0, fault.Usagef("--rejoin takes SESSION@OFFSET[:SIGNAL]")
	}
	return id, from, syscall.Signal(n), nil
}
