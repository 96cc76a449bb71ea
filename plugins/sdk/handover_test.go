package sdk

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// TestStreamThatIsNoDescriptorIsCopied: both ways, with each end's end.
func TestStreamThatIsNoDescriptorIsCopied(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	plugins, far := net.Pipe()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	detached, err := handOver(ctx, socket, plugins)
	if err != nil || detached {
		t.Fatal(detached, err)
	}
	host, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	_ = host.SetDeadline(time.Now().Add(10 * time.Second))
	_ = far.SetDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 1)
	if _, err := io.ReadFull(host, b); err != nil || b[0] != HandoverStream {
		t.Fatalf("%q, %v", b, err)
	}
	for _, way := range []struct{ from, to net.Conn }{{host, far}, {far, host}} {
		sent := make(chan error, 1)
		go func() { _, err := way.from.Write([]byte("hello")); sent <- err }()
		got := make([]byte, 5)
		if _, err := io.ReadFull(way.to, got); err != nil || string(got) != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	host.Close()
	if _, err := far.Read(b); err == nil {
		t.Error("the far end did not end")
	}
}

func TestHandoverWithoutAHostIsAnError(t *testing.T) {
	plugins, far := net.Pipe()
	defer far.Close()
	defer plugins.Close()
	if _, err := handOver(context.Background(), filepath.Join(t.TempDir(), "none"), plugins); err == nil {
		t.Error("no error")
	}
}
