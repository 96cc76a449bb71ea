package hostcli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func installCommand(b Build) *command.Command {
	flags := append(command.JSONFlags(true), settings.SSHFlags()...)
	flags = append(flags, trustFlags()...)
	return &command.Command{
		Name: "install", Group: "Machines", Args: "HOST", Summary: "install the agent on a machine over SSH, and link it", Min: 0, Max: 1,
		Help: `Steps: connect, host-key, platform, admit, upload, verify, credential, service,
first-check, match. It may be interrupted anywhere and run again.

A host key that is not pinned yet is shown and must be confirmed: by answering,
by --fingerprint, or by naming the evidence that counts with --trust.

The machine keeps whose signed statements it takes of where the plane is (fleet
rotate url, ca): the keys in --signers, or yours. The plane cannot change that.

With --listen, programs on the machine that cannot use a UNIX socket reach the agent
by a port of the loopback interface. Whoever reaches the port without a token gets a
refusal, and so does a browser. agentd token, on the machine, makes a token.

Without a session on the plane, a terminal shows a short code, and the install
waits until somebody who is logged in, anywhere, has approved it (fleet approve
CODE, or the plane's page); the machine is theirs then.

With --hosts, each line of FILE is: HOST [fingerprint=SHA256:…] [name=NAME]
[label.KEY=VALUE]. Each host has one result, as machines have that are selected
(see help selectors), with "document", what --json prints for one host: a line
for each on a terminal, JSON Lines with --jsonl or where output goes elsewhere,
one document with --json.`,
		Flags: append(flags,
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the machine; it wins over what the machine suggests"},
			&cli.StringSliceFlag{Name: "label", Usage: "label `K=V`; may be given more than once"},
			&cli.StringFlag{Name: "scope", Usage: "`SCOPE` of the service: user or system"},
			&cli.StringFlag{Name: "service-manager", Usage: "service-manager plugin `NAME`", Value: "auto"},
			&cli.StringFlag{Name: "signers", Usage: "`FILE` with the public keys whose signed statements the machine takes (default, where it has none: the key that logged in)"},
			&cli.StringFlag{Name: "listen", Usage: "serve the agent's API at `ADDR` of the machine's loopback interface, too, as 127.0.0.1:7750; off ends that"},
			&cli.StringFlag{Name: "hosts", Usage: "install on every line of `FILE`, or - for standard input"},
			&cli.IntFlag{Name: "parallel", Usage: "install on `N` hosts at once, with --hosts", Value: 16},
			&cli.IntFlag{Name: "max-failed", Usage: "with --hosts, begin no more after `N` failures; 0 means never"},
			&cli.BoolFlag{Name: "dry-run", Usage: "with --hosts, name the hosts and do nothing"},
		),
		Run: func(ctx context.Context, c *command.Call) error { return runInstall(ctx, b, c) },
	}
}

func trustFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "fingerprint", Usage: "the host key's `SHA256:…`, which confirms it; HOP=SHA256:… for a jump host"},
		command.ChoiceFlag("trust", "`EVIDENCE` that confirms host keys, of jump hosts too: known_hosts or cert-authority", "", nil,
			hostkey.EvidenceKnown, hostkey.EvidenceAuthority),
	}
}

func runInstall(ctx context.Context, b Build, c *command.Call) error {
	o := install.Options{Host: host(c), SSH: settings.SSH(c), Name: c.String("name"), Scope: c.String("scope"),
		Manager: c.String("service-manager"), Listen: c.String("listen"), Fingerprints: c.StringSlice("fingerprint"), Trust: c.String("trust")}
	var err error
	if o.Labels, err = labels(c.StringSlice("label")); err != nil {
		return err
	}
	if file := c.String("signers"); file != "" {
		if o.StatementSigners, err = readSigners(file); err != nil {
			return err
		}
	}
	many := c.String("hosts")
	if err := checkInstall(c, o, many); err != nil {
		return err
	}
	for _, name := range []string{"parallel", "max-failed", "dry-run"} {
		if many == "" && c.Given(name) {
			return fault.Usagef("--%s is for many hosts, and one is named", name).WithHint("fleet test HOST looks at one, and does nothing")
		}
	}
	var hosts []install.Options
	if many != "" {
		if hosts, err = readHosts(c, o, many); err != nil {
			return err
		}
	}
	e, err := newEnv(b, c)
	if err != nil {
		return err
	}
	p, client, err := e.plane()
	stranger := err != nil && many == ""
	if stranger {
		p, client, err = withoutSession(c, err)
	}
	if err != nil {
		return err
	}
	if many != "" {
		return installMany(ctx, e, p, client, hosts)
	}
	in, err := e.installer(p, client)
	if err != nil {
		return err
	}
	show := newProgress(c)
	in.Report, in.Notice, in.Sent = show.step, show.notice, show.sent
	if stranger {
		in.Plane = &byCode{client: client, call: c, pause: show.done}
	}
	if c.Interactive() && !c.WantsJSON() {
		in.Ask = show.ask(c)
	}
	doc, err := in.Install(ctx, o)
	show.done()
	if c.WantsJSON() {
		if printErr := c.Print(doc); printErr != nil {
			return printErr
		}
		return err
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Stdout, "%s  %s  %s\n", doc.Machine.ID, doc.Machine.Name, doc.Machine.Presence)
	return nil
}

// readSigners reads public keys, and returns them as a machine keeps them.
func readSigners(file string) ([]byte, error) {
	b, err := artifact.ReadFile(file, 256<<10)
	if err != nil {
		return nil, fmt.Errorf("cannot read the signers: %w", err)
	}
	keys, err := artifact.ParseSigners(b)
	if err != nil {
		return nil, fault.Usagef("--signers: %s: %s", file, err)
	}
	if len(keys) == 0 {
		return nil, fault.Usagef("--signers: %s names no key", file)
	}
	return keys.Format(), nil
}

func checkInstall(c *command.Call, o install.Options, many string) error {
	switch {
	case o.Scope != "" && o.Scope != "user" && o.Scope != "system":
		return fault.Usagef("--scope is user or system, not %q", o.Scope)
	case o.Name != "" && wire.CheckName(o.Name) != nil:
		return fault.Usagef("--name %q: %s", o.Name, wire.ErrName)
	case o.Listen != "" && o.Listen != "off" && notLoopback(o.Listen) != nil:
		return fault.Usagef("--listen: %s", notLoopback(o.Listen))
	case many == "" && o.Host == "":
		return fault.Usagef("HOST is missing, or --hosts").WithHint("usage: %s", c.Usage)
	case o.Manager != "" && wire.CheckName(o.Manager) != nil:
		return fault.Usagef("--service-manager %q: %s", o.Manager, wire.ErrName)
	case many != "" && (o.Host != "" || o.Name != "" || len(o.Fingerprints) > 0):
		return fault.Usagef("--hosts takes hosts, names and fingerprints from its file, not from arguments")
	case many != "":
		return checkSSH(c)
	}
	return checkSSH(c, o.Host)
}

// checkSSH refuses, before anything is asked or dialled, what can be no HOST, no
// port and no fingerprint.
func checkSSH(c *command.Call, hosts ...string) error {
	for _, h := range hosts {
		if _, err := sshconfig.ParseDestination(h); err != nil {
			return err
		}
	}
	if p := c.Int("p"); c.IsSet("p") && (p < 1 || p > 65535) {
		return fault.Usagef("-p takes a port from 1 to 65535, not %d", p)
	}
	_, err := hostkey.ParseFingerprints(c.StringSlice("fingerprint"))
	return err
}

func notLoopback(addr string) error {
	_, err := place.Loopback(addr)
	return err
}

func labels(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok || wire.CheckName(k) != nil || wire.CheckLabelValue(v) != nil {
			return nil, fault.Usagef("label %q is not of the form KEY=VALUE", a)
		}
		out[k] = v
	}
	return out, nil
}

// readHosts reads the file that --hosts names.
func readHosts(c *command.Call, o install.Options, file string) ([]install.Options, error) {
	if file == "-" {
		return parseHosts(c.Stdin, o)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the hosts: %w", err)
	}
	defer f.Close()
	return parseHosts(f, o)
}

// installMany installs on every host of a list, several at once, and shows how
// each went.
func installMany(ctx context.Context, e *env, p *state.Plane, client *planeclient.Client, hosts []install.Options) error {
	todo := map[string]install.Options{}
	var list []fanout.Machine
	for _, one := range hosts {
		todo[one.Host] = one // which stand there once
		list = append(list, fanout.Machine{Name: one.Host})
	}
	return manyHosts.Over(ctx, e.call, list, func(ctx context.Context, at *fanout.One) (fanout.Outcome, error) {
		in, err := e.installer(p, client)
		if err != nil {
			return fanout.Outcome{}, err
		}
		doc, err := in.Install(ctx, todo[at.Name])
		what := fanout.Outcome{Document: doc}
		if err == nil {
			what.Machine = &fanout.Machine{ID: doc.Machine.ID, Name: doc.Machine.Name}
			what.Words = at.Name + "  " + doc.Machine.Presence
		}
		return what, err
	})
}

// manyHosts is how an install takes hosts.
var manyHosts = fanout.Spec{Does: "install"}
