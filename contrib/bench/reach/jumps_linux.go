package main

import (
	"context"
	"fmt"
	"strings"

	"fleet.example/fleet/contrib/lab"
)

// jumps measures a cold connection through two jump hosts.
func jumps(ctx context.Context, b *bench) error {
	var config, known strings.Builder
	before := ""
	for _, name := range []string{"first", "second", "box"} {
		spec := lab.HostSpec{Name: name, Accounts: []lab.Account{{Name: "dana"}}}
		fmt.Fprintf(&config, "Host %s\n  User dana\n", name)
		if before != "" {
			spec.Hidden, spec.From = true, []string{before}
			fmt.Fprintf(&config, "  ProxyJump %s\n", before)
		}
		h, err := b.lab.Host(ctx, spec)
		if err != nil {
			return err
		}
		fmt.Fprintf(&config, "  HostName %s\n", h.Addr())
		known.WriteString(h.KnownHosts() + "\n")
		before = name
	}
	file, err := b.config(config.String(), known.String())
	if err != nil {
		return err
	}
	if err := b.plane(ctx); err != nil {
		return err
	}
	if err := b.do("fleet", "install", "box", "-F", file, "--name", "box", "--trust", "known_hosts"); err != nil {
		return err
	}
	return turns(21,
		b.line("ssh true, two jumps", "ssh", "-F", file, "box", "true"),
		b.line("fleet trust, two jumps (connects and compares keys)", "fleet", "trust", "box", "-F", file),
		b.line("fleet --no-mux exec true, two jumps", "fleet", "--no-mux", "exec", "box", "--", "true"),
		b.line("ssh true, direct", "ssh", "-F", file, "first", "true"),
		b.line("fleet trust, direct", "fleet", "trust", "first", "-F", file))
}
