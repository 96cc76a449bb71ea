package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/contrib/lab/wan"
)

const (
	accounts = 20
	commands = 200 // over all accounts
	atOnce   = 16
)

// warm measures commands over connections that are there: fleet's shared ones
// against ssh's masters.
func warm(ctx context.Context, b *bench) (err error) {
	spec := lab.HostSpec{Name: "box", SSHDConfig: "MaxStartups 100\n"}
	for i := range accounts {
		spec.Accounts = append(spec.Accounts, lab.Account{Name: fmt.Sprintf("u%02d", i+1)})
	}
	h, err := b.lab.Host(ctx, spec)
	if err != nil {
		return err
	}
	far, err := wan.Listen(ctx, "127.0.0.1:0", net.JoinHostPort(h.Addr(), "22"), wan.Profile{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, far.Close()) }()
	_, port, err := net.SplitHostPort(far.Addr())
	if err != nil {
		return err
	}
	var config, hosts strings.Builder
	for _, a := range spec.Accounts {
		fmt.Fprintf(&config, "Host %s\n  User %s\n  HostName %s\n", a.Name, a.Name, h.Addr())
		fmt.Fprintf(&hosts, "%s name=%s label.env=lab\n", a.Name, a.Name)
	}
	fmt.Fprintf(&config, "Host far\n  User u01\n  HostName 127.0.0.1\n  Port %s\n  HostKeyAlias box\n", port)
	config.WriteString("Host *\n  ControlPath " + b.dir + "/cm-%n\n")
	_, key, _ := strings.Cut(strings.TrimSpace(strings.Split(h.KnownHosts(), "\n")[0]), " ")
	file, err := b.config(config.String(), h.KnownHosts()+"\nbox "+key+"\n")
	if err != nil {
		return err
	}
	if err := b.plane(ctx); err != nil {
		return err
	}
	for _, a := range spec.Accounts {
		if err := b.do("fleet", "install", a.Name, "-F", file, "--name", a.Name, "--label", "env=lab", "--trust", "known_hosts"); err != nil {
			return err
		}
	}
	if err := b.do("fleet", "mux", "start"); err != nil {
		return err
	}
	defer b.do("fleet", "mux", "stop")
	masters := append([]string{"far"}, names(spec.Accounts)...)
	for _, name := range masters {
		// Its output would hold the pipes for as long as it lives.
		c := b.cmd("ssh", "-F", file, "-fNM", name)
		if err := c.Run(); err != nil {
			return fmt.Errorf("ssh -M %s: %w", name, err)
		}
		defer b.cmd("ssh", "-F", file, "-O", "exit", name).Run()
	}
	if err := turns(41,
		b.line("ssh true over a master", "ssh", "-F", file, "u01", "true"),
		b.line("fleet exec true over a shared connection", "fleet", "exec", "u01", "--", "true"),
		b.line("fleet version", "fleet", "version"),
		b.line("ssh -V", "ssh", "-V")); err != nil {
		return err
	}
	var all strings.Builder
	for range commands / accounts {
		all.WriteString(strings.Join(names(spec.Accounts), "\n") + "\n")
	}
	if err := turns(3,
		line{fmt.Sprintf("%d ssh true over %d masters, %d at once", commands, accounts, atOnce), func() error {
			c := b.cmd("xargs", "-P", fmt.Sprint(atOnce), "-I{}", "ssh", "-F", file, "{}", "true")
			c.Stdin = strings.NewReader(all.String())
			return failed(c)
		}},
		line{fmt.Sprintf("%d times fleet exec -l over %d accounts, %d at once", commands/accounts, accounts, atOnce), func() error {
			for range commands / accounts {
				if err := b.do("fleet", "exec", "-l", "env=lab", "--parallel", fmt.Sprint(atOnce), "--", "true"); err != nil {
					return err
				}
			}
			return nil
		}}); err != nil {
		return err
	}
	if err := b.do("fleet", "trust", "far", "-F", file, "--trust", "known_hosts"); err != nil {
		return err
	}
	if err := b.do("fleet", "host", "link", "u01", "far", "-F", file); err != nil {
		return err
	}
	if err := b.do("fleet", "exec", "u01", "--", "true"); err != nil {
		return err
	}
	far.SetProfile(wan.Profile{Delay: 50 * time.Millisecond})
	return turns(15,
		b.line("ssh true over a master, round trip of 100 ms", "ssh", "-F", file, "far", "true"),
		b.line("fleet exec true, round trip of 100 ms", "fleet", "exec", "u01", "--", "true"))
}

func names(accounts []lab.Account) (out []string) {
	for _, a := range accounts {
		out = append(out, a.Name)
	}
	return out
}

func failed(c *exec.Cmd) error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", c.Args[0], err, out)
	}
	return nil
}
