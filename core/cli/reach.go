package cli

import (
	"context"
	"io"
	"net"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// overLinks reaches machines over the links that are kept here.
var overLinks = Reach{Find: fanout.Linked, Open: openLink}

// openLink starts a fleet-host that reaches the machine over its link.
func openLink(ctx context.Context, c *command.Call, m fanout.Machine) (Target, error) {
	if m.Link == nil {
		return nil, fanout.NoDestination(m, m.Label())
	}
	p, err := operator.Known(c)
	if err != nil {
		return nil, err
	}
	program, err := mux.Executable()
	if err != nil {
		return nil, err
	}
	var args []string
	if c.Bool("verbose") {
		args = append(args, "--verbose")
	}
	host, err := mux.Start(ctx, program, args, c.Stderr)
	if err != nil {
		return nil, err
	}
	l := m.Link
	return &linked{host: host, m: m, stderr: c.Stderr,
		hello: mux.Hello{Host: l.Host, SSHArgs: l.SSHArgs, Plane: p.URL(), Machine: l.Machine, DataDir: l.DataDir, Runtime: l.Runtime}}, nil
}

// linked is a machine reached over its link.
type linked struct {
	host   *mux.Private
	m      fanout.Machine
	hello  mux.Hello
	stderr io.Writer
	warned bool
}

func (t *linked) ID() string   { return t.m.ID }
func (t *linked) Name() string { return t.m.Name }

func (t *linked) Dial(ctx context.Context) (net.Conn, error) {
	h := t.hello
	h.Op = mux.OpStream
	conn, _, err := t.host.Do(ctx, h)
	return conn, err
}

func (t *linked) Token(ctx context.Context, renew bool) (secret.Text, error) {
	tok, warning, err := t.host.Token(ctx, t.hello, renew)
	if warning != "" && !t.warned {
		t.warned = true
		io.WriteString(t.stderr, "fleet: "+warning+"\n")
	}
	return tok, err
}

func (t *linked) Control(ctx context.Context, verb string) (*wire.AgentStatus, error) {
	h := t.hello
	h.Op, h.Verb = mux.OpControl, verb
	conn, a, err := t.host.Do(ctx, h)
	if err != nil {
		return nil, err
	}
	conn.Close()
	return a.Status, nil
}

func (t *linked) Close() error { return t.host.Close() }
