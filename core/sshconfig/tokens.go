package sshconfig

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"

	"fleet.example/fleet/core/fault"
)

// Sets of tokens, as ssh_config(5) gives them in TOKENS.
const (
	tokensCommon = "%CdhijkLlnpru"
	// tokensProxy are those of ProxyCommand and ProxyJump. %k is not in the
	// manual, but ssh takes it.
	tokensProxy = "%hknpr"
)

// place is what tokens and variables are expanded from: one destination, and
// the person and machine that dial it.
type place struct {
	alias, hostName, userName, keyAlias string
	port                                int
	jump                                string // the host of the last jump, as %j has it
	localUser, home, localHost          string
	getenv                              func(string) string
	// jumpToken says that this ssh knows %j and makes it a part of %C, as
	// OpenSSH does since 9.6.
	jumpToken bool
}

func (p *place) token(t byte) (string, bool) {
	switch t {
	case '%':
		return "%", true
	case 'C':
		return p.hash(p.jumpToken), true
	case 'd':
		return p.home, true
	case 'h':
		return p.hostName, true
	case 'i':
		return strconv.Itoa(os.Getuid()), true
	case 'j':
		return p.jump, p.jumpToken
	case 'k':
		if p.keyAlias != "" {
			return p.keyAlias, true
		}
		return p.alias, true
	case 'L':
		short, _, _ := strings.Cut(p.localHost, ".")
		return short, true
	case 'l':
		return p.localHost, true
	case 'n':
		return p.alias, true
	case 'p':
		return strconv.Itoa(p.port), true
	case 'r':
		return p.userName, true
	case 'u':
		return p.localUser, true
	}
	return "", false
}

// hash is %C.
func (p *place) hash(withJump bool) string {
	s := p.localHost + p.hostName + strconv.Itoa(p.port) + p.userName
	if withJump {
		s += p.jump
	}
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

func cannotExpand(s, format string, args ...any) error {
	return fault.New(fault.Failure, "ssh_config", "cannot expand %q: %s", s, fmt.Sprintf(format, args...))
}

// file expands a file name: a leading ~, then tokens and ${VAR}. What a
// variable or token yields is not looked at again, so a ~ in it is a ~.
func (p *place) file(s string) (string, error) {
	t, err := p.tilde(s)
	if err != nil {
		return "", err
	}
	return p.expand(t, tokensCommon, true)
}

// tilde expands ~ and ~user. As with ssh, ~ is the account's home directory,
// whatever HOME says.
func (p *place) tilde(s string) (string, error) {
	if !strings.HasPrefix(s, "~") {
		return s, nil
	}
	name, rest, _ := strings.Cut(s[1:], "/")
	home := p.home
	if name != "" {
		u, err := user.Lookup(name)
		if err != nil {
			return "", cannotExpand(s, "there is no user %s", name)
		}
		home = u.HomeDir
	}
	return strings.TrimSuffix(home, "/") + "/" + strings.TrimLeft(rest, "/"), nil
}

// agent expands IdentityAgent to a socket, or to "" for none. Unset means the
// environment's, and so does the word SSH_AUTH_SOCK; $VAR as the whole value
// names another variable. expanded says that ssh did the rest.
func (p *place) agent(s string, expanded bool) (string, error) {
	switch {
	case s == "" || s == "SSH_AUTH_SOCK":
		return p.getenv("SSH_AUTH_SOCK"), nil
	case isNone(s):
		return "", nil
	case strings.HasPrefix(s, "$") && !strings.HasPrefix(s, "${"):
		if !isVariable(s[1:]) {
			return "", cannotExpand(s, "%s is no name of a variable", s[1:])
		}
		return p.getenv(s[1:]), nil
	case expanded:
		return s, nil
	}
	return p.file(s)
}

func isVariable(s string) bool {
	for i, r := range s {
		letter := r == '_' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// command expands ProxyCommand. It goes to a shell, so a host or user that a
// shell would take apart is refused, as OpenSSH refuses it since 9.6.
func (p *place) command(s string) (string, error) {
	for _, v := range []string{p.hostName, p.alias, p.userName} {
		if unsafe(v) {
			return "", cannotExpand(s, "%q has characters that a shell would take", v)
		}
	}
	return p.expand(s, tokensProxy, false)
}

// expand replaces the tokens in the set and, where variables are taken, ${VAR}.
func (p *place) expand(s, tokens string, variables bool) (string, error) {
	if !strings.ContainsAny(s, "%$") {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '%':
			if i++; i == len(s) {
				return "", cannotExpand(s, "it ends in %%")
			}
			v, known := p.token(s[i])
			if !known && s[i] == 'j' {
				return "", cannotExpand(s, "this ssh does not know %%j, which came with OpenSSH 9.6")
			}
			if !known || strings.IndexByte(tokens, s[i]) < 0 {
				return "", cannotExpand(s, "the token %%%c is not known here", s[i])
			}
			b.WriteString(v)
		case variables && strings.HasPrefix(s[i:], "${"):
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return "", cannotExpand(s, "${ is not closed")
			}
			name := s[i+2 : i+end]
			v := p.getenv(name)
			if v == "" {
				if _, set := os.LookupEnv(name); !set {
					return "", cannotExpand(s, "the variable %s is not set", name)
				}
			}
			b.WriteString(v)
			i += end
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}

// unsafe reports whether a shell would see more in the word than a word.
func unsafe(s string) bool {
	return strings.HasPrefix(s, "-") || strings.HasSuffix(s, `\`) ||
		strings.ContainsAny(s, "`\"'$;&<>|(){}\n\r\t \x00")
}

// jumpHost is the host of the last jump in a ProxyJump value.
func jumpHost(value string) string {
	if value == "" {
		return ""
	}
	last := value[strings.LastIndexByte(value, ',')+1:]
	d, err := ParseDestination(last)
	if err != nil {
		return last
	}
	return d.Host
}

// addr is host:port with an IPv6 address in brackets.
func addr(host string, port int) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}

// account is who runs this process, as far as can be told without asking the
// name service.
func account() (name, home string) {
	if u, err := user.Current(); err == nil {
		return u.Username, u.HomeDir
	}
	return os.Getenv("USER"), os.Getenv("HOME")
}

func localHost() string {
	h, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return h
}

// homeOf takes the account's home directory out of ssh's default for
// UserKnownHostsFile. ssh asks the name service for it, which knows accounts
// that /etc/passwd does not.
func homeOf(userKnownHosts string) string {
	first, ok := strings.CutSuffix(userKnownHosts, "/known_hosts2")
	if !ok || len(first) < 2 {
		return ""
	}
	// The value is HOME/.ssh/known_hosts HOME/.ssh/known_hosts2, the two as
	// long as each other but for the last character.
	half := (len(userKnownHosts) - 2) / 2
	home, ok := strings.CutSuffix(userKnownHosts[:half], "/.ssh/known_hosts")
	if !ok || !path.IsAbs(userKnownHosts) {
		return ""
	}
	if home == "" {
		return "/"
	}
	return home
}
