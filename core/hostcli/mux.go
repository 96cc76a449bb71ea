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
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/muxserver"
	"fleet.example/fleet/core/quickserver"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// muxIdle is how long a shared connection that nobody uses is kept, and then
// the process that keeps it.
const muxIdle = 10 * time.Minute

func muxCommand(b Build) *command.Command {
	return &command.Command{
		Name: "mux", Hidden: true, Summary: "hold SSH connections",
		Sub: []*command.Command{{Name: "serve", Summary: "listen until standard input ends, or, shared, until nobody needs it",
			Flags: []ufcli.Flag{&ufcli.StringFlag{Name: "shared", Usage: "listen at `SOCKET` for all of the person's commands"}},
			Run: func(ctx context.Context, c *command.Call) error {
				err := runMux(ctx, b, c)
				if err != nil {
					json.NewEncoder(c.Stdout).Encode(mux.Ready{Error: fault.Of(err).Msg})
				}
				return err
			}}},
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
	shared := c.String("shared")
	path := shared
	if path == "" {
		dir, err := e.dirs.Runtime()
		if err != nil {
			return err
		}
		path = filepath.Join(dir, "mux-"+rand.Text()[:12])
	}
	// Whoever starts a shared server holds its lock, so that what stands at the
	// path is left over.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot listen for fleet: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("cannot listen for fleet: %w", err)
	}
	defer l.Close()
	// The directory is 0700 and the person's, so the mode is a second lock.
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conf := muxserver.Config{
		Dial: func(ctx context.Context, route *sshconfig.Chain, note func(string, ...any), output io.Writer) (*sshconn.Conn, error) {
			if shared == "" {
				output = c.Stderr // it is the client's own, and is heard after the dial too
			}
			return e.connectRoute(ctx, in, route, note, output)
		},
		Trusted: e.stillTrusted, Outcome: e.recordOutcome, Build: programBuild(b),
		Status: wire.Mux{PID: os.Getpid(), Version: b.Version, Socket: path, Since: wire.TimeOf(time.Now().UTC())},
	}
	var fronts *net.UnixListener
	if shared == "" {
		// Whoever started this process holds the other end of its standard input;
		// when it ends, for whatever reason, this ends.
		go func() { // ends with standard input, or with the process
			io.Copy(io.Discard, c.Stdin)
			cancel()
		}()
	} else {
		l.SetUnlinkOnClose(false) // by then it may be another's
		paths := []string{path}
		if fronts, err = listenQuick(path, c.Getenv); err == nil {
			defer fronts.Close()
			paths = append(paths, fronts.Addr().String())
		} // else, as where its longer name does not fit, every front does its own commands
		own, err := socketsOf(paths...)
		if err != nil {
			return err
		}
		conf.Upkeep = newUpkeep(e).attend
		conf.Idle, conf.Retire = muxIdle, func() bool {
			if !own.remove(path) {
				return false
			}
			if fronts != nil {
				fronts.Close()
			}
			return true
		}
		conf.Reachable = func() bool {
			st, err := os.Lstat(path)
			return err == nil && os.SameFile(st, own[path])
		}
		defer own.remove(path)
	}
	// x/crypto/ssh takes new memory for each packet. With room that is never
	// touched the collector runs once in about 16 MiB of them, not in 4.
	slack := make([]byte, 16<<20)
	defer runtime.KeepAlive(slack)
	s := muxserver.New(conf)
	if err := json.NewEncoder(c.Stdout).Encode(mux.Ready{Socket: path}); err != nil {
		return err
	}
	if shared == "" {
		return s.Serve(ctx, l)
	}
	if err := letGo(c.Stdout); err != nil {
		return err
	}
	var served sync.WaitGroup
	if fronts != nil {
		q := &quickCalls{server: s, build: conf.Build, socket: path, own: ours(os.Environ())}
		served.Go(func() { quickserver.Serve(ctx, fronts, q.run) }) // ends with the context or the listener
	}
	err = s.Serve(ctx, l)
	cancel()
	served.Wait()
	return err
}

// letGo lets go of whoever waited for this process to listen. Its standard
// output then leads nowhere: a closed one would be the next connection's.
func letGo(w io.Writer) error {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	return unix.Dup2(int(null.Fd()), int(f.Fd()))
}

// sockets are the files of a shared server's sockets.
type sockets map[string]os.FileInfo

func socketsOf(paths ...string) (sockets, error) {
	s := sockets{}
	for _, p := range paths {
		st, err := os.Lstat(p)
		if err != nil {
			return nil, err
		}
		s[p] = st
	}
	return s, nil
}

// remove takes the sockets away that are still the server's own. It is false if
// another command is about to start a server at the path.
func (s sockets) remove(path string) bool {
	f, err := os.OpenFile(mux.LockOf(path), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return errors.Is(err, os.ErrNotExist) // with the directory, all that could be found there is gone
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false
	}
	gone := true
	for p, own := range s {
		if st, err := os.Lstat(p); err == nil && os.SameFile(st, own) && os.Remove(p) != nil {
			gone = false
		}
	}
	return gone
}

// programBuild is this program as its clients see it.
func programBuild(b Build) mux.Build {
	var m mux.Build
	if self, err := os.Executable(); err == nil {
		m = mux.BuildOf(self)
	}
	m.Version = b.Version
	return m
}

// connectRoute dials a resolved destination whose host keys are pinned.
func (e *env) connectRoute(ctx context.Context, in *install.Env, route *sshconfig.Chain, note func(string, ...any), output io.Writer) (*sshconn.Conn, error) {
	own := *in
	own.Notef, own.Output = note, output
	c, err := own.ConnectChain(ctx, route, false)
	if err != nil {
		return nil, err
	}
	if !c.Pinned {
		err := sshconn.Unconfirmed(c)
		c.Close()
		return nil, err
	}
	return c, nil
}

// stillTrusted reports whether the pins still say of every hop what they said
// when the connection was dialled. The mark is the stamp of the pins as they
// were last looked at, and what they say of the jump hosts, whose keys only the
// transport has seen.
func (e *env) stillTrusted(conn *sshconn.Conn, route *sshconfig.Chain, seen string) (string, bool) {
	stamp := e.pins.Stamp()
	before, jumps, _ := strings.Cut(seen, "\n")
	if stamp == before {
		return seen, true
	}
	var said strings.Builder
	places := sshconn.PlacesOf(route)
	for _, place := range places[:len(places)-1] {
		pins, err := e.pins.Pins(place)
		if err != nil {
			return seen, false
		}
		for _, p := range pins {
			fmt.Fprintf(&said, "%s %s %s\n", place, p.Type, p.Key)
		}
	}
	return stamp + "\n" + said.String(), conn.StillPinned() && (seen == "" || said.String() == jumps)
}

// recordOutcome keeps with the link how the last dial ended, and when, but for
// one that ended well again.
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
		err := p.UpdateLink(ctx, l.Machine, func(l *state.Link) {
			l.Last, l.At = last, time.Now().UTC().Format(time.RFC3339)
		})
		cancel()
		if err != nil {
			e.notef("%v", err)
		}
	}
}
