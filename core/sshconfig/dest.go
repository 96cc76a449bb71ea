package sshconfig

import (
	"net/url"
	"strconv"
	"strings"

	"fleet.example/fleet/core/fault"
)

// Destination is what a person types as HOST, taken apart: an alias or host
// name, and a user and port where they were given.
type Destination struct {
	Host string // an alias, a name, an IPv4 or IPv6 address without brackets
	User string // or ""
	Port int    // or 0
}

// ParseDestination parses `alias`, `[user@]host[:port]`, `[user@][v6]:port` or
// `ssh://[user@]host[:port]`. Nothing that could be taken for an option of
// ssh's passes, and nothing that a ProxyCommand's shell would take apart.
func ParseDestination(s string) (Destination, error) {
	bad := func(why string) (Destination, error) {
		return Destination{}, fault.Usagef("%q is no SSH destination: %s", s, why)
	}
	var d Destination
	rest := s
	if len(s) >= 6 && strings.EqualFold(s[:6], "ssh://") {
		rest = strings.TrimSuffix(s[6:], "/")
		if strings.ContainsAny(rest, "/?#") {
			return bad("malformed ssh:// URL")
		}
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			// A host key fingerprint may follow the name. It is not looked at,
			// as OpenSSH does not look at it.
			name, _, _ := strings.Cut(rest[:i], ";")
			if strings.Contains(name, ":") {
				return bad("a password in it is refused")
			}
			var err error
			if d.User, err = url.PathUnescape(name); err != nil || d.User == "" {
				return bad("malformed user in the ssh:// URL")
			}
			rest = rest[i+1:]
		}
	} else if i := strings.LastIndexByte(s, '@'); i >= 0 {
		d.User, rest = s[:i], s[i+1:]
		if d.User == "" {
			return bad("the user before @ is empty")
		}
	}
	host, port, hasPort := rest, "", false
	switch {
	case strings.HasPrefix(rest, "["):
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			return bad("a bracket is not closed")
		}
		host = rest[1:end]
		if tail := rest[end+1:]; tail != "" {
			if port, hasPort = strings.CutPrefix(tail, ":"); !hasPort {
				return bad("only :port may follow the bracket")
			}
		}
	case strings.Count(rest, ":") == 1:
		host, port, hasPort = strings.Cut(rest, ":")
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n < 1 {
			return bad("the port is not a number from 1 to 65535")
		}
		d.Port = int(n)
	}
	d.Host = host
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	switch {
	case host == "":
		return bad("the host is empty")
	case strings.HasPrefix(host, "-") || strings.HasPrefix(d.User, "-"):
		return bad("it starts with a dash")
	case strings.ContainsFunc(host, control) || strings.ContainsFunc(d.User, control) || strings.Contains(host, " "):
		return bad("it has white space or control characters")
	case strings.ContainsAny(host, "`\"'$\\;&<>|(){}[]"):
		return bad("it has characters that a shell would take")
	case strings.ContainsAny(d.User, "`\"';&<>|(){}") || strings.HasSuffix(d.User, `\`) || strings.Contains(d.User, " -"):
		return bad("the user has characters that a shell would take")
	}
	return d, nil
}
