package hostcli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/muxserver"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/state"
)

func muxCommand(b Build) *command.Command {
	return &command.Command{
		Name: "mux", Hidden: true, Summary: "hold the SSH connections of one command",
		Sub: []*command.Command{{Name: "serve", Summary: "listen on a private socket until standard input ends",
			Run: func(ctx context.Context, c *command.Call) error { return runMux(ctx, b, c) }}},
	}
}

func runMux(ctx context.Context, b Build, c *command.Call) error {
	e, err := newEnv(b, c)
	if err != nil {
		return err
	}
	in, err := e.installer(nil, nil)
	if err != nil {
		return err
	}
	dir, err := e.dirs.Runtime()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "mux-"+rand.Text()[:12])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("cannot listen for fleet: %w", err)
	}
	defer l.Close()
	// The directory is 0700 and the person's, so the mode is a second lock.
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	// Whoever started this process holds the other end of its standard input;
	// when it ends, for whatever reason, this ends.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with standard input, or with the process
		io.Copy(io.Discard, c.Stdin)
		cancel()
	}()
	s := muxserver.New(func(ctx context.Context, host string, f sshconfig.Flags) (*sshconn.Conn, error) {
		return e.connect(ctx, in, host, f)
	}, e.notef, e.recordOutcome)
	if err := json.NewEncoder(c.Stdout).Encode(mux.Ready{Socket: path}); err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

// recordOutcome keeps with the link how the last dial ended, when that changed.
func (e *env) recordOutcome(h mux.Hello, err error) {
	p, perr := e.dirs.OpenPlane(h.Plane)
	if perr != nil {
		return
	}
	last := "ok"
	if f := fault.Of(err); f != nil {
		switch {
		case errors.Is(err, context.Canceled):
			return
		case f.Exit == fault.HostKey:
			last = "host_key_changed"
		default:
			last = "unreachable"
		}
	}
	links, lerr := p.Links()
	if lerr != nil {
		return
	}
	for _, l := range links {
		if l.Machine != h.Machine || l.Last == last && last == "ok" {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := p.UpdateLink(ctx, l.Machine, func(l *state.Link) {
			l.Last, l.At = last, time.Now().UTC().Format(time.RFC3339)
		}); err != nil {
			e.notef("%v", err)
		}
	}
}
