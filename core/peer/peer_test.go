package peer

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestPeerIsKnown(t *testing.T) {
	dir, err := os.MkdirTemp("", "pe")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if uid, err := UID(c); err != nil || uid != os.Getuid() || !Own(c) {
		t.Error(uid, err)
	}
	c.Close()
	if Own(c) {
		t.Error("a closed connection is somebody's")
	}
}
