package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func hostCommand() *command.Command {
	return &command.Command{Name: "host", Group: groupMachine, Summary: "which SSH destination reaches a machine; kept here, never at the plane",
		Sub: []*command.Command{
			{Name: "ls", Summary: "list the links", Flags: command.JSONFlags(true), Run: hostList},
			{Name: "link", Args: "MACHINE HOST", Summary: "record the destination, once account, host key and row agree", Raw: passOn("link")},
			{Name: "unlink", Args: "MACHINE", Summary: "forget a destination", Min: 1, Max: 1, Run: hostUnlink},
			{Name: "export", Summary: "print all links as one JSON document", Run: hostExport},
			{Name: "import", Summary: "read such a document from standard input; links that are there are kept", Run: hostImport},
		}}
}

// linksDoc is fleet.links/v1.
type linksDoc struct {
	Schema string       `json:"schema"`
	Links  []state.Link `json:"links"`
}

func links(c *command.Call) (*state.Plane, []state.Link, error) {
	p, err := operator.Known(c)
	if err != nil {
		return nil, nil, err
	}
	l, err := p.Links()
	return p, l, err
}

func hostList(_ context.Context, c *command.Call) error {
	_, all, err := links(c)
	if err != nil {
		return err
	}
	switch {
	case c.Bool("jsonl"):
		for _, l := range all {
			if err := c.Print(l); err != nil {
				return err
			}
		}
		return nil
	case c.Bool("json"):
		return c.Print(linksDoc{wire.SchemaLinks, all})
	}
	fmt.Fprintf(c.Stdout, "%-20s %-30s %-16s %s\n", "NAME", "HOST", "LAST", "MACHINE")
	for _, l := range all {
		fmt.Fprintf(c.Stdout, "%-20s %-30s %-16s %s\n", fit(l.Name, 20), fit(l.Host, 30), l.Last, fit(l.Machine, 11))
	}
	for _, l := range all {
		if l.Last == "host_key_changed" {
			args := strings.Join(append([]string{l.Host}, l.SSHArgs...), " ")
			c.Notef("hint: the host key of %s changed: fleet test %s shows it, fleet trust %s --fingerprint SHA256:… pins the new one", clean(l.Name), clean(args), clean(args))
		}
	}
	return nil
}

func hostUnlink(ctx context.Context, c *command.Call) error {
	p, all, err := links(c)
	if err != nil {
		return err
	}
	l, found, err := state.FindLink(all, c.Arg(0))
	if err != nil {
		return err
	}
	if !found || l.Machine != c.Arg(0) && l.Name != c.Arg(0) {
		return fault.New(fault.NotFound, "no_destination", "no SSH destination is known for %q", c.Arg(0))
	}
	_, err = p.RemoveLink(ctx, l.Machine)
	return err
}

func hostExport(_ context.Context, c *command.Call) error {
	_, all, err := links(c)
	if err != nil {
		return err
	}
	return c.Print(linksDoc{wire.SchemaLinks, all})
}

// maxImport bounds an imported document, in bytes.
const maxImport = 64 << 20

func hostImport(ctx context.Context, c *command.Call) error {
	p, all, err := links(c)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(io.LimitReader(c.Stdin, maxImport))
	dec.DisallowUnknownFields()
	var doc linksDoc
	if err := dec.Decode(&doc); err != nil || doc.Schema != wire.SchemaLinks {
		return fault.Usagef("standard input holds no %s document", wire.SchemaLinks)
	}
	have := map[string]bool{}
	for _, l := range all {
		have[l.Machine] = true
	}
	for _, l := range doc.Links {
		if !wire.IsMachineID(l.Machine) || l.Host == "" {
			return fault.Usagef("a link in the document names no machine or host")
		}
	}
	n := 0
	for _, l := range doc.Links {
		if have[l.Machine] {
			continue
		}
		if err := p.SaveLink(ctx, l); err != nil {
			return err
		}
		n++
	}
	c.Notef("%d links imported, %d were there", n, len(doc.Links)-n)
	return nil
}
