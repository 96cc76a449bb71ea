package place

import (
	"net"
	"testing"
)

func TestOnlyLoopbackAddressesAreTaken(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "127.0.0.1:7750", "127.8.9.10:1", "[::1]:7750"} {
		if _, err := Loopback(addr); err != nil {
			t.Error(err)
		}
	}
	for _, addr := range []string{"", ":7750", "7750", "127.0.0.1", "localhost:7750", "0.0.0.0:7750", "[::]:7750", "[::ffff:127.0.0.1]:7750",
		"[::1%lo]:7750", "127.1:7750", "2130706433:7750", "0x7f.0.0.1:7750", "127.0.0.01:7750", "10.0.0.1:7750", "*:7750", "127.0.0.1:99999",
		"127.0.0.1:http", " 127.0.0.1:1", "127.0.0.1:1\n"} {
		if a, err := Loopback(addr); err == nil {
			t.Errorf("%q is taken for %s", addr, a)
		}
	}
}

func FuzzLoopback(f *testing.F) {
	f.Add("127.0.0.1:7750")
	f.Add("[::ffff:127.0.0.1]:1")
	f.Fuzz(func(t *testing.T, addr string) {
		if _, err := Loopback(addr); err != nil {
			return
		}
		at, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil || !at.IP.IsLoopback() {
			t.Errorf("%q leads to %v: %v", addr, at, err)
		}
	})
}
