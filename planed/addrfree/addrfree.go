// Package addrfree keeps network addresses out of what the plane stores and
// logs (R18). It recognises text that is shaped like an address, however it
// came there: in a host name a provider made of one, in a blocker's detail, in
// a line that net/http logs. It must not know what the text is for.
package addrfree

import (
	"io"
	"net/netip"
	"strings"
)

// Mark stands where an address stood.
const Mark = "[address]"

// Scrub replaces everything in s that is an IPv4, IPv6 or hardware address,
// with its port or zone if there is one, by Mark.
func Scrub(s string) string {
	if !suspicious(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		if !tokenByte(s[i]) {
			b.WriteByte(s[i])
			i++
			continue
		}
		j := i
		for j < len(s) && tokenByte(s[j]) {
			j++
		}
		b.WriteString(scrubToken(s[i:j]))
		i = j
	}
	return b.String()
}

// suspicious is the quick way out: an address has two dots or two colons, or
// six pairs behind dashes.
func suspicious(s string) bool {
	return strings.Count(s, ".") >= 3 || strings.Count(s, ":") >= 2 || strings.Count(s, "-") >= 3 || strings.Count(s, "_") >= 3
}

// tokenByte reports whether c can stand within an address, a port or a zone.
func tokenByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
		c == '.' || c == ':' || c == '-' || c == '_' || c == '%'
}

func scrubToken(t string) string {
	if isAddress(t) {
		return Mark
	}
	// Punctuation of the sentence around it, as in "refused by 192.0.2.1:".
	if core := strings.Trim(t, ".:-_%"); core != t && isAddress(core) {
		i := strings.Index(t, core)
		return t[:i] + Mark + t[i+len(core):]
	}
	if hasQuad(t) {
		return Mark
	}
	return t
}

// isAddress reports whether the whole of t is one address.
func isAddress(t string) bool {
	t, _, _ = strings.Cut(t, "%")
	if _, err := netip.ParseAddr(t); err == nil {
		return true
	}
	if _, err := netip.ParseAddrPort(t); err == nil {
		return true
	}
	return isHardware(t)
}

// isHardware reports whether t is six or more pairs of hexadecimal digits.
func isHardware(t string) bool {
	if len(t) < 17 || len(t)%3 != 2 || (t[2] != ':' && t[2] != '-') {
		return false
	}
	for i := 0; i < len(t); i++ {
		if i%3 == 2 {
			if t[i] != t[2] {
				return false
			}
		} else if !hex(t[i]) {
			return false
		}
	}
	return true
}

func hex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// hasQuad reports whether four numbers of 0 to 255 stand in a row with the
// same separator between them, as in ip-192-0-2-17 or 17.2.0.192.example.
// Longer rows of numbers count too: which four of them are the address cannot
// be told.
func hasQuad(t string) bool {
	var run int
	var sep byte
	for i := 0; i < len(t); {
		if t[i] < '0' || t[i] > '9' {
			if c := t[i]; c != '.' && c != '-' && c != '_' {
				run = 0
			}
			i++
			continue
		}
		j, n := i, 0
		for j < len(t) && t[j] >= '0' && t[j] <= '9' {
			if n <= 255 {
				n = n*10 + int(t[j]-'0')
			}
			j++
		}
		switch {
		case n > 255 || j-i > 3:
			run = 0
		case run > 0 && t[i-1] == sep:
			run++
		default:
			run = 1
		}
		if run == 4 {
			return true
		}
		sep = 0
		if j < len(t) {
			sep = t[j]
		}
		i = j
	}
	return false
}

// Shaped reports whether anything in a name is shaped like an address, or the
// name is one spelled with other separators.
func Shaped(name string) bool {
	if Scrub(name) != name || hasQuad(name) {
		return true
	}
	plain := strings.NewReplacer("-", ":", "_", ":").Replace(name)
	plain = strings.TrimSuffix(plain, ".ipv6:literal.net")
	if a, err := netip.ParseAddr(plain); err == nil && a.Is6() {
		return true
	}
	return false
}

// Writer passes lines on to W without addresses. It serves as net/http's error
// log, each of whose lines names a client.
type Writer struct{ W io.Writer }

func (w Writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.W, Scrub(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
