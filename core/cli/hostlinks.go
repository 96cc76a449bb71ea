package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

func hostCommand() *command.Command {
	return &command.Command{Name: "host", Group: groupMachine, Summary: "which SSH destination reaches a machine; kept here, never at the plane",
		Sub: []*command.Command{
			{Name: "ls", Summary: "list the links", Flags: command.JSONFlags(true), Run: hostList},
			{Name: "link", Args: "MACHINE HOST", Summary: "record the destination, once account, host key and row agree", Raw: passOn("host", "link")},
			{Name: "unlink", Args: "MACHINE", Summary: "forget a destination", Min: 1, Max: 1, Run: hostUnlink},
			{Name: "export", Summary: "print all links as one JSON document", Run: hostExport},
			{Name: "import", Args: "[FILE|-]", Summary: "take links from such a document; links that are there are kept", Max: 1,
				Help: "A link names an SSH destination and options of ssh, some of which run programs: take\nlinks only from people that you trust. Host keys are not in it; fleet trust pins them.", Run: hostImport},
		}}
}

// linksDoc is fleet.links/v1.
type linksDoc struct {
	Schema string       `json:"schema"`
	Plane  string       `json:"plane"`
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
	p, all, err := links(c)
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
		return c.Print(linksDoc{wire.SchemaLinks, p.URL(), all})
	}
	if len(all) == 0 {
		c.Notef("no links; fleet install makes one, fleet host link another")
		return nil
	}
	if err := linkGrid(all, time.Now()).write(screenOf(c)); err != nil {
		return err
	}
	for _, l := range all {
		if l.Last == "host_key_changed" {
			args := strings.Join(append([]string{l.Host}, l.SSHArgs...), " ")
			c.Notef("hint: the host key of %s changed: fleet test %s shows it, fleet trust %s --fingerprint SHA256:… pins the new one", clean(l.Name), clean(args), clean(args))
		}
	}
	return nil
}

func linkGrid(all []state.Link, now time.Time) *grid {
	g := &grid{head: []string{"NAME", "HOST", "LAST", "WHEN", "MACHINE"}, flex: []int{0, 1, 4}}
	for _, l := range all {
		when, sh := "-", bad
		if at, err := time.Parse(time.RFC3339Nano, l.At); err == nil {
			when = age(now.Sub(at))
		}
		if l.Last == "ok" || l.Last == "" {
			sh = good
		}
		g.add(cell{text: l.Name}, cell{text: l.Host}, cell{l.Last, sh}, cell{text: when}, cell{text: l.Machine})
	}
	return g
}

func hostUnlink(ctx context.Context, c *command.Call) error {
	if err := fanout.CheckWord(c.Arg(0)); err != nil {
		return err
	}
	p, all, err := links(c)
	if err != nil {
		return err
	}
	l, found, err := state.FindLink(all, c.Arg(0), true)
	if err != nil {
		return err
	}
	if !found {
		return fault.New(fault.NotFound, "no_destination", "no SSH destination is known for %q", c.Arg(0))
	}
	_, err = p.RemoveLink(ctx, l.Machine)
	return err
}

// hostExport leaves out how the last use went: that is this operator's own.
func hostExport(_ context.Context, c *command.Call) error {
	p, all, err := links(c)
	if err != nil {
		return err
	}
	for i := range all {
		all[i].Last, all[i].At = "", ""
	}
	e := json.NewEncoder(c.Stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(linksDoc{wire.SchemaLinks, p.URL(), all})
}

// maxImport bounds an imported document, in bytes.
const maxImport = 64 << 20

func hostImport(ctx context.Context, c *command.Call) error {
	in := c.Stdin
	if name := c.Arg(0); name != "" && name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("cannot read links: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxImport+1))
	if err != nil {
		return fmt.Errorf("cannot read links: %w", err)
	}
	doc, err := parseLinks(b)
	if err != nil {
		return err
	}
	p, all, err := links(c)
	if err != nil {
		return err
	}
	if doc.Plane != p.URL() {
		return fault.Usagef("these links are of the plane %q", clean(doc.Plane)).WithHint("--plane selects a plane")
	}
	have := map[string]bool{}
	for _, l := range all {
		have[l.Machine] = true
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

// parseLinks reads a fleet.links/v1 document. All of it is checked before
// anything is kept.
func parseLinks(b []byte) (doc linksDoc, err error) {
	no := func(format string, args ...any) error {
		return fault.Usagef("this is no %s document: "+format, append([]any{wire.SchemaLinks}, args...)...)
	}
	if len(b) > maxImport {
		return doc, no("it is larger than %d bytes", maxImport)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return doc, no("%s", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return doc, no("something follows it")
	}
	if doc.Schema != wire.SchemaLinks {
		return doc, no("its schema is %q", doc.Schema)
	}
	seen := map[string]bool{}
	for i := range doc.Links {
		l := &doc.Links[i]
		switch {
		case !wire.IsMachineID(l.Machine) || seen[l.Machine]:
			return doc, no("link %d: %q is no machine id, or stands there twice", i+1, l.Machine)
		case l.Name != "" && wire.CheckName(l.Name) != nil:
			return doc, no("link %d: %q: %s", i+1, l.Name, wire.ErrName)
		case l.Host == "" || strings.HasPrefix(l.Host, "-") || clean(l.Host) != l.Host:
			return doc, no("link %d: %q is no SSH destination", i+1, l.Host)
		}
		seen[l.Machine] = true
		l.Last, l.At = "", ""
	}
	return doc, nil
}
