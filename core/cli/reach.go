package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"fleet.example/fleet/core/carry"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/wire"
)

// overLinks reaches machines over the links that are kept here.
func overLinks() Reach {
	s := &server{resolver: settings.Resolver}
	return Reach{Find: fanout.Linked, Open: s.link}
}

// server is the fleet-host that a command's targets go through, however many
// they are.
type server struct {
	resolver func(getenv func(string) string) sshconfig.Resolver
	own      Host // this process itself, if it is a fleet-host

	mu    sync.Mutex
	host  *mux.Server
	users int
}

// Host opens streams to agents.
type Host interface {
	Do(ctx context.Context, h mux.Hello, route mux.Route) (net.Conn, *mux.Answer, error)
}

// take returns the server, opening it for the first that asks.
func (s *server) take(ctx context.Context, c *command.Call) (Host, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		return s.own, nil
	}
	if s.host == nil {
		o, err := operator.Mux(c)
		if err != nil {
			return nil, err
		}
		if s.host, err = mux.Open(ctx, o); err != nil {
			s.host = nil
			return nil, err
		}
	}
	s.users++
	return s.host, nil
}

// leave ends a private server after its last user.
func (s *server) leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		return nil
	}
	if s.users--; s.users > 0 {
		return nil
	}
	host := s.host
	s.host = nil
	return host.Close()
}

// link opens the way to a machine over its link.
func (s *server) link(ctx context.Context, c *command.Call, m fanout.Machine) (Target, error) {
	if m.Link == nil {
		return nil, fanout.NoDestination(m, m.Label())
	}
	p, err := operator.Known(c)
	if err != nil {
		return nil, err
	}
	if s.own != nil && c.Bool("no-mux") {
		return nil, errors.New("this command shares no connection")
	}
	l := m.Link
	flags, err := sshconfig.FlagsOf(l.SSHArgs)
	if err != nil {
		return nil, err
	}
	route, err := s.resolver(c.Getenv).Chain(ctx, l.Host, flags)
	if err != nil {
		return nil, err
	}
	sayConfigured(c, route)
	key, err := mux.KeyOf(route)
	if err != nil {
		return nil, err
	}
	host, err := s.take(ctx, c)
	if err != nil {
		return nil, err
	}
	return &linked{server: s, host: host, m: m, stderr: c.Stderr, route: route,
		hello: mux.Hello{Key: key, Host: l.Host, Plane: p.URL(), Machine: l.Machine, DataDir: l.DataDir, Runtime: l.Runtime,
			Updates: c.String("updates"), Artifacts: c.Getenv("FLEET_ARTIFACT_DIR")}}, nil
}

// sayConfigured says under -v how the configuration came about, and what in it
// nothing here connects by.
func sayConfigured(c *command.Call, route *sshconfig.Chain) {
	if !c.Bool("verbose") {
		return
	}
	for _, hop := range route.Hops() {
		for _, line := range hop.Explain() {
			c.Notef("%s", command.Clean(line))
		}
	}
}

// linked is a machine reached over its link.
type linked struct {
	server *server
	host   Host
	m      fanout.Machine
	hello  mux.Hello
	route  *sshconfig.Chain
	stderr io.Writer

	mu     sync.Mutex
	ahead  net.Conn // a stream that was opened to get a token
	dialed bool     // a stream was used; another is wanted when it was of no use
	warned bool
}

func (t *linked) ID() string   { return t.m.ID }
func (t *linked) Name() string { return t.m.Name }

func (t *linked) do(ctx context.Context, h mux.Hello) (net.Conn, *mux.Answer, error) {
	return t.host.Do(ctx, h, func() *sshconfig.Chain { return t.route })
}

func (t *linked) Dial(ctx context.Context) (net.Conn, error) {
	t.mu.Lock()
	conn, fresh := t.ahead, t.dialed
	t.ahead, t.dialed = nil, true
	t.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	conn, _, err := t.stream(ctx, fresh)
	return conn, err
}

func (t *linked) stream(ctx context.Context, fresh bool) (net.Conn, secret.Text, error) {
	h := t.hello
	h.Op, h.Fresh = mux.OpStream, fresh
	conn, a, err := t.do(ctx, h)
	if err != nil {
		return nil, secret.Text{}, err
	}
	t.warn(a.Warning)
	return conn, secret.Of(a.Token), nil
}

// Token gives the token that comes with a stream: who wants one is about to
// open the other.
func (t *linked) Token(ctx context.Context, renew bool) (secret.Text, error) {
	if !renew {
		conn, tok, err := t.stream(ctx, false)
		if err != nil {
			return secret.Text{}, err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.ahead != nil {
			t.ahead.Close()
		}
		t.ahead = conn
		return tok, nil
	}
	h := t.hello
	h.Op, h.Renew = mux.OpToken, true
	conn, a, err := t.do(ctx, h)
	if err != nil {
		return secret.Text{}, err
	}
	t.warn(a.Warning)
	if conn != nil {
		conn.Close() // it was for the question alone
	}
	return secret.Of(a.Token), nil
}

// Carry has fleet-host make the copy, which has the connection to the machine.
func (t *linked) Carry(ctx context.Context, c carry.Copy) (o carry.Outcome, done bool, err error) {
	h := t.hello
	h.Op = mux.OpCopy
	conn, a, err := t.do(ctx, h)
	if declined(err) {
		return o, false, nil
	}
	if err != nil {
		return o, true, err
	}
	t.warn(a.Warning)
	at, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return o, false, nil
	}
	o, err = mux.HandOver(ctx, at, c)
	return o, !declined(err), err
}

func declined(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Code == mux.CodeDeclined
}

func (t *linked) warn(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text != "" && !t.warned {
		t.warned = true
		fmt.Fprintf(t.stderr, "fleet: %s\n", command.Clean(text))
	}
}

func (t *linked) Control(ctx context.Context, verb string) (*wire.AgentStatus, error) {
	h := t.hello
	h.Op, h.Verb = mux.OpControl, verb
	conn, a, err := t.do(ctx, h)
	if err != nil {
		return nil, err
	}
	return a.Status, conn.Close()
}

func (t *linked) Close() error {
	t.mu.Lock()
	if t.ahead != nil {
		t.ahead.Close()
		t.ahead = nil
	}
	t.mu.Unlock()
	return t.server.leave()
}
