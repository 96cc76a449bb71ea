// Command jumps measures a cold connection through two jump hosts, fleet's
// against ssh's own, in turn on the same lab hosts: medians in milliseconds. It
// takes the directory of the programs, with artifacts/ in it.
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

const rounds = 21

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: jumps BIN")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "jumps:", err)
		os.Exit(1)
	}
}

type quiet struct{}

func (quiet) Logf(string, ...any) {}

func run(ctx context.Context, bin string) (err error) {
	if err := lab.Available(); err != nil {
		return fmt.Errorf("no lab here: %w", err)
	}
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	l, err := lab.New(ctx, quiet{}, lab.Options{Label: "jumps"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	dir, err := os.MkdirTemp("/tmp", "fjb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var config, known strings.Builder
	before := ""
	for _, name := range []string{"first", "second", "box"} {
		spec := lab.HostSpec{Name: name, Accounts: []lab.Account{{Name: "dana"}}}
		fmt.Fprintf(&config, "Host %s\n  User dana\n", name)
		if before != "" {
			spec.Hidden, spec.From = true, []string{before}
			fmt.Fprintf(&config, "  ProxyJump %s\n", before)
		}
		h, err := l.Host(ctx, spec)
		if err != nil {
			return err
		}
		fmt.Fprintf(&config, "  HostName %s\n", h.Addr())
		known.WriteString(h.KnownHosts() + "\n")
		before = name
	}
	fmt.Fprintf(&config, "Host *\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s/known\n  BatchMode yes\n", l.KeyPath(), dir)
	for name, text := range map[string]string{"config": config.String(), "known": known.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	b := bench{dir: dir, bin: bin}
	defer b.stop()
	if err := b.plane(ctx, l); err != nil {
		return err
	}
	file := dir + "/config"
	if err := b.do("fleet", "install", "box", "-F", file, "--name", "box", "--trust", "known_hosts"); err != nil {
		return err
	}
	lines := []struct {
		name string
		argv []string
	}{
		{"ssh true, two jumps", []string{"ssh", "-F", file, "box", "true"}},
		{"fleet trust, two jumps (connects and compares keys)", []string{"fleet", "trust", "box", "-F", file}},
		{"fleet --no-mux exec true, two jumps", []string{"fleet", "--no-mux", "exec", "box", "--", "true"}},
		{"ssh true, direct", []string{"ssh", "-F", file, "first", "true"}},
		{"fleet trust, direct", []string{"fleet", "trust", "first", "-F", file}},
	}
	times := make([][]time.Duration, len(lines))
	for range rounds {
		for i, line := range lines {
			begin := time.Now()
			if err := b.do(line.argv[0], line.argv[1:]...); err != nil {
				return err
			}
			times[i] = append(times[i], time.Since(begin))
		}
	}
	for i, line := range lines {
		slices.Sort(times[i])
		fmt.Printf("%-52s %6.1f ms (from %.1f)\n", line.name+":", ms(times[i][rounds/2]), ms(times[i][0]))
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// bench is the operator's side.
type bench struct {
	dir, bin string
	planed   *exec.Cmd
}

func (b *bench) cmd(name string, args ...string) *exec.Cmd {
	if name != "ssh" {
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
func (b *bench) plane(ctx context.Context, l *lab.Lab) error {
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
