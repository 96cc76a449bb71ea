package install

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/remote"
	"fleet.example/fleet/core/route"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/sdk"
)

// Tryout is a place on a machine where a service-manager plugin may be tried
// out: directories and a unit under a name that nothing else has, and an agent
// without a credential, which talks to nobody. Clean takes all of it away.
type Tryout struct {
	r    *run
	name string // fleet-try-HEX
	spec sdk.Spec

	written []sdk.File
	dirs    []string // that were not there before, deepest first
}

// Tryout connects to a machine and confirms its key as an install does. Nothing
// is made there before Prepare.
func (e *Env) Tryout(ctx context.Context, o Options) (*Tryout, error) {
	var nonce [4]byte
	rand.Read(nonce[:])
	t := &Tryout{name: "fleet-try-" + hex.EncodeToString(nonce[:])}
	t.r = &run{Env: e, o: o, doc: &wire.Install{Steps: []wire.Step{}}}
	for _, s := range []struct {
		name string
		do   func(context.Context) (bool, string, error)
	}{
		{"connect", t.r.connect}, {"host-key", t.r.hostKey}, {"platform", t.platform},
	} {
		if err := t.r.step(ctx, s.name, s.do); err != nil {
			t.r.close()
			return nil, err
		}
	}
	return t, nil
}

// Close ends the connection.
func (t *Tryout) Close() { t.r.close() }

// Host is the machine. Plugins may change it as far as they are asked to.
func (t *Tryout) Host() *remote.Host { return t.r.host }

func (t *Tryout) platform(ctx context.Context) (bool, string, error) {
	r := t.r
	var err error
	if r.facts, err = r.conn.Facts(ctx); err != nil {
		return false, "", err
	}
	if err := r.facts.Supported(); err != nil {
		return false, "", err
	}
	if r.scope = r.o.Scope; r.scope == "" {
		if r.scope = place.User; r.facts.UID == 0 {
			r.scope = place.System
		}
	}
	if err := r.askSudo(ctx); err != nil {
		return false, "", err
	}
	places, err := Places(r.facts)
	if err != nil {
		return false, "", err
	}
	r.host = remote.New(r.conn, r.facts)
	r.host.Phase, r.host.Scope, r.host.DataDir = sdk.PhaseChange, sdk.Scope(r.scope), places[r.scope].Data
	r.host.Notice = func(m string) { r.Notice("%s", m) }
	r.dirs = t.places()
	return false, fmt.Sprintf("%s, %s scope", r.facts, r.scope), nil
}

// places are the directories of a tryout, short enough for sockets.
func (t *Tryout) places() place.Dirs {
	f := t.r.facts
	if t.r.scope == place.System {
		return place.Dirs{Data: "/var/lib/" + t.name, Runtime: "/run/" + t.name}
	}
	d := place.Dirs{Data: path.Join(f.Home, "."+t.name), Runtime: "/tmp/" + t.name}
	if f.RunUser {
		d.Runtime = "/run/user/" + strconv.Itoa(f.UID) + "/" + t.name
	}
	return d
}

// Prepare makes the place and sends the agent. It gives the service to try.
func (t *Tryout) Prepare(ctx context.Context) (sdk.Spec, error) {
	r := t.r
	if err := CheckPlatform(r.facts, r.scope); err != nil {
		return sdk.Spec{}, err
	}
	var err error
	if r.art, err = r.Artifact(r.facts.GOOS, r.facts.GOARCH); err != nil {
		return sdk.Spec{}, err
	}
	if err := r.makeDataDir(ctx); err != nil {
		return sdk.Spec{}, err
	}
	if r.scope == place.User {
		if _, err := r.conn.RunOK(ctx, sshconn.Script{Args: []string{r.dirs.Runtime}, Body: `umask 077; mkdir "$1"`}); err != nil {
			return sdk.Spec{}, err
		}
	}
	err = r.step(ctx, "upload", func(ctx context.Context) (bool, string, error) {
		how, err := r.send(ctx)
		if err != nil {
			return false, "", err
		}
		if err := r.unpack(ctx); err != nil {
			return false, "", err
		}
		return false, how, SetCurrent(ctx, r.host, r.dirs.Data, r.art.ID)
	})
	if err != nil {
		return sdk.Spec{}, err
	}
	t.spec = SpecOf(r.dirs, r.scope, r.facts.User)
	t.spec.Name = t.name
	return t.spec, nil
}

// Write does the host's part with rendered files, and remembers them.
func (t *Tryout) Write(ctx context.Context, files []sdk.File) error {
	for _, f := range files {
		root := f.Owner == "root" && t.r.facts.UID != 0
		b, err := t.r.conn.RunOK(ctx, sshconn.Script{Args: []string{f.Path},
			Body: `d=$(dirname "$1"); until [ -d "$d" ]; do printf '%s\n' "$d"; d=$(dirname "$d"); done`})
		if err != nil {
			return err
		}
		for d := range strings.Lines(string(b)) {
			t.dirs = append(t.dirs, strings.TrimSuffix(d, "\n"))
		}
		t.written = append(t.written, f)
		if _, err := t.r.host.WriteFile(ctx, f.Path, f.Content, f.Mode, root); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes rendered files.
func (t *Tryout) Remove(ctx context.Context, files []sdk.File) error {
	for _, f := range files {
		if err := t.r.host.Remove(ctx, f.Owner == "root" && t.r.facts.UID != 0, f.Path); err != nil {
			return err
		}
	}
	return nil
}

// SetLatch makes or removes the latch.
func (t *Tryout) SetLatch(ctx context.Context, on bool) error {
	body := `rm -f "$1"`
	if on {
		body = `umask 077; : > "$1"`
	}
	_, err := t.r.conn.RunOK(ctx, sshconn.Script{Args: []string{t.spec.Latch}, Body: body})
	return err
}

// Clean takes everything of the tryout away: files, directories, and processes
// that still run from them. Such a process is an error, for whoever should have
// stopped it; it is gone all the same.
func (t *Tryout) Clean(ctx context.Context) error {
	// A service that was stopped may take a moment to be gone.
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	if err := t.Remove(ctx, t.written); err != nil {
		return err
	}
	run := t.r.host.Script
	if t.r.scope == place.System {
		run = t.r.host.RootScript
	}
	// What is searched for comes on standard input: in an argument it would find
	// the search itself.
	res, err := run(ctx, sshconn.Script{
		Args:  append([]string{t.r.dirs.Data, t.r.dirs.Runtime}, t.dirs...),
		Input: []byte(t.name + "\n"),
		Body: `
read -r name
case $1:$2 in /*"$name":/*"$name") ;; *) echo "refusing to remove $1 and $2" >&2; exit 1;; esac
of() { ps -A -o pid= -o args= | while read -r pid args; do case $args in */*"$name"/*) printf '%s %s\n' "$pid" "$args";; esac; done; }
n=0
while left=$(of); [ -n "$left" ] && [ "$n" -lt 5 ]; do n=$((n + 1)); sleep 1; done
if [ -n "$left" ]; then
  printf '%s\n' "$left" | while read -r pid args; do kill -KILL "$pid"; printf '%s\n' "$args"; done
  sleep 1
fi
rm -rf -- "$1" "$2" || exit 1
shift 2
for d; do rmdir -- "$d" 2>/dev/null; done
true`})
	switch {
	case err != nil:
		return err
	case res.Exit != 0:
		return fmt.Errorf("cannot remove %s on the machine: %w", t.r.dirs.Data, res.Err())
	case len(res.Stdout) > 0:
		return fmt.Errorf("these still ran and had to be killed: %s", strings.ReplaceAll(strings.TrimSpace(string(res.Stdout)), "\n", "; "))
	}
	return nil
}

// Reach opens two connections to the machine over streams of another transport
// and uses both.
func (t *Tryout) Reach(ctx context.Context, dial func(ctx context.Context, target sdk.Target) (net.Conn, error)) error {
	over := *t.r.Env
	over.Transport = func(context.Context, string, sdk.TransportHost) (route.Transport, error) { return tried(dial), nil }
	var conns [2]*sshconn.Conn
	for i := range conns {
		c, err := over.Connect(ctx, t.r.o.Host, t.r.o.SSH)
		if err != nil {
			return err
		}
		defer c.Close()
		if !c.Pinned {
			return fault.New(fault.HostKey, "host_key_changed", "the stream leads to a machine with another host key: %s", HostKeyDoc(c).Fingerprint)
		}
		conns[i] = c
	}
	var both errgroup.Group
	for i, c := range conns {
		both.Go(func() error {
			word := fmt.Sprintf("%s-%d", t.name, i)
			b, err := c.RunOK(ctx, sshconn.Script{Input: []byte(word), Body: `cat`})
			if err == nil && string(b) != word {
				err = fmt.Errorf("read %q, sent %q", b, word)
			}
			return err
		})
	}
	return both.Wait()
}

// tried is a transport that somebody else started and ends.
type tried func(ctx context.Context, target sdk.Target) (net.Conn, error)

func (d tried) Dial(ctx context.Context, target sdk.Target) (net.Conn, bool, error) {
	conn, err := d(ctx, target)
	return conn, true, err
}

func (tried) Dir() string  { return "" }
func (tried) Close() error { return nil }
