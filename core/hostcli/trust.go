package hostcli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

func trustCommand(b Build) *command.Command {
	return &command.Command{
		Name: "trust", Group: "Machines", Args: "HOST | ls | rm HOST", Summary: "pin, re-pin, list or remove host keys", Min: 1, Max: 2,
		Help: `fleet trust HOST connects, shows the host's key, and pins it once it is confirmed:
by answering, by --fingerprint, or by --trust. A key that was pinned before is
replaced. fleet trust ls lists the pins, fleet trust rm HOST removes one.

OpenSSH's own known_hosts files are read as evidence and never written.`,
		Flags: append(append(command.JSONFlags(false), settings.SSHFlags()...), trustFlags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			e, err := newEnv(b, c)
			if err != nil {
				return err
			}
			switch c.Arg(0) {
			case "ls":
				if len(c.Args) > 1 {
					return fault.Usagef("trust ls takes no arguments")
				}
				return e.trustList()
			case "rm":
				if len(c.Args) != 2 {
					return fault.Usagef("trust rm takes one HOST")
				}
				return e.trustRemove(ctx, c.Arg(1))
			}
			if len(c.Args) != 1 {
				return fault.Usagef("trust takes one HOST")
			}
			return e.trustHost(ctx, host(c))
		},
	}
}

// trustDoc is fleet.trust/v1.
type trustDoc struct {
	Schema string          `json:"schema"`
	Pins   []hostkey.Entry `json:"pins"`
}

func (e *env) trustList() error {
	pins, err := e.pins.List()
	if err != nil {
		return err
	}
	if e.call.WantsJSON() {
		if pins == nil {
			pins = []hostkey.Entry{}
		}
		return e.call.Print(trustDoc{wire.SchemaTrust, pins})
	}
	w := tabwriter.NewWriter(e.call.Stdout, 0, 0, 2, ' ', 0)
	for _, p := range pins {
		for _, k := range p.Keys {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", hostkey.Place{Name: p.Name, Chain: p.Chain}, k.Type, k.Fingerprint, k.By)
		}
	}
	return w.Flush()
}

// trustRemove takes a destination, or the name as trust ls shows it.
func (e *env) trustRemove(ctx context.Context, dest string) error {
	if err := e.pins.Remove(ctx, hostkey.Place{Name: dest}); fault.Of(err) == nil || fault.Of(err).Exit != fault.NotFound {
		return err
	}
	conf, err := e.resolver.Resolve(ctx, dest, e.sshFlags())
	if err != nil {
		return err
	}
	return e.pins.Remove(ctx, hostkey.Place{Name: conf.HostKeyName()})
}

func (e *env) trustHost(ctx context.Context, dest string) error {
	in, err := e.installer(nil, nil)
	if err != nil {
		return err
	}
	if e.call.Interactive() && !e.call.WantsJSON() {
		in.Ask = askHostKey(e.call)
	}
	conf, err := e.resolver.Resolve(ctx, dest, e.sshFlags())
	if err != nil {
		return err
	}
	// The pins that are there do not count here: what the host presents now is
	// what the person is asked about.
	place := hostkey.Place{Name: conf.HostKeyName()}
	old, err := e.pins.Pins(place)
	if err != nil {
		return err
	}
	conn, err := in.ConnectAnew(ctx, dest, e.sshFlags())
	if err != nil {
		return err
	}
	defer conn.Close()
	if ok, err := hostkey.Check(place, old, conn.Key); ok && err == nil {
		return e.trusted(conn, "already pinned")
	}
	by, err := in.Decide(ctx, conn, e.call.StringSlice("fingerprint"), e.call.String("trust"))
	if err != nil {
		return err
	}
	if err := conn.Confirm(ctx, by); err != nil {
		return err
	}
	return e.trusted(conn, "pinned")
}

func (e *env) trusted(conn *sshconn.Conn, what string) error {
	if e.call.WantsJSON() {
		pins, err := e.pins.Pins(conn.Place)
		if err != nil {
			return err
		}
		return e.call.Print(trustDoc{wire.SchemaTrust, []hostkey.Entry{{Name: conn.Place.Name, Keys: pins}}})
	}
	k := install.HostKeyDoc(conn)
	fmt.Fprintf(e.call.Stdout, "%s: %s %s %s\n", what, conn.Place, k.Type, k.Fingerprint)
	return nil
}
