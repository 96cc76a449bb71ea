package sshconn

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
)

// An SSH server that has as many logins under way as it wants (MaxStartups in
// sshd_config(5)) hangs up before it says anything. Such logins take a moment,
// so that it is asked again, with waits that keep many clients apart.
var crowded = []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// hungUp says that the server hung up before it identified itself.
type hungUp struct{ said string }

func (h *hungUp) Error() string {
	if h.said == "" {
		return "it hung up before it identified itself"
	}
	return "it hung up before it identified itself, and said " + h.said
}

// pause waits for about d. It is false when the context ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// greeting watches for the server's identification (RFC 4253, 4.2).
type greeting struct {
	net.Conn

	mu   sync.Mutex
	head []byte // what came before it, no more than maxHead
	met  bool
}

const maxHead = 1 << 10

func (g *greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.met && n > 0 {
		g.head = append(g.head, p[:min(n, maxHead-len(g.head))]...)
		g.met = bytes.HasPrefix(g.head, []byte("SSH-")) || bytes.Contains(g.head, []byte("\nSSH-")) || len(g.head) == maxHead
	}
	return n, err
}

// atTheDoor gives a failed handshake the words for a server that said nothing,
// where it is one: neither the way there nor time was at an end.
func (c *Conn) atTheDoor(ctx context.Context, err error, g *greeting) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	text := err.Error()
	ended := strings.HasSuffix(text, "EOF") || strings.Contains(text, "connection reset")
	if g.met || !ended || c.Lost() != nil || ctx.Err() != nil {
		return err
	}
	said := lastLine(string(g.head))
	if said != "" {
		said = "\"" + said + "\""
	}
	return fault.New(fault.Unreachable, "hung_up", "the SSH server of %s takes no login: %w", c.Config, &hungUp{said}).
		WithHint("it may have too many logins under way (MaxStartups in its configuration), or refuse this address; try again in a moment")
}
