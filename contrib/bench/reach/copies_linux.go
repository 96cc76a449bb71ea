package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/contrib/lab/wan"
)

const (
	copied     = 1 << 30 // bytes of the large file
	smallFiles = 10_000
	smallAway  = 1_000 // as many at a distance, where scp takes a round trip or more for each
	smallSize  = 2 << 10
)

// copies measures fleet cp beside scp and tar, near and at a distance. scp and
// ssh go over a master that is there, as fleet does.
func copies(ctx context.Context, b *bench) (err error) {
	h, err := b.lab.Host(ctx, lab.HostSpec{Name: "box", Accounts: []lab.Account{{Name: "dana", HomeBytes: 4 << 30}}})
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
	_, key, _ := strings.Cut(strings.TrimSpace(strings.Split(h.KnownHosts(), "\n")[0]), " ")
	file, err := b.config(fmt.Sprintf("Host box\n  User dana\n  HostName 127.0.0.1\n  Port %s\n  HostKeyAlias box\n  ControlPath %s/cm-%%n\n", port, b.dir), "box "+key+"\n")
	if err != nil {
		return err
	}
	if err := b.plane(ctx); err != nil {
		return err
	}
	if err := b.do("fleet", "install", "box", "-F", file, "--name", "box", "--trust", "known_hosts"); err != nil {
		return err
	}
	if err := b.do("fleet", "mux", "start"); err != nil {
		return err
	}
	defer b.do("fleet", "mux", "stop")
	if err := b.cmd("ssh", "-F", file, "-fNM", "box").Run(); err != nil {
		return fmt.Errorf("ssh -M: %w", err)
	}
	defer b.cmd("ssh", "-F", file, "-O", "exit", "box").Run()

	if err := b.make(); err != nil {
		return err
	}
	c := copier{b, file}
	for _, d := range []struct {
		rtt time.Duration
		do  []func(rtt time.Duration) error
	}{
		{0, []func(time.Duration) error{c.large, func(rtt time.Duration) error { return c.small("many", smallFiles, rtt) }}},
		{20 * time.Millisecond, []func(time.Duration) error{func(rtt time.Duration) error { return c.small("few", smallAway, rtt) }}},
		{100 * time.Millisecond, []func(time.Duration) error{c.large}},
	} {
		far.SetProfile(wan.Profile{Delay: d.rtt / 2})
		for _, do := range d.do {
			if err := do(d.rtt); err != nil {
				return err
			}
		}
	}
	return nil
}

// copier measures with an ssh configuration.
type copier struct {
	*bench
	file string
}

// clean removes what the copy before made, on both sides.
func (c copier) clean() error {
	return c.do("sh", "-c", fmt.Sprintf("rm -rf %s/back* && ssh -F %s box 'rm -rf new*; sync'", c.dir, c.file))
}

func (c copier) large(rtt time.Duration) error {
	at, back, file := fmt.Sprintf(" (round trip %v)", rtt), c.dir+"/back", c.dir+"/large"
	rounds := 3
	if rtt > 0 {
		rounds = 1 // each takes minutes, and what the link's delay does to it is no luck
	}
	return turnsApart(rounds, c.clean,
		c.line("scp of 1 GiB to the host"+at, "scp", "-qF", c.file, file, "box:new"),
		c.line("fleet cp of 1 GiB to the host"+at, "fleet", "cp", file, "box:new"),
		c.line("scp of 1 GiB from the host"+at, "scp", "-qF", c.file, "box:large", back),
		c.line("fleet cp of 1 GiB from the host"+at, "fleet", "cp", "box:large", back))
}

func (c copier) small(name string, n int, rtt time.Duration) error {
	at, back, dir := fmt.Sprintf(" (round trip %v)", rtt), c.dir+"/back", c.dir+"/"+name
	// Each copy is a new one beside those before. ext4 shuns for 5 s what a removed
	// file had, and to search for something else takes longer than the files.
	copies := 0
	next := func() error {
		copies++
		return c.do("ssh", "-F", c.file, "box", "sync")
	}
	shell := func(name, script string) line {
		return line{name, func() error { return c.do("sh", "-c", fmt.Sprintf("N=%d; %s", copies, script)) }}
	}
	if err := c.clean(); err != nil {
		return err
	}
	time.Sleep(10 * time.Second)
	err := turnsApart(3, next,
		shell(fmt.Sprintf("scp -r of %d files to the host%s", n, at), fmt.Sprintf("scp -rqF %s %s box:new$N", c.file, dir)),
		shell(fmt.Sprintf("tar | ssh tar of %d files to the host%s", n, at),
			fmt.Sprintf(`tar -C %s -cf - . | ssh -F %s box "mkdir new$N && tar -C new$N -xf -"`, dir, c.file)),
		shell(fmt.Sprintf("fleet cp -r of %d files to the host%s", n, at), fmt.Sprintf("fleet cp -r %s box:new$N", dir)),
		shell(fmt.Sprintf("scp -r of %d files from the host%s", n, at), fmt.Sprintf("scp -rqF %s box:%s %s$N", c.file, name, back)),
		shell(fmt.Sprintf("ssh tar | tar of %d files from the host%s", n, at),
			fmt.Sprintf("mkdir %s$N && ssh -F %s box 'tar -C %s -cf - .' | tar -C %s$N -xf -", back, c.file, name, back)),
		shell(fmt.Sprintf("fleet cp -r of %d files from the host%s", n, at), fmt.Sprintf("fleet cp -r box:%s %s$N", name, back)))
	return errors.Join(err, c.clean())
}

// make makes what is copied, and has it on the host, too.
func (b *bench) make() error {
	if err := b.do("sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > %s/large", copied, b.dir)); err != nil {
		return err
	}
	content := make([]byte, smallSize)
	for name, n := range map[string]int{"many": smallFiles, "few": smallAway} {
		for i := range n {
			dir := filepath.Join(b.dir, name, fmt.Sprintf("d%02d", i%100))
			if i < 100 {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
			}
			copy(content, fmt.Sprint(i))
			if err := os.WriteFile(fmt.Sprintf("%s/f%05d", dir, i), content, 0o644); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"large", "many", "few"} {
		if err := b.do("fleet", "cp", "-r", b.dir+"/"+name, "box:"); err != nil {
			return err
		}
	}
	return nil
}
