package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

const (
	groupSession = "Session"
	groupMachine = "Machines"
	groupAdmin   = "Administration"
	groupTools   = "Tools"
)

// onPlane opens the plane and runs f with its client.
func onPlane(c *command.Call, f func(*planeclient.Client) error) error {
	_, client, err := operator.Plane(c)
	if err != nil {
		return err
	}
	defer client.Close()
	return f(client)
}

// versionDoc is fleet.version/v1.
type versionDoc struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func versionCommand(version string) *command.Command {
	return &command.Command{Name: "version", Group: groupTools, Summary: "show which fleet this is", Flags: command.JSONFlags(false), NoConfig: true,
		Run: func(_ context.Context, c *command.Call) error {
			if c.WantsJSON() {
				return c.Print(versionDoc{wire.SchemaVersion, version, runtime.Version(), runtime.GOOS, runtime.GOARCH})
			}
			_, err := fmt.Fprintf(c.Stdout, "fleet %s\n", version)
			return err
		}}
}

func whoamiCommand() *command.Command {
	return &command.Command{Name: "whoami", Group: groupSession, Summary: "show who the plane says you are", Flags: command.JSONFlags(false),
		Run: func(ctx context.Context, c *command.Call) error {
			return onPlane(c, func(p *planeclient.Client) error {
				w, err := p.Whoami(ctx)
				if err != nil {
					return err
				}
				if c.WantsJSON() {
					w.Schema = wire.SchemaWhoami
					return c.Print(w)
				}
				what := w.Role
				if len(w.Scopes) > 0 {
					what = "scopes " + strings.Join(w.Scopes, ",")
				}
				until := ""
				if w.ExpiresAt != nil {
					until = ", until " + w.ExpiresAt.Local().Format(time.DateTime)
				}
				_, err = fmt.Fprintf(c.Stdout, "%s %s (%s) at %s%s\n", clean(w.Kind), clean(w.Name), clean(what), p.URL(), until)
				return err
			})
		}}
}

func logoutCommand() *command.Command {
	return &command.Command{Name: "logout", Group: groupSession, Summary: "end the session, here and at the plane",
		Run: func(ctx context.Context, c *command.Call) error {
			if c.String("token-file") != "" {
				return fault.Usagef("--token-file names an automation token; fleet token rm ends one")
			}
			p, err := operator.Known(c)
			if err != nil {
				return err
			}
			// The session is forgotten here even if the plane cannot be told.
			_, client, err := operator.Plane(c)
			var told error
			if err == nil {
				told = client.Logout(ctx)
				client.Close()
			}
			if err := p.Logout(); err != nil {
				return err
			}
			forget(ctx, c, p.URL())
			var f *fault.Error
			if errors.As(told, &f) && f.Exit == fault.Unreachable {
				return fault.New(f.Exit, f.Code, "logged out here, but the plane could not be told: %w", told).
					WithHint("the session ends there by itself within 12 hours")
			}
			return nil
		}}
}
