// Package admin is how an administrator on the plane's own host speaks with a
// running plane: HTTP over a UNIX socket in the data directory, mode 0600, and
// every peer's user id is checked. The file system is the authentication.
//
// It must not be reachable in any other way, and knows no persons.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/peer"
	"fleet.example/fleet/core/wire"
)

// Status is fleet.plane-status/v1.
type Status struct {
	Schema       string         `json:"schema"`
	URL          string         `json:"url"`
	Version      string         `json:"version"`
	PID          int            `json:"pid"`
	StartedAt    wire.Time      `json:"started_at"`
	CAPin        string         `json:"ca_pin,omitempty"` // empty with --tls-cert
	LeafExpires  *wire.Time     `json:"certificate_expires_at"`
	IntervalS    float64        `json:"interval_s"`
	MinGapS      float64        `json:"min_gap_s"`
	TestFloorS   float64        `json:"test_floor_s,omitempty"`
	Machines     int            `json:"machines"`
	Tombstones   int            `json:"tombstones"`
	Persons      int            `json:"persons"`
	Tokens       int            `json:"tokens"`
	Connections  int64          `json:"connections"`
	Keep         int64          `json:"keep_connections"`
	StoreBytes   int64          `json:"store_bytes"`
	StoreQueued  int            `json:"store_queued"`
	StoreError   string         `json:"store_error,omitempty"` // of the last write
	StoreFlushed *wire.Time     `json:"store_flushed_at"`
	AuditHead    wire.AuditHead `json:"audit_head"`
	AuditSink    string         `json:"audit_sink_error,omitempty"`
	Gate         *Gate          `json:"gate,omitempty"`
}

// Gate is how the gate token stands.
type Gate struct {
	Version  int64  `json:"version"` // that machines are to hold
	Retiring int64  `json:"retiring,omitempty"`
	Rotation string `json:"rotation,omitempty"` // the step of the one that is under way
	Problem  string `json:"problem,omitempty"`
	// Refused counts requests that were turned away at the gate, since RefusedSince,
	// while that goes on.
	Refused      int64      `json:"refused"`
	RefusedSince *wire.Time `json:"refused_since"`
}

// SchemaStatus names the Status document.
const SchemaStatus = "fleet.plane-status/v1"

// Report is fleet.plane-check/v1.
type Report struct {
	Schema   string   `json:"schema"`
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"`
}

// SchemaReport names the Report document.
const SchemaReport = "fleet.plane-check/v1"

// Recovered is the answer to a recovery.
type Recovered struct {
	Schema     string `json:"schema"`
	Owner      string `json:"owner"`
	InviteFile string `json:"invite_file"`
}

// SchemaRecovered names the Recovered document.
const SchemaRecovered = "fleet.plane-recovered/v1"

// Service is what a running plane does for its administrator.
type Service interface {
	Status(ctx context.Context) (Status, error)
	Check(ctx context.Context) (Report, error)
	Backup(ctx context.Context, w io.Writer) error
	RecoverOwner(ctx context.Context, owner string) (Recovered, error)
}

// Listen makes the socket in dir. Only the process that has the store locked
// may call it: whatever socket is there already is a dead one's.
func Listen(dir, name string) (net.Listener, error) {
	path, done, err := short(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// The directory is closed to others, so the moment between bind and chmod
	// lets nobody in; the peer's user id is checked besides.
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on the admin socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the path may be one of this process only
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return &checked{l}, nil
}

// checked refuses connections of other users.
type checked struct{ net.Listener }

func (c *checked) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if peer.Own(conn.(*net.UnixConn)) {
			return conn, nil
		}
		conn.Close()
	}
}

// Handler serves a Service.
func Handler(s Service) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		v, err := s.Status(r.Context())
		answer(w, v, err)
	})
	mux.HandleFunc("POST /check", func(w http.ResponseWriter, r *http.Request) {
		v, err := s.Check(r.Context())
		answer(w, v, err)
	})
	mux.HandleFunc("GET /backup", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		if err := s.Backup(r.Context(), w); err != nil {
			// The client sees a body that was cut off, never a short copy.
			panic(http.ErrAbortHandler)
		}
	})
	mux.HandleFunc("POST /recover-owner", func(w http.ResponseWriter, r *http.Request) {
		v, err := s.RecoverOwner(r.Context(), r.URL.Query().Get("owner"))
		answer(w, v, err)
	})
	return mux
}

func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		f := fault.Of(err)
		if f.Exit == fault.Refused { // a decision, not a failure: it keeps its words
			w.WriteHeader(http.StatusConflict)
			v = wire.Error{Error: wire.ErrorDetail{Code: f.Code, Message: f.Msg, Hint: f.Hint}}
		} else {
			w.WriteHeader(http.StatusInternalServerError)
			v = wire.Error{Error: wire.ErrorDetail{Code: wire.CodeInternal, Message: err.Error()}}
		}
	}
	json.NewEncoder(w).Encode(v)
}

// ErrNotRunning says that no plane answers on the socket.
var ErrNotRunning = errors.New("no plane is running there")

// Client speaks with the plane that has dir open.
type Client struct{ http *http.Client }

// Dial looks for a running plane.
func Dial(dir, name string) (*Client, error) {
	dial := func(ctx context.Context) (net.Conn, error) {
		path, done, err := short(dir, name)
		if err != nil {
			return nil, err
		}
		defer done()
		d := net.Dialer{Timeout: 5 * time.Second}
		return d.DialContext(ctx, "unix", path)
	}
	conn, err := dial(context.Background())
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("cannot open the admin socket: %w", err)
		}
		return nil, fmt.Errorf("%w (%w)", ErrNotRunning, err)
	}
	conn.Close()
	return &Client{&http.Client{Transport: &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		ResponseHeaderTimeout: 10 * time.Minute, // a check of a large store reads all of it
	}}}, nil
}

func (c *Client) do(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://plane"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		var e wire.Error
		json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&e)
		if resp.StatusCode == http.StatusConflict {
			return nil, fault.New(fault.Refused, e.Error.Code, "%s", e.Error.Message).WithHint("%s", e.Error.Hint)
		}
		return nil, fmt.Errorf("the plane says: %s", e.Error.Message)
	}
	return resp, nil
}

func (c *Client) get(ctx context.Context, method, path string, v any) error {
	resp, err := c.do(ctx, method, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(v)
}

// Status asks how the plane is.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	err = c.get(ctx, "GET", "/status", &s)
	return s, err
}

// Check has the store verified.
func (c *Client) Check(ctx context.Context) (r Report, err error) {
	err = c.get(ctx, "POST", "/check", &r)
	return r, err
}

// RecoverOwner has a new owner's invitation made.
func (c *Client) RecoverOwner(ctx context.Context, owner string) (r Recovered, err error) {
	err = c.get(ctx, "POST", "/recover-owner?owner="+url.QueryEscape(owner), &r)
	return r, err
}

// Backup copies the store to w.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	resp, err := c.do(ctx, "GET", "/backup")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err = io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("the copy was cut off: %w", err)
	}
	return nil
}

var _ Service = (*Client)(nil)
