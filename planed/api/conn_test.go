package api

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
)

// timed is a listener that counts the deadlines set on its connections.
type timed struct {
	net.Listener
	deadlines *atomic.Int64
}

type timedConn struct {
	net.Conn
	deadlines *atomic.Int64
}

func (l timed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return timedConn{c, l.deadlines}, nil
}

func (c timedConn) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() {
		c.deadlines.Add(1)
	}
	return c.Conn.SetWriteDeadline(t)
}

// served serves the world's interface on real connections.
func (w *world) served() (addr string, deadlines *atomic.Int64) {
	w.t.Helper()
	deadlines = new(atomic.Int64)
	srv := httptest.NewUnstartedServer(w.h)
	srv.Listener = timed{srv.Listener, deadlines}
	srv.Start()
	w.t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), deadlines
}

// A deadline that a long list left on its connection would cut off whatever is
// asked over it later.
func TestALongListLeavesNoDeadlineOnItsConnection(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	for range 300 {
		w.admit("owner")
	}
	addr, deadlines := w.served()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+wire.PathMachines, nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+w.creds["owner"])
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	if n := strings.Count(string(b), `"schema"`); n < 300 {
		t.Fatalf("%d machines are listed", n)
	}
	if n := deadlines.Load(); n > 0 {
		t.Errorf("%d deadlines were set", n)
	}
}

// What follows a request with two lengths on its connection may be another's:
// it is not answered.
func TestNothingFollowsARequestOfTwoLengths(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	addr, _ := w.served()
	for _, path := range []string{wire.PathCheck, wire.PathRotate, "/none"} {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\n"+wire.HeaderCheck+": instance=x; seq=1; clock=2026-01-02T03:04:05Z\r\n"+
			"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET "+wire.PathHealthz+" HTTP/1.1\r\nHost: x\r\n\r\n")
		must(t, err)
		r := bufio.NewReader(c)
		first, err := http.ReadResponse(r, nil)
		must(t, err)
		_, err = io.Copy(io.Discard, first.Body)
		must(t, err)
		if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
			t.Errorf("%s: %q %v", path, rest, err)
		}
	}
}
