package agentclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// Watching says what is watched and how.
type Watching struct {
	Path    string
	Shallow bool   // a directory's own entries alone
	Initial bool   // what is there already is told of first
	From    string // the token of the last event that the caller has, or ""

	// Patience is how long a lost connection is tried again; 0 means
	// DefaultPatience, negative not at all.
	Patience time.Duration
	// Notice is told, in words, when the connection is lost and when it is back.
	Notice func(text string)
}

// maxEvent bounds an event: two paths, each byte of which may take six.
const maxEvent = 128 << 10

// Watch gives each event of what changes to each, in the machine's order, until
// the context ends, each fails or the watch does. A connection that is lost is
// made again and the events go on where they ended; where the agent has them no
// longer, an overflow says so.
func (c *Client) Watch(ctx context.Context, w Watching, each func(wire.WatchEvent) error) error {
	patience := w.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	s := &seeing{client: c, Watching: w, each: each}
	for {
		err := s.once(ctx)
		var final *finalError
		switch {
		case errors.As(err, &final):
			return final.err
		case ctx.Err() != nil:
			return ctx.Err()
		case !s.begun || patience < 0:
			return err
		}
		if s.lost.IsZero() {
			s.lost = time.Now()
			s.notice("connection lost (" + err.Error() + "), reconnecting")
		}
		if time.Since(s.lost) > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(s.gap):
		}
		s.gap = min(2*s.gap, 3*time.Second)
	}
}

// seeing is a watch, over one connection after the other.
type seeing struct {
	client *Client
	Watching
	each  func(wire.WatchEvent) error
	begun bool
	lost  time.Time // since when nothing is connected
	gap   time.Duration
}

func (s *seeing) notice(text string) {
	if s.Notice != nil {
		s.Notice(text)
	}
}

// once takes what one connection brings. A finalError is one that another would
// not mend.
func (s *seeing) once(ctx context.Context) error {
	q := url.Values{"path": {s.Path}}
	for name, on := range map[string]bool{"shallow": s.Shallow, "initial": s.Initial} {
		if on {
			q.Set(name, "")
		}
	}
	if s.From != "" {
		q.Set("from", s.From)
	}
	resp, err := s.client.request(ctx, http.MethodGet, wire.PathWatch+"?"+q.Encode(), nil, "")
	if err != nil {
		if errors.As(err, new(*Error)) {
			return &finalError{err}
		}
		return err
	}
	defer resp.Body.Close()
	if !s.lost.IsZero() {
		s.notice("reconnected")
	}
	s.begun, s.lost, s.gap = true, time.Time{}, 50*time.Millisecond
	lines := bufio.NewReaderSize(resp.Body, maxEvent)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return cutShort(errors.New("the agent hung up"))
		case errors.Is(err, bufio.ErrBufferFull):
			return &finalError{fmt.Errorf("an event of the agent's is longer than %d bytes", maxEvent)}
		case err != nil:
			return cutShort(err)
		}
		var ev wire.WatchEvent
		if err := json.Unmarshal(line, &ev); err != nil {
			return &finalError{fmt.Errorf("cannot read the agent's event: %w", err)}
		}
		s.From = ev.Token
		if err := s.each(ev); err != nil {
			return &finalError{err}
		}
		if ev.Event == wire.WatchEnded && ev.Error != nil {
			return &finalError{(&Error{Status: resp.StatusCode, Detail: *ev.Error}).asFault()}
		}
	}
}

func cutShort(err error) error {
	return fault.New(fault.Unreachable, "agent_unreachable", "the watch was cut short: %w", err)
}
