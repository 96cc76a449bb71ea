package agentclient

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"

	"fleet.example/fleet/core/secret"
)

// maxHead bounds the head of the agent's answer to an upgrade, and a refusal's
// body with it.
const maxHead = 128 << 10

// ask makes a request for a stream, or one whose answer takes its time, on a
// connection of its own: nothing else ever uses that connection, so there is
// nothing for a pool or its goroutines to do. ctx bounds the request until the
// answer is here, and so does wait. Without a protocol it is for no stream.
func (c *Client) ask(ctx context.Context, method, path string, token secret.Text, body []byte, protocol string, wait time.Duration) (_ *http.Response, err error) {
	nc, err := c.dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			nc.Close()
		}
	}()
	nc.SetDeadline(time.Now().Add(wait))
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if t := httptrace.ContextClientTrace(ctx); t != nil && t.GotConn != nil {
		t.GotConn(httptrace.GotConnInfo{Conn: nc})
	}
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n",
		method, path, token.Reveal(), connection(protocol), len(body))
	if _, err := nc.Write(append([]byte(head), body...)); err != nil {
		return nil, err
	}
	limit := &io.LimitedReader{R: nc, N: maxHead}
	r := bufio.NewReader(limit)
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		nc.Close()
		resp.Body = io.NopCloser(bytes.NewReader(b))
		return resp, nil
	}
	if !stop() {
		return nil, ctx.Err()
	}
	nc.SetDeadline(time.Time{})
	early, _ := r.Peek(r.Buffered()) // frames that came with the head
	resp.Body = &read{nc, early}
	return resp, nil
}

// connection says what is to become of the connection.
func connection(protocol string) string {
	if protocol == "" {
		return "Connection: close\r\n"
	}
	return "Connection: Upgrade\r\nUpgrade: " + protocol + "\r\n"
}

// read is a connection of which some bytes were read ahead.
type read struct {
	net.Conn
	ahead []byte
}

func (r *read) Read(p []byte) (int, error) {
	if len(r.ahead) > 0 {
		n := copy(p, r.ahead)
		r.ahead = r.ahead[n:]
		return n, nil
	}
	return r.Conn.Read(p)
}

// CloseWrite passes a half-close on.
func (r *read) CloseWrite() error {
	if h, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return r.Conn.Close()
}
