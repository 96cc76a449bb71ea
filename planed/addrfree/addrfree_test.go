package addrfree

import (
	"net/netip"
	"strings"
	"testing"
)

func TestScrubRemovesAddressesAndLeavesTheRest(t *testing.T) { // R18
	for in, want := range map[string]string{
		"http: TLS handshake error from 192.0.2.7:51234: EOF":             "http: TLS handshake error from [address] EOF",
		"http: panic serving [2001:db8::1]:443: boom":                     "http: panic serving [[address]]:443: boom",
		"dial tcp 10.1.2.3:22: connect: connection refused":               "dial tcp [address] connect: connection refused",
		"route via fe80::1%eth0 is gone":                                  "route via [address] is gone",
		"mac 52:54:00:12:34:56 changed":                                   "mac [address] changed",
		"free 12.5 GiB of 20.0 GiB at 12:30:05":                           "free 12.5 GiB of 20.0 GiB at 12:30:05",
		"agent 1.4.0 of linux/amd64":                                      "agent 1.4.0 of linux/amd64",
		"/home/dana/.local/share/fleet-agent":                             "/home/dana/.local/share/fleet-agent",
		"loginctl enable-linger dana":                                     "loginctl enable-linger dana",
		"2026-01-02T03:04:05Z":                                            "2026-01-02T03:04:05Z",
		"m_abcdefghijklmnopqrstuvwxyz":                                    "m_abcdefghijklmnopqrstuvwxyz",
		"name ip-10-20-30-40 given by the host":                           "name [address] given by the host",
		"host93-184-216-34.example answers":                               "[address] answers",
		"sha256:0f343b0931126a20f133d67c2b018a3b0f343b0931126a20f133d67c": "sha256:0f343b0931126a20f133d67c2b018a3b0f343b0931126a20f133d67c",
	} {
		if got := Scrub(in); !sameScrub(got, want) {
			t.Errorf("Scrub(%q) = %q, want %q", in, got, want)
		}
	}
}

// sameScrub allows the colon behind an address to be taken for its port's.
func sameScrub(got, want string) bool {
	return strings.ReplaceAll(got, Mark+":", Mark) == strings.ReplaceAll(want, Mark+":", Mark)
}

func TestShapedFindsAddressesInNames(t *testing.T) { // R14
	for _, n := range []string{"10.0.0.5", "ip-10-0-3-7", "ec2-54-1-2-3", "2001-db8--1", "52-54-00-12-34-56", "17.2.0.192.in-addr", "10_0_0_5"} {
		if !Shaped(n) {
			t.Errorf("%q was taken for a name", n)
		}
	}
	for _, n := range []string{"web-1", "db-12.prod", "box", "node-2024-11-30", "a1.b2.c3", "build-7-x86-64", "rack1-2-3"} {
		if Shaped(n) {
			t.Errorf("%q was taken for an address", n)
		}
	}
}

func FuzzScrubLeavesNoAddress(f *testing.F) { // R18
	f.Add("from 192.0.2.7:51234: EOF", uint32(0x0a010203))
	f.Fuzz(func(t *testing.T, s string, ip uint32) {
		a := netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}).String()
		if got := Scrub(s + " " + a + " " + s); strings.Contains(got, " "+a+" ") {
			t.Errorf("%q kept %s", got, a)
		}
	})
}
