package sshconn

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
)

// maxKeys bounds how many keys are offered. OpenSSH's servers hang up after
// six tries by default; the configured keys come first, so that a full agent
// does not lock the right one out.
const maxKeys = 12

// agentTimeout bounds connecting to an agent.
const agentTimeout = 5 * time.Second

// auth finds the keys to offer for one destination.
type auth struct {
	config *sshconfig.Config
	notef  func(string, ...any)

	mu     sync.Mutex // of what follows
	agent  agent.ExtendedAgent
	conn   net.Conn
	closed bool

	encrypted []string // key files that need a passphrase
	unused    []string // why other key files are not used
	agentErr  error
	offered   int
}

func (a *auth) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.conn != nil {
		a.conn.Close()
	}
}

// signers returns the keys in the order in which they are offered: configured
// files first, each through the agent if it holds the key; then what else the
// agent has, unless IdentitiesOnly; then ssh's default files.
//
// As with ssh, a file among the defaults that the agent holds comes before the
// agent's other keys.
func (a *auth) signers() ([]ssh.Signer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held, err := a.held()
	if err != nil {
		a.agentErr = err
		a.notef("cannot list the ssh-agent's keys: %v", err)
	}
	var out []ssh.Signer
	seen := map[string]bool{}
	add := func(s ssh.Signer) {
		k := string(s.PublicKey().Marshal())
		if !seen[k] && len(out) < maxKeys {
			seen[k] = true
			out = append(out, s)
		}
	}
	addFiles := func() {
		for _, f := range a.config.IdentityFiles {
			if s := a.file(f, held); s != nil {
				add(s)
			}
		}
	}
	if a.config.IdentityFileSet {
		addFiles()
	} else {
		for _, f := range a.config.IdentityFiles {
			if pub := readPublic(f); pub != nil {
				if s := pick(held, pub); s != nil {
					add(s)
				}
			}
		}
	}
	if !a.config.IdentitiesOnly {
		for _, s := range held {
			add(s)
		}
	}
	if !a.config.IdentityFileSet {
		addFiles()
	}
	out = a.acceptable(a.withCertificates(out))
	a.offered = len(out)
	return out, nil
}

// acceptable leaves out what the configuration does not let be offered.
func (a *auth) acceptable(keys []ssh.Signer) []ssh.Signer {
	var out []ssh.Signer
	for _, k := range keys {
		s, why := acceptable(k, a.config)
		if s == nil {
			a.notef("the key %s is not offered: %s", hostkey.Describe(k.PublicKey()), why)
			continue
		}
		out = append(out, s)
	}
	return out
}

func (a *auth) held() ([]ssh.Signer, error) {
	if a.config.IdentityAgent == "" {
		return nil, nil
	}
	if a.closed {
		return nil, net.ErrClosed
	}
	if a.agent == nil {
		conn, err := net.DialTimeout("unix", a.config.IdentityAgent, agentTimeout)
		if err != nil {
			return nil, err
		}
		a.conn, a.agent = conn, agent.NewClient(conn)
	}
	if err := a.conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	return a.agent.Signers()
}

// file is the signer for an identity file: the agent's where it holds the
// key, else the key itself. The file may be the public half alone, which says
// which of the agent's keys is meant.
func (a *auth) file(path string, held []ssh.Signer) ssh.Signer {
	pub := readPublic(path)
	if pub != nil {
		if s := pick(held, pub); s != nil {
			return s
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) || a.config.IdentityFileSet {
			a.skip("cannot read the key %s: %v", path, err)
		}
		return nil
	}
	if pub != nil && parsePublic(b) != nil {
		a.skip("%s is a public key whose private half the ssh-agent does not hold", path)
		return nil
	}
	if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o077 != 0 {
		a.skip("the key %s is open to others (mode %04o) and is not used", path, st.Mode().Perm())
		return nil
	}
	s, err := ssh.ParsePrivateKey(b)
	var needs *ssh.PassphraseMissingError
	switch {
	case err == nil:
		return s
	case errors.As(err, &needs):
		if needs.PublicKey != nil {
			if s := pick(held, needs.PublicKey); s != nil {
				return s
			}
		}
		a.encrypted = append(a.encrypted, path)
	default:
		a.skip("cannot use the key %s: %v", path, err)
	}
	return nil
}

// skip says why a key file is not used: under -v at once, and to everybody if
// the login fails.
func (a *auth) skip(format string, args ...any) {
	a.unused = append(a.unused, fmt.Sprintf(format, args...))
	a.notef(format, args...)
}

// readPublic reads a public key or certificate from the file itself, or from
// the one beside it that ends in .pub.
func readPublic(path string) ssh.PublicKey {
	for _, name := range []string{path, path + ".pub"} {
		if b, err := os.ReadFile(name); err == nil {
			if pub := parsePublic(b); pub != nil {
				return pub
			}
		}
	}
	return nil
}

func parsePublic(b []byte) ssh.PublicKey {
	pub, _, _, _, err := ssh.ParseAuthorizedKey(b)
	if err != nil {
		return nil
	}
	return pub
}

func pick(held []ssh.Signer, pub ssh.PublicKey) ssh.Signer {
	for _, s := range held {
		if bytes.Equal(s.PublicKey().Marshal(), pub.Marshal()) {
			return s
		}
	}
	return nil
}

// withCertificates puts a certificate signer before each key that has one,
// from CertificateFile or, where none is configured, from FILE-cert.pub.
func (a *auth) withCertificates(keys []ssh.Signer) []ssh.Signer {
	files := a.config.CertificateFiles
	if len(files) == 0 {
		for _, f := range a.config.IdentityFiles {
			files = append(files, f+"-cert")
		}
	}
	var out []ssh.Signer
	for _, f := range files {
		pub := readPublic(f)
		cert, ok := pub.(*ssh.Certificate)
		if !ok {
			continue
		}
		if s := pick(keys, cert.Key); s != nil {
			if cs, err := ssh.NewCertSigner(cert, s); err == nil {
				out = append(out, cs)
			}
		}
	}
	return append(out, keys...)
}

// hint says what a person can do about a refused login.
func (a *auth) hint() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case len(a.encrypted) > 0:
		return fmt.Sprintf("%s is encrypted: load this key into ssh-agent first (ssh-add %s)", a.encrypted[0], a.encrypted[0])
	case a.offered == 0 && a.agentErr != nil:
		return "no key to offer; the ssh-agent cannot be reached: " + a.agentErr.Error()
	case len(a.unused) > 0:
		return strings.Join(a.unused, "\n")
	case a.offered == 0:
		return "no key to offer: name one with -i, load one into ssh-agent, or make one with ssh-keygen and put its public half into the account's authorized_keys there"
	}
	return ""
}
