package planed

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/api"
	"fleet.example/fleet/planed/gate"
	"fleet.example/fleet/planed/rotation"
)

func gateCommand() *command.Command {
	return &command.Command{
		Name: "gate", Summary: "make gate tokens",
		Sub: []*command.Command{{
			Name: "new", Args: "FILE", Summary: "write a fresh gate token to a private file", Min: 1, Max: 1,
			Help: "The file holds one line, a version and a random value, for planed serve --gate-token-file\n" +
				"and agentd enroll --gate-token-file. It never replaces a file.",
			Flags: append(command.JSONFlags(false), &cli.Int64Flag{Name: "version", Value: 1, Usage: "make version `N`: higher than all that were"}),
			Run: func(_ context.Context, c *command.Call) error {
				version := c.Int64("version")
				if version < 1 {
					return fault.Usagef("--version is a positive number")
				}
				path, err := filepath.Abs(c.Args[0])
				if err != nil {
					return err
				}
				if err := gate.Make(path, version); err != nil {
					return fmt.Errorf("cannot make a gate token: %w", err)
				}
				if c.WantsJSON() {
					return c.Print(gate.File{Schema: gate.SchemaFile, File: path, Version: version})
				}
				_, err = fmt.Fprintf(c.Stdout, "version %d of the gate token is in %s\n", version, path)
				return err
			},
		}},
	}
}

// openGate reads the gate's files and makes the engine that rotates it. A plane
// that cannot read them does not start.
func (s *server) openGate() error {
	o := s.opts
	if o.GateFile == "" {
		return nil
	}
	s.gate = gate.New(o.GateFile, o.GateSecondary)
	s.engine = &rotation.Engine{
		Kind: wire.MaterialGate, Store: s.store, Replica: "planed", Log: o.Log, Now: time.Now,
		Flat: o.Policy.Flat(), Pause: min(time.Second, o.Policy.MinGap()/4),
		Material: gate.Material{Gate: s.gate, Present: func(ctx context.Context, value string) (bool, error) {
			return api.Present(ctx, s.public.Handler, value)
		}},
	}
	s.engine.Init()
	return s.engine.Reload(context.Background())
}
