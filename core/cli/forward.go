package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/splice"
	"fleet.example/fleet/core/wire"

	ufcli "github.com/urfave/cli/v2"
)

func forwardCommand(reach Reach) *command.Command {
	return &command.Command{Name: "forward", Group: groupReach, Args: "MACHINE [[BIND:]PORT:]TARGET…",
		Summary: "have a local port lead to a port or socket of a machine",
		Help: `TARGET is a TCP port of the machine's loopback interface, the path of a UNIX
socket there, or agent, the agent itself. PORT is this side's, 0 for any that is free,
which is printed; without it, it is TARGET's. BIND is a loopback address, 127.0.0.1 if
none is given: whoever may use this computer's loopback interface may use the port.

  8080                                    the same port here and there
  0:8080                                  any free port here
  5432:/run/postgresql/.s.PGSQL.5432      a port here, a socket there
  0:agent                                 the agent's API; see below

It goes on until it is interrupted. A connection to the machine that is lost takes
what goes through it along; the port stays, and what connects to it next reaches the
machine again. With --session, the forward ends when that session does.

PORT:agent is for programs that cannot use the agent's UNIX socket: the port serves
the agent's API to whoever presents the token that this command read from its standard
input, a line of 32 characters or more that the caller made, as "Authorization: Bearer
TOKEN". Everybody else, and any browser, gets one refusal.`,
		Min: 2, Max: -1, Flags: append(command.JSONFlags(false),
			&ufcli.StringFlag{Name: "session", Usage: "end when `SESSION` of the machine does"}),
		Run: func(ctx context.Context, c *command.Call) error {
			var specs []forwardSpec
			for _, word := range c.Args[1:] {
				s, err := parseForward(word)
				if err != nil {
					return err
				}
				specs = append(specs, s)
			}
			if err := fanout.CheckWord(c.Arg(0)); err != nil {
				return err
			}
			if s := c.String("session"); c.IsSet("session") {
				if err := checkSession(s); err != nil {
					return err
				}
			}
			toAgent := slices.ContainsFunc(specs, func(s forwardSpec) bool { return s.target == agentTarget })
			var caller secret.Digest
			if toAgent {
				var err error
				if caller, err = callerToken(c); err != nil {
					return err
				}
			}
			return with(ctx, c, reach, func(o *fanout.One, t Target, a *agentclient.Client) error {
				var port *agentPort
				if toAgent {
					port = newAgentPort(t, caller)
				}
				return forwardAll(ctx, o, a, specs, port)
			})
		}}
}

// forwardSpec is one [[BIND:]PORT:]TARGET.
type forwardSpec struct {
	bind   string // an address
	port   uint16 // 0: any
	target string // a port, or a path
}

func parseForward(word string) (forwardSpec, error) {
	bad := func(why string) (forwardSpec, error) {
		return forwardSpec{}, fault.Usagef("cannot forward %q: %s", command.Clean(word), why).
			WithHint("[[BIND:]PORT:]TARGET, as 8080, 0:8080, 5432:/run/db.sock, 0:agent")
	}
	s := forwardSpec{bind: "127.0.0.1"}
	rest := word
	number := func(t string) (uint16, bool) {
		n, err := strconv.ParseUint(t, 10, 16)
		return uint16(n), err == nil && t[0] != '+'
	}
	isTarget := func(t string) bool {
		n, ok := number(t)
		return t == agentTarget || strings.HasPrefix(t, "/") || strings.HasPrefix(t, "~/") || ok && n != 0
	}
	if isTarget(rest) {
		n, ok := number(rest)
		if !ok && rest != agentTarget {
			return bad("a socket needs a PORT on this side, as 0:" + rest)
		}
		s.port, s.target = n, rest
		return s, nil
	}
	first, after, ok := strings.Cut(rest, ":")
	if strings.HasPrefix(rest, "[") {
		first, after, ok = strings.Cut(rest[1:], "]:")
	}
	if !ok {
		return bad(notTarget(rest))
	}
	if n, isPort := number(first); isPort && !strings.HasPrefix(rest, "[") {
		s.port, rest = n, after
	} else {
		s.bind = first
		if s.bind == "localhost" {
			s.bind = "127.0.0.1"
		}
		if _, err := place.Loopback(net.JoinHostPort(s.bind, "0")); err != nil {
			return bad("BIND is not a loopback address")
		}
		port, target, ok := strings.Cut(after, ":")
		n, isPort := number(port)
		if !ok || !isPort {
			return bad("after BIND stands PORT, a number from 0 to 65535, and then TARGET")
		}
		s.port, rest = n, target
	}
	if !isTarget(rest) {
		return bad(notTarget(rest))
	}
	s.target = rest
	return s, nil
}

// notTarget says why a word is no TARGET.
func notTarget(t string) string {
	host, port, ok := strings.Cut(t, ":")
	_, err := strconv.ParseUint(port, 10, 64)
	switch _, notNumber := strconv.ParseUint(t, 10, 64); {
	case t == "":
		return "TARGET is missing"
	case notNumber == nil:
		return "TARGET is a port from 1 to 65535, not " + t
	case ok && host != "" && err == nil:
		return fmt.Sprintf("TARGET is on the machine itself, and names no other host such as %q; of an address, give the port alone", command.Clean(host))
	}
	return fmt.Sprintf("TARGET is a port, the path of a UNIX socket, or agent, not %q", command.Clean(t))
}

const (
	// maxForwarded bounds how many connections one command forwards at a time.
	maxForwarded = 512
	// sessionEvery is how often a session that a forward belongs to is looked at.
	sessionEvery = 2 * time.Second
	// forwardIn bounds how long it may take to reach the target.
	forwardIn = 30 * time.Second
)

// forwardAll listens for each, and forwards until the context ends, or the
// session that it belongs to.
func forwardAll(ctx context.Context, o *fanout.One, a *agentclient.Client, specs []forwardSpec, port *agentPort) error {
	c := o.Call
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	session := c.String("session")
	if session != "" {
		s, err := a.Session(ctx, session)
		if err != nil {
			return err
		}
		if over(s) {
			return fault.New(fault.Refused, wire.CodeConflict, "session %s has ended", session)
		}
	}
	f := &forwarding{call: c, name: o.Machine.Label(), client: a, slots: make(chan struct{}, maxForwarded)}
	listeners := make([]net.Listener, 0, len(specs))
	defer func() {
		cancel(nil)
		f.wg.Wait()
	}()
	for _, s := range specs {
		l, err := net.Listen("tcp", net.JoinHostPort(s.bind, strconv.Itoa(int(s.port))))
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return fmt.Errorf("cannot listen: %w", err)
		}
		listeners = append(listeners, l)
	}
	for i, l := range listeners {
		context.AfterFunc(ctx, func() { l.Close() })
		f.wg.Go(func() {
			if specs[i].target == agentTarget {
				port.serve(ctx, l)
				return
			}
			f.accept(ctx, l, specs[i].target)
		})
		if err := f.say(l, specs[i].target, o.Machine.ID); err != nil {
			return err
		}
	}
	if session != "" {
		f.wg.Go(func() { f.follow(ctx, session, cancel) })
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return ctx.Err()
}

func over(s *wire.Session) bool { return s.State == wire.SessionExited || s.State == wire.SessionGone }

// forwarding is one command's.
type forwarding struct {
	call   *command.Call
	name   string
	client *agentclient.Client
	slots  chan struct{}
	wg     sync.WaitGroup

	mu   sync.Mutex
	said string // the last trouble, which is said once
}

func (f *forwarding) say(l net.Listener, target, machine string) error {
	at := l.Addr().(*net.TCPAddr)
	if f.call.WantsJSON() {
		return f.call.Print(wire.Forward{Schema: wire.SchemaForward, Machine: machine, Listen: at.String(), Port: at.Port, Target: target})
	}
	_, err := fmt.Fprintf(f.call.Stdout, "%s -> %s:%s\n", at, command.Clean(f.name), target)
	return err
}

func (f *forwarding) accept(ctx context.Context, l net.Listener, target string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			f.trouble(err) // out of descriptors: those that are open go on
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		select {
		case f.slots <- struct{}{}:
		default:
			f.trouble(fmt.Errorf("%d connections are open, which is the most", maxForwarded))
			conn.Close()
			continue
		}
		f.wg.Go(func() {
			defer func() { <-f.slots }()
			f.pass(ctx, conn, target)
		})
	}
}

// pass forwards one connection.
func (f *forwarding) pass(ctx context.Context, conn net.Conn, target string) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	dialing, cancel := context.WithTimeout(ctx, forwardIn)
	far, err := f.client.Forward(dialing, target)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			f.trouble(err)
		}
		return
	}
	f.trouble(nil)
	stopFar := context.AfterFunc(ctx, func() { far.Close() })
	defer stopFar()
	defer far.Close()
	splice.Conns(conn, far)
}

// trouble says what goes wrong, once until it is another or over.
func (f *forwarding) trouble(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	words := ""
	if err != nil {
		words = fault.Of(err).Msg
	}
	if words == f.said {
		return
	}
	f.said = words
	if words != "" {
		f.call.Notef("fleet: %s: %s", f.name, words)
	}
}

// follow ends the forwards with a session. A machine that cannot be asked says
// nothing about it.
func (f *forwarding) follow(ctx context.Context, id string, end context.CancelCauseFunc) {
	tick := time.NewTicker(sessionEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s, err := f.client.Session(ctx, id)
		switch {
		case err != nil && fault.Of(err).Code == wire.CodeNotFound, err == nil && over(s):
			end(fault.New(fault.Failure, "session_ended", "session %s has ended, and the forward with it", id))
			return
		}
	}
}
