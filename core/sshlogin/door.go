package sshlogin

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// An SSH server that has as many logins under way as it wants (MaxStartups in
// sshd_config(5)) hangs up before it identifies itself. Such logins take a
// moment, so that it is asked again, with waits that keep many clients apart.
var crowded = []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// Crowded is the hint for a server that hung up to the last.
const Crowded = "it may have too many logins under way (MaxStartups in its configuration), or refuse this address; try again in a moment"

// HungUp says that the server hung up before it identified itself.
type HungUp struct{ Said string }

// hungUpWords begin a HungUp's words.
const hungUpWords = "it hung up before it identified itself"

func (h *HungUp) Error() string {
	if h.Said == "" {
		return hungUpWords
	}
	return hungUpWords + ", and said " + strconv.Quote(h.Said)
}

// SaysHungUp reports whether words that came from another process are of a
// HungUp.
func SaysHungUp(words string) bool { return strings.Contains(words, hungUpWords) }

// Persist calls try until it gives something else than a HungUp, a few times at
// most. again is told before each further time.
func Persist(ctx context.Context, try func() error, hungUp func(error) bool, again func(error)) error {
	for _, wait := range crowded {
		err := try()
		if err == nil || !hungUp(err) || !pause(ctx, wait) {
			return err
		}
		again(err)
	}
	return try()
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

// Door is a connection to an SSH server that watches for the server's
// identification (RFC 4253, 4.2).
type Door struct {
	net.Conn

	mu   sync.Mutex
	head []byte // what came before it, no more than maxHead
	met  bool
}

const maxHead = 1 << 10

// Read is the connection's.
func (d *Door) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.met && n > 0 {
		d.head = append(d.head, p[:min(n, maxHead-len(d.head))]...)
		d.met = bytes.HasPrefix(d.head, []byte("SSH-")) || bytes.Contains(d.head, []byte("\nSSH-")) || len(d.head) == maxHead
	}
	return n, err
}

// HungUp says whether a failed handshake is that of a server that hung up
// before it identified itself; nil if it is not.
func (d *Door) HungUp(err error) *HungUp {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := err.Error()
	if d.met || !strings.HasSuffix(text, "EOF") && !strings.Contains(text, "connection reset") {
		return nil
	}
	lines := strings.FieldsFunc(strings.ToValidUTF8(string(d.head), "?"), func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) == 0 {
		return &HungUp{}
	}
	return &HungUp{Said: lines[len(lines)-1]}
}
