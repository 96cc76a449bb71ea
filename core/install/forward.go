package install

import (
	"context"
	"path"
	"strings"
	"time"

	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// sockets prints a socket that takes connections and that nobody minds being
// opened and closed: the agent's own, or one that is for every account.
const sockets = `
for s in "$1" /run/dbus/system_bus_socket /var/run/dbus/system_bus_socket "$XDG_RUNTIME_DIR/bus" /run/systemd/journal/stdout /var/run/mDNSResponder; do
  [ -S "$s" ] && [ -w "$s" ] || continue
  [ ! -r /proc/net/unix ] || grep -qF -- " $s" /proc/net/unix || continue
  printf '%s\n' "$s"
  exit 0
done
`

// forward finds out whether the server opens channels to UNIX sockets, and if
// not, why: the socket is missing, its path does not fit, the server forbids
// them, or it opens no more. Without them each stream is a program there.
func (t *tester) forward(ctx context.Context, conn *sshconn.Conn, dirs place.Dirs) {
	begin := time.Now()
	const serves = "; a bridge serves in their place, a program there for each stream"
	agent := path.Join(dirs.Runtime, place.AgentSocket)
	r, err := conn.ReadOnly(ctx, sshconn.Script{Args: []string{agent}, Body: sockets})
	if err != nil {
		t.add("forward", wire.StepWarn, begin, "cannot tell whether channels to UNIX sockets are allowed: "+err.Error(), "")
		return
	}
	socket := strings.TrimSpace(string(r.Stdout))
	if socket == "" {
		t.add("forward", wire.StepOK, begin, "no socket is there to try channels to UNIX sockets with; a bridge serves if the server forbids them", "")
		return
	}
	if err = conn.TryUnix(ctx, socket); err == nil {
		t.add("forward", wire.StepOK, begin, "the server opens channels to UNIX sockets", "")
		return
	}
	why, err := conn.WhyRefused(ctx, socket, err)
	switch {
	case err != nil:
		t.add("forward", wire.StepWarn, begin, "cannot tell why a channel to "+socket+" was refused: "+err.Error(), "")
	case why == sshconn.RefusedMissing:
		t.add("forward", wire.StepWarn, begin, "the socket "+socket+" went away while it was tried; a bridge serves if the server forbids channels to it", "")
	case why == sshconn.RefusedTooLong:
		t.add("forward", wire.StepWarn, begin, "the path "+socket+" does not fit a socket's address"+serves, "")
	case why == sshconn.RefusedExhausted:
		t.add("forward", wire.StepWarn, begin, "the server opens no more channels on this connection"+serves, "raise the limit of open files of the SSH server there")
	default:
		t.add("forward", wire.StepWarn, begin, "the server forbids channels to UNIX sockets"+serves, "AllowStreamLocalForwarding yes and AllowTcpForwarding yes there make it faster, where the server has them")
	}
}
