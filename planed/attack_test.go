package planed_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

// TestHTTP2IsSpokenByNobody: so that none of its floods - of streams that are
// reset, of settings, of headers that go on and on - has anything to flood. // R19
func TestHTTP2IsSpokenByNobody(t *testing.T) {
	p := newPlane(t)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "web")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots))
	dial := func(protos ...string) (*tls.Conn, error) {
		conf := &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: protos}
		return tls.DialWithDialer(&net.Dialer{Timeout: 20 * time.Second}, "tcp", strings.TrimPrefix(p.url, "https://"), conf)
	}
	if c, err := dial("h2"); err == nil {
		if c.ConnectionState().NegotiatedProtocol != "" {
			t.Error("HTTP/2 was agreed on")
		}
		c.Close()
	}
	for range 64 {
		c, err := dial("h2", "http/1.1")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
			t.Fatalf("%q was negotiated", got)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		// Somebody floods all the same: a request and its reset, over and over.
		flood := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		flood = append(flood, frame(4, 0, 0)...) // settings
		for i := range uint32(500) {
			flood = append(flood, frame(1, 4, 2*i+1, 0x82, 0x87)...)    // GET, https
			flood = append(flood, frame(3, 0, 2*i+1, 0, 0, 0, 0x08)...) // cancelled
		}
		c.Write(flood) // it may have hung up
		answer, _ := io.ReadAll(io.LimitReader(c, 1<<20))
		c.Close()
		if len(answer) > 4096 || strings.Count(string(answer), "HTTP/1.1 ") > 1 {
			t.Fatalf("%d bytes of answers", len(answer))
		}
	}
	b.mustCheck(running)
}

// frame is one of HTTP/2's (RFC 9113, 4.1).
func frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	f := []byte{0, 0, byte(len(payload)), kind, flags}
	return append(append(f, byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream)), payload...)
}

// TestSlowSendersHoldNobodyUp: hundreds of connections on which a request is
// never finished, one byte at a time; machines and persons do not notice. That
// such connections end is TestSilentConnectionIsClosed and its neighbours. // R19
func TestSlowSendersHoldNobodyUp(t *testing.T) {
	p := newPlane(t)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "web")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots))
	begin := []string{
		"", "P", "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
		"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65536\r\n\r\n{",
		"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		fmt.Sprintf("POST /v1/check HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s.%s\r\n%s: instance=z; seq=1\r\nContent-Length: 10\r\n\r\n{",
			b.id, b.secret.Reveal(), wire.HeaderCheck),
	}
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for i := range 300 {
		raw, err := net.DialTimeout("tcp", strings.TrimPrefix(p.url, "https://"), 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, raw)
		if i%7 == 6 { // not even a handshake
			io.WriteString(raw, "\x16\x03")
			continue
		}
		_ = raw.SetDeadline(time.Now().Add(2 * time.Minute))
		c := tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: []string{"http/1.1"}})
		if _, err := io.WriteString(c, begin[i%len(begin)]); err != nil {
			t.Fatal(err)
		}
		held[i] = c
		if i%50 == 0 {
			b.mustCheck(running)
		}
	}
	for range 20 {
		b.mustCheck(running)
	}
	if m, err := owner.Machine(t.Context(), b.id); err != nil || m.Presence != wire.Present {
		t.Errorf("%+v %v", m, err)
	}
	// One of them makes up its mind, and is answered.
	c := held[2]
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(c, "x\r\nContent-Length: 2\r\n\r\n{}")
	if line, err := bufio.NewReader(c).ReadString('\n'); err == nil && !strings.HasPrefix(line, "HTTP/1.1 4") {
		t.Errorf("%q", line)
	}
}
