// Command reach measures how fast hosts are reached, fleet beside ssh, in turn
// on the same lab hosts: a command over a connection that is there, near and
// with a round trip of 100 ms, many commands on many accounts, a cold connection
// through two jump hosts, copies, watches, and sessions: their start, keystrokes
// and output. It takes the directory of the programs, with artifacts/ in it, and
// the name of one part if only that is wanted, and prints medians in milliseconds.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

func main() {
	if len(os.Args) != 2 && len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: reach BIN [PART]")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], strings.Join(os.Args[2:], "")); err != nil {
		fmt.Fprintln(os.Stderr, "reach:", err)
		os.Exit(1)
	}
}

type quiet struct{}

func (quiet) Logf(string, ...any) {}

func run(ctx context.Context, bin, part string) error {
	if err := lab.Available(); err != nil {
		return fmt.Errorf("no lab here: %w", err)
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		do   func(context.Context, *bench) error
	}{{"warm", warm}, {"jumps", jumps}, {"copies", copies}, {"watches", watches}, {"sessions", sessions}} {
		if part != "" && part != p.name {
			continue
		}
		if err := with(ctx, bin, p.do); err != nil {
			return err
		}
	}
	return nil
}

// with does a part in a lab and a directory of its own.
func with(ctx context.Context, bin string, part func(context.Context, *bench) error) (err error) {
	l, err := lab.New(ctx, quiet{}, lab.Options{Label: "reach"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	dir, err := os.MkdirTemp("/tmp", "frb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{lab: l, dir: dir, bin: bin}
	defer b.stop()
	return part(ctx, b)
}

// line is something that takes time.
type line struct {
	name string
	do   func() error
}

// turns does each line in turn, round by round, and prints the medians.
func turns(rounds int, lines ...line) error {
	return turnsApart(rounds, func() error { return nil }, lines...)
}

// turnsApart is turns, with something before each that takes no part in the time.
func turnsApart(rounds int, before func() error, lines ...line) error {
	times := make([][]time.Duration, len(lines))
	for range rounds {
		for i, l := range lines {
			if err := before(); err != nil {
				return err
			}
			begin := time.Now()
			if err := l.do(); err != nil {
				return err
			}
			times[i] = append(times[i], time.Since(begin))
		}
	}
	for i, l := range lines {
		slices.Sort(times[i])
		fmt.Printf("%-66s %8.1f ms (from %.1f)\n", l.name+":", ms(times[i][rounds/2]), ms(times[i][0]))
	}
	return nil
}

// spread prints the median of many, the least, and what all but one in a hundred
// stay within.
func spread(name string, took []time.Duration) {
	slices.Sort(took)
	n := len(took)
	fmt.Printf("%-66s %8.2f ms (from %.2f, 99 of 100 within %.2f)\n", name+":", ms(took[n/2]), ms(took[0]), ms(took[n*99/100]))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// bench is the operator's side.
type bench struct {
	lab      *lab.Lab
	dir, bin string
	planed   *exec.Cmd
}

func (b *bench) line(name, program string, args ...string) line {
	return line{name, func() error { return b.do(program, args...) }}
}

// config writes a client configuration and what it knows of host keys.
func (b *bench) config(hosts, known string) (file string, err error) {
	hosts += fmt.Sprintf("Host *\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s/known\n  BatchMode yes\n", b.lab.KeyPath(), b.dir)
	file = filepath.Join(b.dir, "config")
	if err := os.WriteFile(filepath.Join(b.dir, "known"), []byte(known), 0o600); err != nil {
		return "", err
	}
	return file, os.WriteFile(file, []byte(hosts), 0o600)
}

func (b *bench) cmd(name string, args ...string) *exec.Cmd {
	if !slices.Contains([]string{"ssh", "scp", "sh", "xargs"}, name) {
		name = filepath.Join(b.bin, name)
	}
	c := exec.Command(name, args...)
	c.Env = []string{"HOME=" + b.dir + "/home", "PATH=" + b.bin + ":/usr/bin:/bin:/usr/sbin:/sbin", "FLEET_NO_INPUT=1", "LANG=C.UTF-8"}
	return c
}

func (b *bench) do(name string, args ...string) error {
	if out, err := b.cmd(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// plane starts one, and logs in.
func (b *bench) plane(ctx context.Context) error {
	l := b.lab
	if err := os.Mkdir(b.dir+"/home", 0o700); err != nil {
		return err
	}
	url := "https://" + l.PlaneAddr() + ":8443"
	out, err := b.cmd("planed", "init", "--data", b.dir+"/plane", "--url", url, "--owner", "dana", "--json").Output()
	if err != nil {
		return fmt.Errorf("planed init: %w", err)
	}
	var made wire.Plane
	if err := json.Unmarshal(out, &made); err != nil {
		return err
	}
	b.planed = b.cmd("planed", "serve", "--data", b.dir+"/plane", "--listen", l.PlaneAddr()+":8443", "--test-floor", "500ms", "--check-interval", "2s")
	if err := b.planed.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return lab.Poll(ctx, func() error {
		return b.do("fleet", "login", url, "--ca-pin", made.CAPin, "--invite-file", made.InviteFile, "--key", l.KeyPath())
	})
}

func (b *bench) stop() {
	if b.planed != nil && b.planed.Process != nil {
		b.planed.Process.Kill()
		b.planed.Wait()
	}
}
