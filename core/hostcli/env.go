package hostcli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/reach"
	"fleet.example/fleet/core/route"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/settings"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/sdk"
)

// env is what a command of fleet-host works with.
type env struct {
	build    Build
	call     *command.Call
	dirs     state.Dirs
	stateDir string
	catalog  *catalog.Catalog
	resolver sshconfig.Resolver
	pins     *hostkey.Store
}

func newEnv(b Build, c *command.Call) (*env, error) {
	e := &env{build: b, call: c, dirs: state.DirsOf(c.Getenv), resolver: settings.Resolver(c.Getenv)}
	var err error
	if e.stateDir, err = e.dirs.State(); err != nil {
		return nil, err
	}
	if e.pins, err = hostkey.OpenStore(e.dirs); err != nil {
		return nil, err
	}
	run, err := e.dirs.Runtime()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find fleet's own directory: %w", err)
	}
	log := hclog.NewNullLogger()
	if c.Bool("verbose") {
		log = hclog.New(&hclog.LoggerOptions{Name: "plugin", Output: c.Stderr, Level: hclog.Info, DisableTime: true})
	}
	e.catalog = catalog.ForPerson(catalog.Environment{Getenv: c.Getenv, Executable: self, StateDir: e.stateDir, RunBase: run})
	e.catalog.Version, e.catalog.Log = b.Version, log
	return e, nil
}

// notef says something under -v.
func (e *env) notef(format string, args ...any) {
	if e.call.Bool("verbose") {
		e.call.Notef(format, args...)
	}
}

// transport starts a transport plugin.
func (e *env) transport(ctx context.Context, name string, th sdk.TransportHost) (route.Transport, error) {
	t, err := e.catalog.LaunchTransport(ctx, name, th)
	if err != nil {
		return nil, err // not t, which is a nil of its own type
	}
	return t, nil
}

// signers are the keys whose artifacts are trusted: the one linked in, and
// those that the person added.
func (e *env) signers() (artifact.Signers, error) {
	s, err := artifact.LoadSigners(e.signersFile())
	if err != nil {
		return nil, err
	}
	if e.build.ArtifactSigner != "" {
		own, err := artifact.ParseSigners([]byte(e.build.ArtifactSigner))
		if err != nil {
			return nil, fmt.Errorf("cannot read the signer that was linked in: %w", err)
		}
		for _, k := range own {
			s = s.Add(k)
		}
	}
	return s, nil
}

func (e *env) signersFile() string { return filepath.Join(e.stateDir, "artifact-signers") }

// artifactDirs are where artifacts are looked for, in order.
func (e *env) artifactDirs() []string {
	var dirs []string
	if d := e.call.Getenv("FLEET_ARTIFACT_DIR"); d != "" {
		dirs = append(dirs, d)
	}
	if d, err := e.dirs.Data(); err == nil {
		dirs = append(dirs, filepath.Join(d, "artifacts"))
	}
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		dirs = append(dirs, filepath.Join(filepath.Dir(self), "artifacts"))
	}
	return append(dirs, "/usr/lib/fleet/artifacts")
}

// installer puts together what an install works with. Without a plane it
// serves the commands that only look.
func (e *env) installer(p *state.Plane, client *planeclient.Client) (*install.Env, error) {
	signers, err := e.signers()
	if err != nil {
		return nil, err
	}
	plugins, _, err := e.catalog.Discover()
	if err != nil {
		return nil, err
	}
	in := &install.Env{Resolver: e.resolver, Pins: e.pins, Transport: e.transport, Output: e.call.Stderr,
		Managers: func(goos, goarch string) []string {
			var names []string
			for _, f := range plugins {
				if f.Kind == sdk.KindService && f.State == catalog.StateTaken && f.Entry.Description.ActsOn(goos, goarch) {
					names = append(names, f.Name)
				}
			}
			return names
		},
		Launch: func(ctx context.Context, name string) (install.Manager, error) {
			s, err := e.catalog.LaunchService(ctx, name)
			if err != nil {
				return nil, err // not s, which is a nil of its own type
			}
			return s, nil
		},
		Artifact: func(goos, goarch string) (*artifact.Artifact, error) {
			return artifact.Find(e.artifactDirs(), goos, goarch, signers)
		},
		Signers: signers, Open: e.openAgent,
		Report: func(wire.Step) {}, Notice: func(string, ...any) {}, Sent: func(int64, int64) {}, Notef: e.notef}
	if p != nil {
		in.Links, in.PlaneURL, in.RootsPEM = p, p.URL(), p.RootsPEM()
		if client != nil {
			in.Plane = touching{client, e, p}
		}
		in.PersonKey = p.PublicKey()
	}
	return in, nil
}

// openAgent reaches the agent behind a connection for the installer.
func (e *env) openAgent(ctx context.Context, c *sshconn.Conn, d place.Dirs) (install.Agent, error) {
	a := reach.New(c, d, e.notef)
	t, err := a.Mint(ctx, "")
	if err != nil {
		return nil, err
	}
	return agentOf{agentclient.New(dialerOf{a, t})}, nil
}

// dialerOf reaches an agent, minting again when a token is no longer good.
type dialerOf struct {
	*reach.Agent
	token secret.Text
}

func (d dialerOf) Token(ctx context.Context, renew bool) (secret.Text, error) {
	if renew {
		return d.Mint(ctx, "")
	}
	return d.token, nil
}

// agentOf is an agent as the installer sees it.
type agentOf struct{ c *agentclient.Client }

func (a agentOf) Identity(ctx context.Context) (wire.Identity, error) {
	id, err := a.c.Identity(ctx)
	if err != nil {
		return wire.Identity{}, err
	}
	return *id, nil
}

func (a agentOf) Status(ctx context.Context) (wire.AgentStatus, error) {
	st, err := a.c.Status(ctx)
	if err != nil {
		return wire.AgentStatus{}, err
	}
	return *st, nil
}

func (a agentOf) Restart(ctx context.Context, reason string) error {
	if _, err := a.c.Stop(ctx, reason); err != nil {
		return err
	}
	_, err := a.c.Restart(ctx)
	return err
}

func (a agentOf) Close() error {
	a.c.Close()
	return nil
}

// plane opens the plane of a person who is logged in.
func (e *env) plane() (*state.Plane, *planeclient.Client, error) { return operator.Plane(e.call) }

func (e *env) sshFlags() sshconfig.Flags { return settings.SSH(e.call) }
