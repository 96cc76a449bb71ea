// Package loopback guards an HTTP server on the loopback interface, where
// anybody on the computer may call, and so may a page in somebody's browser.
// What holds there:
//
//   - Until a request with a good token was read from a connection, whatever
//     the server would write on it is replaced by one and the same refusal, and
//     the connection ends: garbage, a request without a host, an unknown
//     expectation and a path that is there get the same bytes.
//   - A request that a browser made, or that names a host by anything but a
//     loopback address, is refused likewise, whatever token it has: a name may
//     have been made to lead here.
//   - Connections are bounded, and one that asks for nothing is ended soon.
//
// It does not know whose tokens are good, nor what is asked for with them.
package loopback

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// HeaderTimeout is how long a connection may take to ask for something.
	HeaderTimeout = 10 * time.Second
	// IdleTimeout is how long one may wait between two requests.
	IdleTimeout = 2 * time.Minute
	// MaxHeader bounds what is asked, in bytes.
	MaxHeader = 16 << 10
)

// Refusal is what everybody gets who has no token.
const Refusal = "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 34\r\nContent-Type: application/json\r\n\r\n" +
	`{"error":{"code":"unauthorized"}}` + "\n"

// Stream is a connection with half-closes.
type Stream interface {
	net.Conn
	CloseWrite() error
}

// Conn is a connection of which nobody knows yet whether its token is good.
type Conn struct {
	Stream
	admitted atomic.Bool

	mu      sync.Mutex
	refused bool
}

// Guard guards a connection.
func Guard(c Stream) *Conn { return &Conn{Stream: c} }

func (c *Conn) Write(p []byte) (int, error) {
	if c.admitted.Load() {
		return c.Stream.Write(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.refused {
		c.refused = true
		if _, err := io.WriteString(c.Stream, Refusal); err != nil {
			return 0, err
		}
		c.CloseWrite()
	}
	return len(p), nil
}

func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	over := c.refused
	c.mu.Unlock()
	if over {
		return 0, io.EOF
	}
	return c.Stream.Read(p)
}

type key struct{}

// Guarded has a server guard its connections, which are Conns.
func Guarded(srv *http.Server) {
	srv.ReadHeaderTimeout, srv.IdleTimeout, srv.MaxHeaderBytes = HeaderTimeout, IdleTimeout, MaxHeader
	srv.DisableGeneralOptionsHandler = true
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if c, ok := c.(*Conn); ok {
			return context.WithValue(ctx, key{}, c)
		}
		return ctx
	}
}

// Admit lets a request with a good token through, if it came by a way that no
// browser takes. What came over something else than a Conn is not its affair.
func Admit(r *http.Request) bool {
	c, ok := r.Context().Value(key{}).(*Conn)
	if !ok {
		return true
	}
	if !local(r) {
		return false
	}
	c.admitted.Store(true)
	return true
}

// local reports whether a request names this host by a loopback address and was
// made by no browser.
func local(r *http.Request) bool {
	for name := range r.Header {
		if name == "Origin" || name == "Referer" || strings.HasPrefix(name, "Sec-Fetch-") {
			return false
		}
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.IsLoopback() && !a.Is4In6()
}
