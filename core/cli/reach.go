package cli

import (
	"context"
	"io"
	"net"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// reachThroughHost finds the link that MACHINE means and starts a fleet-host
// that reaches it. A machine that has no link, but that the plane knows, is
// told apart from one that nobody knows.
func reachThroughHost(ctx context.Context, c *command.Call, machine string) (Target, error) {
	p, err := operator.Known(c)
	if err != nil {
		return nil, err
	}
	links, err := p.Links()
	if err != nil {
		return nil, err
	}
	l, found, err := state.FindLink(links, machine)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, noDestination(ctx, c, machine)
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
	return &linked{host: host, link: l, stderr: c.Stderr,
		hello: mux.Hello{Host: l.Host, SSHArgs: l.SSHArgs, Plane: p.URL(), Machine: l.Machine, DataDir: l.DataDir, Runtime: l.Runtime}}, nil
}

func noDestination(ctx context.Context, c *command.Call, machine string) error {
	name := machine
	if _, client, err := operator.Plane(c); err == nil {
		defer client.Close()
		found, err := client.Machines(ctx, wire.MachineFilter{Match: machine})
		if err == nil && len(found.Machines) == 0 {
			return fault.New(fault.NotFound, wire.CodeNotFound, "no machine %q", machine)
		}
		if err == nil && len(found.Machines) == 1 {
			name = found.Machines[0].Name
		}
	}
	return fault.New(fault.NotFound, "no_destination", "no SSH destination is known for %s", name).WithHint("fleet host link %s HOST", machine)
}

// linked is a machine reached over its link.
type linked struct {
	host   *mux.Private
	link   state.Link
	hello  mux.Hello
	stderr io.Writer
	warned bool
}

func (t *linked) ID() string   { return t.link.Machine }
func (t *linked) Name() string { return t.link.Name }

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
