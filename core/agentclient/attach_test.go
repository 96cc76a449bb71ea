package agentclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// agent answers every connection by what serve does with its request.
type agent struct {
	t     *testing.T
	serve func(n int, nc net.Conn, r *http.Request)
	wg    sync.WaitGroup
	mu    sync.Mutex
	dials int
}

func newAgent(t *testing.T, serve func(n int, nc net.Conn, r *http.Request)) (*agent, *Client) {
	a := &agent{t: t, serve: serve}
	c := New(a)
	t.Cleanup(a.wg.Wait)
	t.Cleanup(c.Close)
	return a, c
}

func (a *agent) Token(context.Context, bool) (secret.Text, error) { return secret.Of("fa_t"), nil }

func (a *agent) Dial(context.Context) (net.Conn, error) {
	a.mu.Lock()
	a.dials++
	n := a.dials
	a.mu.Unlock()
	near, far := net.Pipe()
	a.wg.Go(func() {
		defer far.Close()
		far.SetDeadline(time.Now().Add(time.Minute))
		r, err := http.ReadRequest(bufio.NewReader(far))
		if err == nil {
			a.serve(n, far, r)
		}
	})
	return near, nil
}

func (a *agent) dialled() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dials
}

const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + wire.UpgradeSession + "\r\n"

// TestAStreamThatIsOfNoUseIsTriedWithPatienceOnly: each of its connections
// succeeds, and ends at once.
func TestAStreamThatIsOfNoUseIsTriedWithPatienceOnly(t *testing.T) { // R34
	for name, first := range map[string][]byte{"nothing": nil,
		"attached": frame.AppendJSON(nil, frame.Attached, frame.AttachedAnswer{Session: "s_1"})} {
		t.Run(name, func(t *testing.T) {
			a, c := newAgent(t, func(_ int, nc net.Conn, _ *http.Request) {
				nc.Write([]byte(upgraded + wire.HeaderFirst + ": 0\r\n\r\n"))
				if first != nil {
					frame.NewReader(nc).Next() // Attach
					nc.Write(first)
				}
			})
			_, _, err := c.Attach(t.Context(), "s_1", 0, Attachment{Patience: time.Second})
			if f := fault.Of(err); f == nil || f.Code != "connection_lost" {
				t.Errorf("err = %v", err)
			}
			if n := a.dialled(); n < 2 || n > 20 { // 50, 100, 200, 400, 800 ms, and the last
				t.Errorf("%d connections in a second", n)
			}
		})
	}
}

// TestARunWhoseAnswerIsLostIsFollowedUpUnderItsID, since it may have begun.
func TestARunWhoseAnswerIsLostIsFollowedUpUnderItsID(t *testing.T) { // R34
	var id string
	_, c := newAgent(t, func(n int, nc net.Conn, r *http.Request) {
		if n <= 2 { // the request and its repetition begin it, and nobody hears so
			var req wire.SessionRequest
			if err := json.NewDecoder(r.Body).Decode(&req); err != nil || r.Method != "POST" || id != "" && id != req.ID {
				t.Errorf("%s %+v %v", r.Method, req, err)
			}
			id = req.ID
			return
		}
		if r.Method != "GET" || r.URL.Path != sessionPath(id)+"/stream" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		nc.Write([]byte(upgraded + wire.HeaderSession + ": " + id + "\r\n" + wire.HeaderFirst + ": 0\r\n\r\n"))
		frame.NewReader(nc).Next()
		nc.Write(frame.AppendJSON(frame.AppendJSON(nil, frame.Attached, frame.AttachedAnswer{Session: id}), frame.Exit,
			frame.ExitStatus{SessionExit: wire.SessionExit{Code: 7}}))
	})
	got, exit, err := c.Run(t.Context(), wire.SessionRequest{Argv: []string{"true"}}, Attachment{})
	if err != nil || got != id || exit == nil || exit.Code != 7 {
		t.Errorf("%q, %+v, %v", got, exit, err)
	}
}

func TestARunThatDidNotBeginSaysSo(t *testing.T) {
	_, c := newAgent(t, func(n int, nc net.Conn, r *http.Request) {
		if n > 2 {
			nc.Write([]byte("HTTP/1.1 404 Not Found\r\nContent-Length: 31\r\n\r\n" + `{"error":{"code":"not_found"}}` + "\n"))
		}
	})
	id, exit, err := c.Run(t.Context(), wire.SessionRequest{Argv: []string{"true"}}, Attachment{})
	if f := fault.Of(err); id != "" || exit != nil || f == nil || f.Code != "agent_unreachable" {
		t.Errorf("%q, %+v, %v", id, exit, err)
	}
}

// TestASessionThatIsNotFoundAgainIsNamed: whether it runs is not known.
func TestASessionThatIsNotFoundAgainIsNamed(t *testing.T) {
	_, c := newAgent(t, func(int, net.Conn, *http.Request) {})
	id, _, err := c.Run(t.Context(), wire.SessionRequest{Argv: []string{"true"}}, Attachment{Patience: 200 * time.Millisecond})
	if f := fault.Of(err); !wire.IsSessionID(id) || f == nil || f.Code != "connection_lost" {
		t.Errorf("%q, %v", id, err)
	}
}

func TestAnOffsetBeyondTheOutputIsSaid(t *testing.T) {
	_, c := newAgent(t, func(_ int, nc net.Conn, _ *http.Request) {
		nc.Write([]byte(upgraded + wire.HeaderFirst + ": 0\r\n\r\n"))
		frame.NewReader(nc).Next()
		nc.Write(frame.AppendJSON(nil, frame.Attached, frame.AttachedAnswer{Session: "s_1", End: 500}))
	})
	_, _, err := c.Attach(t.Context(), "s_1", 1_000_000, Attachment{})
	if f := fault.Of(err); f == nil || f.Code != "output_missing" || f.Hint == "" {
		t.Errorf("%v", err)
	}
	if errors.Is(err, frame.ErrMalformed) {
		t.Errorf("%v", err)
	}
}
