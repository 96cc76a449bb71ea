package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/agentd/agent"
	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/latch"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
)

func idCommand() *command.Command {
	return &command.Command{Name: "id", Summary: "print the machine id, and with --json the order audience", Flags: command.JSONFlags(false),
		Run: func(ctx context.Context, c *command.Call) error {
			d, _, err := dirs(ctx, c)
			if err != nil {
				return err
			}
			machine := credential.Open(credential.Dir(d.Data)).Machine()
			if machine == "" {
				return fault.New(fault.NotFound, "no_credential", "no credential is installed in %s", d.Data)
			}
			if c.WantsJSON() {
				return c.Print(idDoc{schemaID, machine, agent.OrderAudience(d.Data)})
			}
			fmt.Fprintln(c.Stdout, machine)
			return nil
		}}
}

const schemaID = "fleet.agent-id/v1"

// idDoc is fleet.agent-id/v1.
type idDoc struct {
	Schema        string `json:"schema"`
	Machine       string `json:"machine"`
	OrderAudience string `json:"order_audience"`
}

func tokenCommand() *command.Command {
	return &command.Command{Name: "token", Args: "[revoke --all]", Summary: "mint a token for the agent's socket, on standard output; or end tokens",
		Max: 1,
		Flags: append(command.JSONFlags(false),
			&ufcli.StringFlag{Name: "workspace", Usage: "a token that is good for workspace `W` only"},
			command.DurationFlag("lifetime", "how `LONG` it is good (default 12h)", 0),
			&ufcli.BoolFlag{Name: "all", Usage: "with revoke: every token there is"}),
		Run: func(ctx context.Context, c *command.Call) error {
			switch {
			case c.Arg(0) == "revoke":
				return revokeTokens(ctx, c)
			case c.Arg(0) != "":
				return fault.Usagef("token takes no %q; did you mean token revoke --all?", c.Arg(0))
			case c.Bool("all"):
				return fault.Usagef("--all goes with token revoke")
			}
			return mintToken(ctx, c)
		}}
}

func mintToken(ctx context.Context, c *command.Call) error {
	d, _, err := dirs(ctx, c)
	if err != nil {
		return err
	}
	var minted wire.TokenMinted
	req := wire.TokenMint{Workspace: c.String("workspace"), LifetimeS: c.Span("lifetime").Seconds()}
	if err := newLocal(d.Runtime).call(ctx, "POST", wire.PathTokens, req, &minted); err != nil {
		return err
	}
	if c.WantsJSON() {
		return c.Print(minted)
	}
	fmt.Fprintln(c.Stdout, minted.Token)
	return nil
}

func revokeTokens(ctx context.Context, c *command.Call) error {
	if !c.Bool("all") {
		return fault.Usagef("give --all; tokens are not kept by name")
	}
	d, _, err := dirs(ctx, c)
	if err != nil {
		return err
	}
	var n struct {
		Revoked int `json:"revoked"`
	}
	if err := newLocal(d.Runtime).call(ctx, "DELETE", wire.PathTokens, nil, &n); err != nil {
		return err
	}
	c.Notef("%d tokens ended", n.Revoked)
	return nil
}

func bridgeCommand() *command.Command {
	return &command.Command{Name: "bridge", Summary: "connect standard input and output with the agent's socket",
		Flags: []ufcli.Flag{&ufcli.BoolFlag{Name: "mint", Usage: "with the socket that mints tokens"}},
		Run: func(ctx context.Context, c *command.Call) error {
			d, _, err := dirs(ctx, c)
			if err != nil {
				return err
			}
			name := place.AgentSocket
			if c.Bool("mint") {
				name = place.MintSocket
			}
			return bridge(ctx, filepath.Join(d.Runtime, name), c.Stdin, c.Stdout)
		}}
}

// bridge copies both ways. The socket's end ends it; the end of the input
// only closes the socket's writing half.
func bridge(ctx context.Context, socket string, in io.Reader, out io.Writer) error {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	nc, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return fault.New(fault.Unreachable, "not_running", "cannot reach agentd: %w", err)
	}
	defer nc.Close()
	go func() { // ends with the process: standard input cannot be woken
		io.Copy(nc, in)
		nc.(*net.UnixConn).CloseWrite()
	}()
	_, err = io.Copy(out, nc)
	return err
}

func statusCommand(version string) *command.Command {
	return &command.Command{Name: "status", Summary: "tell how the agent is", Flags: command.JSONFlags(false),
		Run: func(ctx context.Context, c *command.Call) error { return status(ctx, c, version) }}
}

func status(ctx context.Context, c *command.Call, version string) error {
	d, _, err := dirs(ctx, c)
	if err != nil {
		return err
	}
	var s wire.AgentStatus
	err = newLocal(d.Runtime).call(ctx, "GET", wire.PathStatus, nil, &s)
	if errors.Is(err, errNotRunning) {
		s, err = asleep(d, version), nil
	}
	if err != nil {
		return err
	}
	if c.WantsJSON() {
		return c.Print(s)
	}
	w := c.Stdout
	fmt.Fprintf(w, "agent       %s%s\n", s.State, map[string]string{"revoked": ", waiting for a person: this machine was deleted"}[s.State])
	fmt.Fprintf(w, "machine     %s\nplane       %s\ncredential  %s, generation %d\n", dash(s.Machine), dash(s.Plane), s.Credential, s.Generation)
	if l := s.LastCheck; l != nil {
		verdict := "ok"
		if !l.OK {
			verdict = l.Error
		}
		fmt.Fprintf(w, "last check  %s ago: %s\n", time.Since(l.At.Time).Round(time.Second), verdict)
	}
	if s.PID != 0 {
		fmt.Fprintf(w, "sessions    %d\n", s.Sessions)
	}
	switch {
	case s.PID != 0 && !s.Probed:
		fmt.Fprintln(w, "readiness   not probed yet")
	case s.PID != 0 && len(s.Blockers) == 0:
		fmt.Fprintln(w, "readiness   ready")
	}
	for _, b := range s.Blockers {
		fmt.Fprintf(w, "%-11s %s: %s\n", b.Severity, b.Code, b.Detail)
		if b.Remedy != "" {
			fmt.Fprintf(w, "            remedy: %s\n", b.Remedy)
		}
	}
	fmt.Fprintf(w, "version     %s\ndata        %s\n", s.Version, s.DataDir)
	return nil
}

// asleep is the status of an agent that does not run, from the disk.
func asleep(d place.Dirs, version string) wire.AgentStatus {
	st := credential.Open(credential.Dir(d.Data)).Status()
	s := wire.AgentStatus{Schema: wire.SchemaAgent, State: "absent", Latched: latch.Present(d.Data), Machine: st.Machine,
		Version: version, Plane: st.Plane, Credential: st.State, Generation: st.Generation, Blockers: []wire.Blocker{},
		DataDir: d.Data, Socket: filepath.Join(d.Runtime, place.AgentSocket)}
	if _, err := os.Lstat(filepath.Join(d.Data, "drain")); err == nil {
		s.Draining = true
	}
	switch {
	case s.Latched:
		s.State = "stopped"
	case st.Revoked:
		s.State = "revoked"
	}
	return s
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
