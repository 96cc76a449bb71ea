package sshconfig

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"fleet.example/fleet/core/fault"
)

// expander replaces the tokens and variables of ssh_config(5), section TOKENS,
// for one destination.
type expander struct {
	tokens map[byte]string
	home   string
	getenv func(string) string
}

func (r Resolver) expander(c *Config) (*expander, error) {
	// Like ssh, the home directory is the account's, whatever HOME says.
	name, home, uid := currentUser()
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	short, _, _ := strings.Cut(host, ".")
	port := strconv.Itoa(c.Port)
	// %C is the hash of %l%h%p%r%j, as OpenSSH 9 makes it.
	sum := sha1.Sum([]byte(host + c.HostName + port + c.User + c.ProxyJump))
	key := c.HostKeyAlias
	if key == "" {
		key = c.Alias
	}
	return &expander{getenv: r.Getenv, home: home, tokens: map[byte]string{
		'%': "%", 'C': hex.EncodeToString(sum[:]), 'd': home, 'h': c.HostName, 'i': strconv.Itoa(uid),
		'j': c.ProxyJump, 'k': key, 'L': short, 'l': host, 'n': c.Alias, 'p': port, 'r': c.User, 'u': name,
	}}, nil
}

// path expands a file name: %-tokens, ${VAR}, a leading ~.
func (x *expander) path(s string) (string, error) {
	s, err := x.expand(s)
	if err != nil {
		return "", err
	}
	switch {
	case s == "~":
		return x.home, nil
	case strings.HasPrefix(s, "~/"):
		return filepath.Join(x.home, s[2:]), nil
	}
	return s, nil
}

// agent expands IdentityAgent: none, SSH_AUTH_SOCK, a whole-value $VAR, or a
// path. Unset means the environment's.
func (x *expander) agent(s string) (string, error) {
	switch {
	case s == "" || s == "SSH_AUTH_SOCK":
		return x.getenv("SSH_AUTH_SOCK"), nil
	case s == "none":
		return "", nil
	case strings.HasPrefix(s, "$") && !strings.HasPrefix(s, "${"):
		return x.getenv(s[1:]), nil
	}
	return x.path(s)
}

func (x *expander) expand(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '%':
			i++
			if i == len(s) {
				return "", fault.New(fault.Failure, "ssh_config", "cannot expand %q: it ends in %%", s)
			}
			v, ok := x.tokens[s[i]]
			if !ok {
				return "", fault.New(fault.Failure, "ssh_config", "cannot expand %q: unknown token %%%c", s, s[i])
			}
			b.WriteString(v)
		case strings.HasPrefix(s[i:], "${"):
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return "", fault.New(fault.Failure, "ssh_config", "cannot expand %q: ${ is not closed", s)
			}
			name := s[i+2 : i+end]
			v := x.getenv(name)
			if v == "" {
				return "", fault.New(fault.Failure, "ssh_config", "cannot expand %q: the variable %s is not set", s, name)
			}
			b.WriteString(v)
			i += end
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}

// String names the destination as user@host:port, for messages.
func (c *Config) String() string {
	return fmt.Sprintf("%s@%s", c.User, addr(c.HostName, c.Port))
}

func addr(host string, port int) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}
