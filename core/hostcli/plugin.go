package hostcli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/sdk"
)

func pluginCommand(b Build) *command.Command {
	run := func(f func(context.Context, *env) error) func(context.Context, *command.Call) error {
		return func(ctx context.Context, c *command.Call) error {
			e, err := newEnv(b, c)
			if err != nil {
				return err
			}
			return f(ctx, e)
		}
	}
	return &command.Command{
		Name: "plugin", Group: "Tools", Summary: "plugins: where they come from, and which may run",
		Help: `Plugins are taken from $FLEET_PLUGIN_DIR, $XDG_DATA_HOME/fleet/plugins, the
directory of the executable, and /usr/lib/fleet/plugins; never from PATH. Neither
a plugin nor a directory above it may be writable by others. Fleet's own run as
the plugins.lock beside the executable names them; a vendor's runs once
"fleet plugin install" has locked its SHA-256.`,
		Sub: []*command.Command{
			{
				Name: "ls", Summary: "list every path that was tried, and why a file was or was not taken",
				Flags: command.JSONFlags(false), Run: run(runPluginList),
			},
			{
				Name: "install", Args: "FILE", Summary: "copy a vendor's plugin to your plugin directory and lock its bytes",
				Min: 1, Max: 1, Flags: command.JSONFlags(false), Run: run(runPluginInstall),
			},
			{
				Name: "rm", Args: "PLUGIN", Summary: "remove an installed vendor's plugin and its lock",
				Min: 1, Max: 1, Run: run(func(_ context.Context, e *env) error { return e.catalog.Remove(e.call.Arg(0)) }),
			},
			{
				Name: "describe", Args: "PLUGIN|FILE", Summary: "show what a plugin says of itself",
				Min: 1, Max: 1, Flags: command.JSONFlags(false), Run: run(runPluginDescribe),
			},
			{
				Name: "test", Args: "PLUGIN|FILE", Summary: "run the conformance suite over a plugin",
				Help: `The plugin is run against this machine, as an account whose host key is not
confirmed: nothing is changed. The exit code is 1 if a check failed.

With --host it is run against a real machine over SSH, once the host key is
confirmed. A service manager registers, starts, stops and removes a service
there under a name of its own, with an agent that has no credential and talks to
nobody; that takes an artifact for the machine's platform. All of it is taken
away at the end. A probe changes nothing. A transport carries SSH to it, over
every way that it says it goes: jump hosts and proxy commands are made here.`,
				Min: 1, Max: 1, Flags: pluginTestFlags(), Run: run(runPluginTest),
			},
			{
				Name: "relay", Args: "HOST PORT", Summary: "connect standard input and output with an address", Hidden: true,
				Min: 2, Max: 2, Run: runRelay,
			},
		},
	}
}

func runPluginList(_ context.Context, e *env) error {
	doc, err := e.catalog.List()
	if err != nil {
		return fmt.Errorf("cannot list plugins: %w", err)
	}
	if e.call.WantsJSON() {
		return e.call.Print(doc)
	}
	w := tabwriter.NewWriter(e.call.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "PATH\tSTATE\tWHY")
	version := map[string]string{}
	for _, p := range doc.Plugins {
		version[p.Path] = p.Version
	}
	for _, p := range doc.Paths {
		why := p.Why
		switch p.State {
		case catalog.StateTaken:
			why = version[p.Path]
		case catalog.StateSearched, catalog.StateAbsent:
			why = p.Source
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Path, p.State, why)
	}
	return w.Flush()
}

func runPluginInstall(ctx context.Context, e *env) error {
	p, err := e.catalog.Install(ctx, e.call.Arg(0))
	if err != nil {
		return err
	}
	if e.call.WantsJSON() {
		return e.call.Print(catalog.ListDoc{Schema: catalog.SchemaPlugins, Plugins: []catalog.PluginDoc{p}, Paths: []catalog.PathDoc{}})
	}
	_, err = fmt.Fprintf(e.call.Stdout, "%s %s installed\nsha256 %s\n", p.File, p.Version, p.SHA256)
	return err
}

// pluginPath is a file that the person names by a path, or a plugin's name.
func pluginPath(e *env) (path string, found *catalog.Found, err error) {
	what := e.call.Arg(0)
	if strings.ContainsRune(what, filepath.Separator) {
		path, err = filepath.Abs(what)
		return path, nil, err
	}
	f, err := e.catalog.Lookup(what)
	return f.Path, &f, err
}

func runPluginDescribe(ctx context.Context, e *env) error {
	path, found, err := pluginPath(e)
	if err != nil {
		return err
	}
	var d sdk.Description
	if found != nil && found.Entry.File != "" {
		d = found.Entry.Description // what was locked, without running anything
	} else if d, _, err = e.catalog.Describe(ctx, path); err != nil {
		return err
	}
	if e.call.WantsJSON() {
		return e.call.Print(d)
	}
	return printDescription(e.call.Stdout, path, d)
}

func printDescription(out io.Writer, path string, d sdk.Description) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "plugin\t%s %s\n", d.FileName(), d.Version)
	fmt.Fprintf(w, "file\t%s\n", path)
	fmt.Fprintf(w, "does\t%s\n", d.Summary)
	fmt.Fprintf(w, "speaks\t%s\n", strings.Join(d.Protocols, ", "))
	targets := strings.Join(d.Targets, ", ")
	if targets == "" {
		targets = "any system"
	}
	fmt.Fprintf(w, "acts on\t%s\n", targets)
	for i, c := range d.Commands {
		label := ""
		if i == 0 {
			label = "runs unconfirmed"
		}
		fmt.Fprintf(w, "%s\t%s\n", label, strings.Join(c, " "))
	}
	return w.Flush()
}
