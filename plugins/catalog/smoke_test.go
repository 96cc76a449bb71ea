package catalog

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/sdk"
)

func TestSmoke(t *testing.T) {
	c := &Catalog{Dirs: []Dir{{Path: "/tmp/fp", Own: true}}, RunBase: "/tmp/fprun"}
	f, _ := localhost.Gather()
	f.DataDir = "/tmp"
	h := &localhost.Host{F: f}
	for range 3 {
		t0 := time.Now()
		s, err := c.LaunchService(context.Background(), "systemd")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("launch", time.Since(t0))
		t0 = time.Now()
		fmt.Println(s.Detect(context.Background(), h))
		fmt.Println(time.Since(t0))
		t0 = time.Now()
		s.Close()
		fmt.Println("close", time.Since(t0))
	}
	p, err := c.LaunchProbe(context.Background(), "host")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(p.Probe(context.Background(), h))
	p.Close()
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	tr, err := c.LaunchTransport(context.Background(), "direct", nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tr.Dial(context.Background(), sdk.Target{Hop: sdk.Hop{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}})
	fmt.Printf("%T %v %v\n", conn, err, conn.RemoteAddr())
	tr.Close()
	go func() { c, _ := l.Accept(); c.Write([]byte("hi")) }()
	b := make([]byte, 2)
	conn.Read(b)
	fmt.Println(string(b))
	tr, _ = c.LaunchTransport(context.Background(), "direct", nil)
	l.Close()
	t0 := time.Now()
	_, err = tr.Dial(context.Background(), sdk.Target{Hop: sdk.Hop{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}})
	fmt.Println(err, time.Since(t0))
	_, err = tr.Dial(context.Background(), sdk.Target{Hop: sdk.Hop{Host: "nope.invalid", Port: 22}})
	fmt.Println(err)
	tr.Close()
}
