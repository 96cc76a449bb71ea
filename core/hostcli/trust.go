package hostcli

import (
	"context"
	"fmt"
	"strings"
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

A pin is for a host, its port, and the jump hosts that lead there. Jump hosts that
are not pinned yet are confirmed on the way, nearest first: by answering, by
--fingerprint HOP=SHA256:…, or by --trust. To re-pin one, name it as HOST, with
-J for those before it. Behind a ProxyCommand, the place is shown as via
ProxyCommand, whatever the command is.

OpenSSH's own known_hosts files are read as evidence and never written.`,
		Flags: append(append(command.JSONFlags(false), settings.SSHFlags()...), trustFlags()...),
		Run: func(ctx context.Context, c *command.Call) error {
			if err := checkTrust(c); err != nil {
				return err
			}
			e, err := newEnv(b, c)
			if err != nil {
				return err
			}
			switch c.Arg(0) {
			case "ls":
				return e.trustList()
			case "rm":
				return e.trustRemove(ctx, c.Arg(1))
			}
			return e.trustHost(ctx, host(c))
		},
	}
}

func checkTrust(c *command.Call) error {
	switch word := c.Arg(0); {
	case word == "ls" && len(c.Args) > 1:
		return fault.Usagef("trust ls takes no arguments")
	case word == "rm" && len(c.Args) != 2:
		return fault.Usagef("trust rm takes one HOST")
	case word == "ls" || word == "rm":
		return checkSSH(c)
	case len(c.Args) != 1:
		return fault.Usagef("trust takes one HOST")
	}
	return checkSSH(c, host(c))
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
	name, chain, _ := strings.Cut(dest, hostkey.Via)
	if err := e.pins.Remove(ctx, hostkey.Place{Name: name, Chain: chain}); fault.Of(err) == nil || fault.Of(err).Exit != fault.NotFound || chain != "" {
		return err
	}
	place, err := e.placeOf(ctx, dest)
	if err != nil {
		return err
	}
	return e.pins.Remove(ctx, place)
}

// placeOf is where a destination's own key is pinned.
func (e *env) placeOf(ctx context.Context, dest string) (hostkey.Place, error) {
	way, err := e.resolver.Chain(ctx, dest, e.sshFlags())
	if err != nil {
		return hostkey.Place{}, err
	}
	places := sshconn.PlacesOf(way)
	return places[len(places)-1], nil
}

func (e *env) trustHost(ctx context.Context, dest string) error {
	in, err := e.installer(nil, nil)
	if err != nil {
		return err
	}
	if e.call.Interactive() && !e.call.WantsJSON() {
		in.Ask = askHostKey(e.call)
	}
	// The target's pins do not count here: what the host presents now is what
	// the person is asked about. Hosts on the way are as pinned as ever.
	place, err := e.placeOf(ctx, dest)
	if err != nil {
		return err
	}
	old, err := e.pins.Pins(place)
	if err != nil {
		return err
	}
	by := install.Confirmation{Fingerprints: e.call.StringSlice("fingerprint"), Trust: e.call.String("trust")}
	in.HopMet = func(m hostkey.Met, how string, err error) {
		if err == nil && how != "" && !e.call.WantsJSON() {
			fmt.Fprintf(e.call.Stdout, "pinned: %s %s\n", m.Place, hostkey.Describe(m.Key))
		}
	}
	conn, err := in.ConnectConfirming(ctx, dest, e.sshFlags(), by, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	if ok, err := hostkey.Check(place, old, conn.Key); ok && err == nil {
		return e.trusted(conn, "already pinned")
	}
	how, err := in.Decide(ctx, conn.Met(), by)
	if err != nil {
		return err
	}
	if err := conn.Confirm(ctx, how); err != nil {
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
		return e.call.Print(trustDoc{wire.SchemaTrust, []hostkey.Entry{{Name: conn.Place.Name, Chain: conn.Place.Chain, Keys: pins}}})
	}
	k := install.HostKeyDoc(conn)
	fmt.Fprintf(e.call.Stdout, "%s: %s %s %s\n", what, conn.Place, k.Type, k.Fingerprint)
	return nil
}
