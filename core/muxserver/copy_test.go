package muxserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/core/carry"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/mux"
	"fleet.example/fleet/core/reach"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/tree"
	"fleet.example/fleet/core/wire"
)

// unixPair returns the two ends of a client's connection.
func unixPair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

// speaks is the agent's end of a copy over one stream. A path it does not take
// is refused.
func speaks(conn net.Conn) error {
	defer conn.Close()
	r := bufio.NewReader(conn)
	req, err := http.ReadRequest(r)
	if err != nil {
		return err
	}
	var ask wire.TreeRequest
	if err := json.NewDecoder(req.Body).Decode(&ask); err != nil {
		return err
	}
	if req.Header.Get("Authorization") != "Bearer t" || ask.Sum != wire.TreeSumXXH64 {
		return errors.New("not as a client asks")
	}
	if ask.Path == "refused" {
		body := `{"error":{"code":"not_found","message":"no such file"}}`
		_, err := fmt.Fprintf(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		return err
	}
	head := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + wire.UpgradeTree + "\r\n" +
		wire.HeaderTreeAs + ": named\r\n" + wire.HeaderTreeSum + ": " + wire.TreeSumXXH64 + "\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		return err
	}
	if ask.Op == wire.TreeReceive {
		dst, err := tree.OpenDestination(tree.Local{}, string(ask.Path), string(ask.Base), "")
		if err != nil {
			return err
		}
		defer dst.Close()
		_, err = tree.NewReceiver(context.Background(), conn, dst, tree.ReceiveOptions{Sum: tree.XXH64, Recursive: ask.Recursive}).Run()
		return err
	}
	src, err := tree.OpenSource(tree.Local{}, string(ask.Path), ask.Recursive)
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = tree.NewSender(context.Background(), conn, src, tree.SendOptions{Sum: tree.XXH64}).Run()
	return err
}

// ordering is a client of a server whose agent is reached by streams that are
// kept ready.
func ordering(t *testing.T, agents func(net.Conn) error) *net.UnixConn {
	t.Helper()
	g := &agent{server: New(Config{}), token: secret.Of("t"), matched: time.Now(), reach: &reach.Agent{}}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(g.spares.end)
	for range maxSpares + 1 { // so many that none is made again
		far := pair(&g.spares)
		wg.Go(func() {
			if err := agents(far); err != nil && !errors.Is(err, io.EOF) {
				t.Log(err)
			}
		})
	}
	near, far := unixPair(t)
	a := &asker{server: g.server, conn: far}
	wg.Go(func() {
		defer far.Close()
		a.ordered(context.Background(), g, far)
	})
	return near
}

// The server makes the copy from and to what the client has opened, and says
// what becomes of it.
func TestACopyIsMadeOverAHandedDescriptor(t *testing.T) {
	dir := t.TempDir()
	content := strings.Repeat("0123456789abcdef", 100<<10)
	if err := errors.Join(os.Mkdir(dir+"/tree", 0o755), os.WriteFile(dir+"/tree/file", []byte(content), 0o644),
		syscall.Mkfifo(dir+"/tree/pipe", 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{wire.TreeReceive, wire.TreeSend} {
		to := dir + "/" + op
		var mu sync.Mutex
		var problems []tree.Problem
		c := carry.Copy{Request: wire.TreeRequest{Op: op, ID: strings.Repeat("0", 32), Recursive: true}, Progress: func(int64, int64) {},
			Trouble: func(p tree.Problem) {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, p)
			}}
		var err error
		if op == wire.TreeReceive {
			c.Request.Path = wire.Bytes(to)
			c.Source, err = tree.OpenSource(tree.Local{}, dir+"/tree", true)
		} else {
			c.Request.Path = wire.Bytes(dir + "/tree")
			c.Destination, err = tree.OpenDestination(tree.Local{}, to, "tree", "")
		}
		if err != nil {
			t.Fatal(err)
		}
		o, err := mux.HandOver(context.Background(), ordering(t, speaks), c)
		if err != nil || !o.Begun || o.As != "named" || o.Result.Files != 1 || o.Result.Bytes != int64(len(content)) {
			t.Errorf("%s: %+v, %v", op, o, err)
		}
		if b, err := os.ReadFile(to + "/file"); err != nil || string(b) != content {
			t.Errorf("%s: %d bytes, %v", op, len(b), err)
		}
		if len(problems) != 1 || problems[0].Code != wire.CodeNotAFile {
			t.Errorf("%s: %v", op, problems)
		}
	}
}

// What the agent refuses is the command's failure, and nothing has begun.
func TestARefusalIsHandedBack(t *testing.T) {
	src, err := tree.OpenSource(tree.Local{}, t.TempDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	c := carry.Copy{Request: wire.TreeRequest{Op: wire.TreeReceive, Path: "refused"}, Source: src}
	o, err := mux.HandOver(context.Background(), ordering(t, speaks), c)
	if f := new(fault.Error); !errors.As(err, &f) || f.Exit != fault.NotFound || o.Begun {
		t.Errorf("%+v, %v", o, err)
	}
}

// A client that ends its copy hears that it has ended: what was begun is tidied
// up by then.
func TestAClientEndsItsCopy(t *testing.T) {
	dir := t.TempDir()
	dst, err := tree.OpenDestination(tree.Local{}, dir+"/to", "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	silent := func(conn net.Conn) error { // takes its part, sends half of a small file and no more
		defer conn.Close()
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+wire.UpgradeTree+"\r\n\r\nF\x00\x00"); err != nil {
			return err
		}
		cancel()
		io.Copy(io.Discard, conn)
		return nil
	}
	c := carry.Copy{Request: wire.TreeRequest{Op: wire.TreeSend, Path: "x"}, Destination: dst, Progress: func(int64, int64) {}}
	if _, err := mux.HandOver(ctx, ordering(t, silent), c); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("there are %v", list)
	}
}
