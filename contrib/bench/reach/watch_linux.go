package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/contrib/lab/wan"
	"fleet.example/fleet/core/wire"
)

const (
	notices     = 201
	burstOf     = 100_000
	watchLimit  = 5 * time.Minute
	noticeEvery = 20 * time.Millisecond // for what a notice brings with it to be over
)

// watches measures how long a change on a host takes to be told of here, beside
// the delay of the link, and what becomes of many at once.
func watches(ctx context.Context, b *bench) (err error) {
	h, err := b.lab.Host(ctx, lab.HostSpec{Name: "box", Accounts: []lab.Account{{Name: "dana"}}})
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
	file, err := b.config(fmt.Sprintf("Host box\n  User dana\n  HostName 127.0.0.1\n  Port %s\n  HostKeyAlias box\n", port), "box "+key+"\n")
	if err != nil {
		return err
	}
	if err := b.plane(ctx); err != nil {
		return err
	}
	if err := b.do("fleet", "install", "box", "-F", file, "--name", "box", "--trust", "known_hosts"); err != nil {
		return err
	}
	for _, rtt := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond} {
		far.SetProfile(wan.Profile{Delay: rtt / 2})
		dir := fmt.Sprintf("watched%d", rtt.Milliseconds())
		if err := b.do("fleet", "exec", "box", "--", "mkdir", "-p", dir+"/a/b/c", dir+"/burst"); err != nil {
			return err
		}
		// The host's files as they are seen from here: one kernel, one clock.
		if err := b.watch(ctx, "box:"+dir, fmt.Sprintf("/proc/%d/root/home/dana/%s", h.PID(), dir), rtt); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) watch(ctx context.Context, what, dir string, rtt time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, watchLimit)
	defer cancel()
	c := b.cmd("fleet", "file", "watch", what, "--json", "--initial")
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.Process.Kill() })
	defer func() {
		stop()
		c.Process.Signal(syscall.SIGINT)
		io.Copy(io.Discard, out)
		c.Wait()
	}()
	events := json.NewDecoder(out)
	next := func() (ev wire.WatchEvent, err error) {
		if err = events.Decode(&ev); err != nil {
			err = fmt.Errorf("fleet file watch: %w", err)
		}
		return ev, err
	}
	for ev := (wire.WatchEvent{}); ev.Event != wire.WatchReady; {
		if ev, err = next(); err != nil {
			return err
		}
	}
	var took []time.Duration
	for i := range notices {
		name := fmt.Sprintf("a/b/c/%d", i)
		began := time.Now()
		if err := os.Mkdir(dir+"/"+name, 0o755); err != nil {
			return err
		}
		for {
			ev, err := next()
			if err != nil {
				return err
			}
			if ev.Event == wire.WatchCreated && string(ev.Path) == name {
				break
			}
		}
		took = append(took, time.Since(began)-rtt/2)
		time.Sleep(noticeEvery)
	}
	spread(fmt.Sprintf("a change is told of, over the link's delay (round trip %v)", rtt), took)

	made := make(chan error, 1)
	began := time.Now()
	go func() {
		for i := range burstOf {
			if err := syscall.Mknod(fmt.Sprintf("%s/burst/%06d", dir, i), syscall.S_IFREG|0o644, 0); err != nil {
				made <- err
				return
			}
		}
		made <- nil
	}()
	known, overflows := map[wire.Bytes]bool{}, 0
	for len(known) < burstOf {
		ev, err := next()
		if err != nil {
			return errors.Join(err, <-made)
		}
		switch ev.Event {
		case wire.WatchOverflow:
			clear(known)
			overflows++
		case wire.WatchCreated, wire.WatchExists:
			if strings.HasPrefix(string(ev.Path), "burst/") {
				known[ev.Path] = true
			}
		}
	}
	fmt.Printf("%-66s %8.1f ms (%d overflows)\n", fmt.Sprintf("%d changes at once are known (round trip %v):", burstOf, rtt), ms(time.Since(began)), overflows)
	return <-made
}
