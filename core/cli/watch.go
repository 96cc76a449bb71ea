package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/wire"
)

func fileWatchCommand(reach Reach) *command.Command {
	return &command.Command{Name: "watch", Args: "MACHINE:[PATH]", Summary: "print what changes below a directory, or to one file", Min: 1, Max: 1,
		Help: `Each change is a line: created, modified, written (what was open for writing was
closed), attributes, removed, or renamed; with --jsonl, a JSON Line. A watch has no
end and so makes no one document: --json is another name for --jsonl here. They come from
the machine's own kernel, in order, from the moment that "ready" is said on standard
error. A line says where to look; what is there by then may be newer.

When changes were lost, because they came faster than they were taken or the
connection was away for too long, a line says overflow: look again at everything
once it is ready again. With --initial what is there already comes first, as
exists, and comes again after an overflow.

A connection that is lost is made again, and nothing is missed while the agent
keeps it, for two minutes. --from goes on after an event of which the caller has
the token.

Each directory takes one of the watches that the account may have
(fs.inotify.max_user_watches). What is written through a memory mapping, or by
another computer to a shared file system, no kernel tells of.`,
		Flags: []ufcli.Flag{
			&ufcli.BoolFlag{Name: "jsonl", Aliases: []string{"json"}, Usage: "print JSON Lines, one for each change"},
			&ufcli.BoolFlag{Name: "initial", Usage: "print what is there already, first"},
			&ufcli.BoolFlag{Name: "shallow", Usage: "the directory's own entries, and nothing below them"},
			&ufcli.StringFlag{Name: "from", Usage: "go on after the event with this `TOKEN`"}},
		Run: onPath(reach, nil, fileWatch)}
}

func fileWatch(ctx context.Context, c *command.Call, m fanout.Machine, a *agentclient.Client, path string) error {
	note := func(text string) { c.Notef("fleet: %s: %s", shown(m.Name, m.ID), text) }
	lines := json.NewEncoder(c.Stdout)
	lines.SetEscapeHTML(false)
	err := a.Watch(ctx, agentclient.Watching{Path: path, Shallow: c.Bool("shallow"), Initial: c.Bool("initial"), From: c.String("from"), Notice: note},
		func(ev wire.WatchEvent) error {
			if c.Bool("jsonl") {
				ev.Schema, ev.Machine = wire.SchemaWatch, m.ID
				return lines.Encode(ev)
			}
			switch ev.Event {
			case wire.WatchReady:
				note("ready: every change in " + string(ev.Root) + " is printed from now on")
				return nil
			case wire.WatchEnded:
				return nil // the error says it
			}
			_, err := fmt.Fprintln(c.Stdout, changed(ev))
			return err
		})
	if errors.Is(err, syscall.EPIPE) {
		return &command.Exit{Status: 128 + int(syscall.SIGPIPE)}
	}
	return err
}

// changed is an event as a line of text.
func changed(ev wire.WatchEvent) string {
	path := clean(string(ev.Path))
	if path == "" {
		path = "."
	}
	if ev.Directory {
		path += "/"
	}
	switch {
	case ev.Event == wire.WatchOverflow:
		return fmt.Sprintf("%-10s  (%s) changes were lost: look again at everything", ev.Event, clean(ev.Reason))
	case ev.Event == wire.WatchUnwatched:
		return fmt.Sprintf("%-10s  %s (%s)", ev.Event, path, clean(ev.Reason))
	case ev.From != "":
		return fmt.Sprintf("%-10s  %s -> %s", ev.Event, clean(string(ev.From)), path)
	}
	return fmt.Sprintf("%-10s  %s", ev.Event, path)
}
