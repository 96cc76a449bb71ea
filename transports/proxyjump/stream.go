package proxyjump

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/plugins/sdk"
)

// way is the connections that one stream goes through, nearest first.
type way struct {
	th        sdk.TransportHost
	transport *Transport
	jumps     []sdk.Hop

	mu      sync.Mutex
	clients []*ssh.Client
	ended   []chan struct{} // closed when the connection of a hop has ended
	why     []error         // of the end; read after ended
	closed  bool
}

func (w *way) add(c *ssh.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		c.Close()
	}
	i, ended := len(w.clients), make(chan struct{})
	w.clients, w.ended, w.why = append(w.clients, c), append(w.ended, ended), append(w.why, nil)
	go func() { // ends with the connection, which close closes
		err := c.Wait()
		w.mu.Lock()
		w.why[i] = err
		w.mu.Unlock()
		close(ended)
	}()
}

// close ends the connections, the farthest first.
func (w *way) close() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.closed = true
	clients := w.clients
	w.mu.Unlock()
	for i := len(clients) - 1; i >= 0; i-- {
		clients[i].Close()
	}
	w.transport.mu.Lock()
	defer w.transport.mu.Unlock()
	delete(w.transport.open, w)
}

// settleTime is how long after the end of a stream the end of a hop's
// connection may take to be noticed.
const settleTime = 100 * time.Millisecond

// lost finds the nearest hop whose connection has ended: those behind it end
// with it. It is false if they all stand, as when the target hung up.
func (w *way) lost() (sdk.Hop, string, bool) {
	w.mu.Lock()
	ended, closed := w.ended, w.closed
	w.mu.Unlock()
	if closed || len(ended) == 0 {
		return sdk.Hop{}, "", false
	}
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case <-ended[0]:
	case <-timer.C:
	}
	for i, e := range ended {
		select {
		case <-e:
		default:
			continue
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		text := "the connection was lost"
		if err := w.why[i]; err != nil {
			text += ": " + err.Error()
		}
		return w.jumps[i], oneLine(text), true
	}
	return sdk.Hop{}, "", false
}

// stream is the way's far end. Before its end is passed on, the host hears at
// which hop it was lost, if it was.
type stream struct {
	net.Conn
	way *way
	end sync.Once
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if err != nil {
		s.end.Do(func() {
			if hop, why, lost := s.way.lost(); lost {
				s.way.th.Lost(context.Background(), hop.ID, why)
			}
		})
	}
	return n, err
}

// CloseWrite ends the sending half.
func (s *stream) CloseWrite() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// Close ends the stream and the way.
func (s *stream) Close() error {
	err := s.Conn.Close()
	s.way.close()
	return err
}

// maxReason bounds a reason, in bytes.
const maxReason = 500

// oneLine makes a line that can be shown of what may come from a server.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}
