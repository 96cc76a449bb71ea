package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
)

// local talks to the running agent over its mint socket.
type local struct {
	socket string
	http   *http.Client
}

func newLocal(run string) *local {
	socket := filepath.Join(run, place.MintSocket)
	return &local{socket: socket, http: &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			d := net.Dialer{Timeout: 5 * time.Second}
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
}

// errNotRunning says that no agent answers.
var errNotRunning = errors.New("agentd is not running")

// call makes one request and reads the answer into out, which may be nil.
func (l *local) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	resp, err := l.http.Do(req)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return fault.New(fault.Unreachable, "not_running", "%w", errNotRunning).WithHint("agentd status tells more; the socket would be %s", l.socket)
		}
		return fault.New(fault.Unreachable, "agent_unreachable", "cannot reach agentd: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return fmt.Errorf("cannot read answer: %w", err)
	}
	if resp.StatusCode >= 300 {
		var e wire.Error
		if json.Unmarshal(b, &e) != nil || e.Error.Code == "" {
			return fmt.Errorf("agentd answers with status %d", resp.StatusCode)
		}
		return fault.New(fault.Failure, e.Error.Code, "%s", e.Error.Message)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}
