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
// ssh's passes.
func ParseDestination(s string) (Destination, error) {
	bad := func(why string) (Destination, error) {
		return Destination{}, fault.Usagef("%q is no SSH destination: %s", s, why)
	}
	var d Destination
	rest := s
	if strings.HasPrefix(s, "ssh://") {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return bad("malformed ssh:// URL")
		}
		if u.User != nil {
			if _, has := u.User.Password(); has {
				return bad("a password in it is refused")
			}
			d.User = u.User.Username()
		}
		rest = u.Host
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
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return bad("the port is not a number from 1 to 65535")
		}
		d.Port = n
	}
	d.Host = host
	switch {
	case host == "":
		return bad("the host is empty")
	case strings.HasPrefix(host, "-") || strings.HasPrefix(d.User, "-"):
		return bad("it starts with a dash")
	case strings.ContainsFunc(host+d.User, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return bad("it has white space or control characters")
	case strings.ContainsAny(host, "`\"'$\\;&<>|(){}"):
		return bad("it has characters that a shell would take")
	}
	return d, nil
}
