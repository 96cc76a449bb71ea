package e2e

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// reverse answers each connection, once it has ended sending, with the same
// bytes in reverse order.
func reverse(t *testing.T, network, address string) net.Listener {
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, _ := io.ReadAll(c)
				for i := range len(b) / 2 {
					b[i], b[len(b)-1-i] = b[len(b)-1-i], b[i]
				}
				c.Write(b)
			}()
		}
	}()
	return l
}

func TestForwardsPassHalfClosesOn(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	tcp := reverse(t, "tcp4", "127.0.0.1:0")
	port := func(l net.Listener) string { return strconv.Itoa(l.Addr().(*net.TCPAddr).Port) }
	socket := m.root + "/s.sock"
	reverse(t, "unix", socket)
	targets := []string{port(tcp), socket}
	if six, err := net.Listen("tcp6", "[::1]:0"); err == nil { // where there is IPv6
		six.Close()
		targets = append(targets, port(reverse(t, "tcp6", "[::1]:0")))
	}
	c := m.client()
	for _, to := range targets {
		conn, err := c.Forward(ctx(t), to)
		if err != nil {
			t.Fatal(to, err)
		}
		content := make([]byte, 300_000)
		rand.Read(content)
		go func() { // ends with the connection
			conn.Write(content)
			conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		for i := range len(got) / 2 {
			got[i], got[len(got)-1-i] = got[len(got)-1-i], got[i]
		}
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes came back, %v", to, len(got), err)
		}
		conn.Close()
	}
}

func TestManyForwardsAtOnce(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	l := reverse(t, "tcp4", "127.0.0.1:0")
	to := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	c := m.client()
	conns := make([]net.Conn, 300)
	for i := range conns {
		conn, err := c.Forward(ctx(t), to)
		if err != nil {
			t.Fatal(i, err)
		}
		defer conn.Close()
		conns[i] = conn
	}
	var wg sync.WaitGroup
	for i, conn := range conns { // all are open
		wg.Go(func() {
			io.WriteString(conn, strconv.Itoa(100_000+i))
			conn.(interface{ CloseWrite() error }).CloseWrite()
			b, err := io.ReadAll(conn)
			if err != nil || len(b) != 6 {
				t.Error(i, string(b), err)
			}
		})
	}
	wg.Wait()
}

func TestForwardsThatLeadNowhere(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	if err := os.WriteFile(m.root+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := m.client()
	for to, code := range map[string]string{
		strconv.Itoa(free.Addr().(*net.TCPAddr).Port): wire.CodeNoListener, m.root + "/none": wire.CodeNoListener, m.root + "/file": wire.CodeNoListener,
		"/" + strings.Repeat("x", 200): wire.CodeNoListener, "": wire.CodeBadRequest, "0": wire.CodeBadRequest, "99999": wire.CodeBadRequest, "example.org:80": wire.CodeBadRequest, "@abstract": wire.CodeBadRequest,
	} {
		conn, err := c.Forward(ctx(t), to)
		if err == nil {
			conn.Close()
		}
		if f := fault.Of(err); f == nil || f.Code != code {
			t.Errorf("%q: %v, want %s", to, err, code)
		}
	}
}
