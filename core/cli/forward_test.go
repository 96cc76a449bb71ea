package cli

import (
	"net"
	"testing"

	"fleet.example/fleet/core/fault"
)

func TestWhatAForwardSays(t *testing.T) {
	for word, want := range map[string]forwardSpec{
		"8080":                   {"127.0.0.1", 8080, "8080"},
		"0:8080":                 {"127.0.0.1", 0, "8080"},
		"9000:8080":              {"127.0.0.1", 9000, "8080"},
		"127.0.0.2:9000:8080":    {"127.0.0.2", 9000, "8080"},
		"localhost:0:8080":       {"127.0.0.1", 0, "8080"},
		"[::1]:0:8080":           {"::1", 0, "8080"},
		"0:/run/a:b.sock":        {"127.0.0.1", 0, "/run/a:b.sock"},
		"5432:~/s.sock":          {"127.0.0.1", 5432, "~/s.sock"},
		"[::1]:1:/run/a b:c.sok": {"::1", 1, "/run/a b:c.sok"},
	} {
		if got, err := parseForward(word); err != nil || got != want {
			t.Errorf("%s: %+v, %v", word, got, err)
		}
	}
	for _, word := range []string{"", ":", "0", "x", "70000", "-1", "+80", "/run/x.sock", "~/x", "1:0", "1:x", "1:2:3", "1:example.org:80", "0.0.0.0:1:2", "*:1:2",
		"192.0.2.1:1:2", "[::]:1:2", "[::1]:x:2", "[::1:1:2", "localhost:1", "example.org:1:2", "1:../x", ":1:2", "127.0.0.1:+1:2"} {
		if got, err := parseForward(word); err == nil {
			t.Errorf("%q was taken as %+v", word, got)
		} else if fault.Of(err).Exit != fault.Usage {
			t.Errorf("%q: %v", word, err)
		}
	}
}

func FuzzForward(f *testing.F) {
	for _, s := range []string{"8080", "[::1]:0:/x", "localhost:1:2", "127.1.1.1:1:~/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, word string) {
		s, err := parseForward(word)
		if err == nil && (!net.ParseIP(s.bind).IsLoopback() || s.target == "") {
			t.Errorf("%q leads from %q to %q", word, s.bind, s.target)
		}
	})
}
