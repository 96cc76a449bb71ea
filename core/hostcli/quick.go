package hostcli

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fleet.example/fleet/core/cli"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/muxserver"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/quick"
	"fleet.example/fleet/core/quickserver"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/wire"
)

// quickCalls does commands that fronts hand over.
type quickCalls struct {
	server *muxserver.Server
	build  mux.Build
	socket string   // of the shared server that this process is
	own    []string // see ours
}

// listenQuick listens beside the shared server's socket. The lock of that is
// held by whoever starts this process.
func listenQuick(socket string, getenv func(string) string) (*net.UnixListener, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(filepath.Dir(socket), quick.Name(getenv, self))
	os.Remove(path) // it is left over, or another server's that has lost its socket
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by then it may be another's
	return l, nil
}

func (q *quickCalls) run(ctx context.Context, c *quickserver.Call) int {
	if !wire.IsSessionID(c.Session) || !q.same(c.Request) {
		return 0 // it was not begun
	}
	std := command.IO{Stdin: strings.NewReader(""), Stdout: c.Writer(quick.Stdout), Stderr: c.Writer(quick.Notice), Getenv: c.Getenv, Notify: c.Notify}
	host := &muxserver.Own{Server: q.server, Stderr: std.Stderr, MayDial: c.Begun}
	return cli.ExecFor(ctx, host, behalf{c}, sshconfig.Person{Environ: c.Environ, Dir: c.Dir}, c.Args, std)
}

// same reports whether the front would use this very server, and whether this
// process's environment has the same say in the command as the front's: what is
// not passed on with it is compared.
func (q *quickCalls) same(r *quick.Request) bool {
	program, err := mux.HostProgram(r.Program)
	if err != nil || mux.BuildOf(program).Program != q.build.Program {
		return false
	}
	o, err := operator.Shared(program, r.Getenv)
	return err == nil && o.Socket() == q.socket && slices.Equal(ours(r.Environ), q.own)
}

// ours are the variables that libraries read from the process's environment:
// flags' values and the account's name.
func ours(environ []string) []string {
	var out []string
	for _, kv := range environ {
		if strings.HasPrefix(kv, "FLEET_") || strings.HasPrefix(kv, "USER=") {
			out = append(out, kv)
		}
	}
	slices.Sort(out)
	return out
}

type behalf struct{ *quickserver.Call }

func (b behalf) Begin(ctx context.Context) (string, error) { return b.Session, b.Call.Begin(ctx) }

func (b behalf) SessionErr() io.Writer { return b.Writer(quick.Stderr) }
