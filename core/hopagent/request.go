package hopagent

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	msgUserAuthRequest = 50 // SSH_MSG_USERAUTH_REQUEST
	service            = "ssh-connection"
	methodPublicKey    = "publickey"
	// methodHostBound is publickey with the server's host key after the rest
	// (OpenSSH's PROTOCOL, section 3.1).
	methodHostBound = "publickey-hostbound-v00@openssh.com"
)

// The hash of a key exchange is the session identifier: SHA-1 to SHA-512.
const minSession, maxSession = 20, 64

// request is what a user signs to log in.
type request struct {
	user      string
	algorithm string // of the signature, as rsa-sha2-512 or ssh-ed25519-cert-v01@openssh.com
	key       string // in wire form
	hostKey   string // in wire form; empty for the plain method
}

var errNotLogin = errors.New("not a request for public key authentication")

// parseRequest takes data apart that is to be signed. Nothing may be left over.
func parseRequest(data []byte) (r request, err error) {
	p := parser{rest: data}
	session := p.str()
	kind := p.byte()
	r.user = p.str()
	serv, method := p.str(), p.str()
	signed := p.byte()
	r.algorithm, r.key = p.str(), p.str()
	if method == methodHostBound {
		if r.hostKey = p.str(); r.hostKey == "" {
			p.short = true
		}
	}
	switch {
	case p.short || len(p.rest) > 0 || len(session) < minSession || len(session) > maxSession || kind != msgUserAuthRequest || signed != 1:
		return r, errNotLogin
	case serv != service:
		return r, fmt.Errorf("%w: it is for the service %q", errNotLogin, serv)
	case method != methodPublicKey && method != methodHostBound:
		return r, fmt.Errorf("%w: its method is %q", errNotLogin, method)
	}
	return r, nil
}

// parser reads SSH's wire form. Once something is missing, it reads nothing more.
type parser struct {
	rest  []byte
	short bool
}

func (p *parser) take(n uint64) []byte {
	if p.short || uint64(len(p.rest)) < n {
		p.short = true
		return nil
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) byte() byte {
	if b := p.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (p *parser) uint32() uint32 {
	if b := p.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (p *parser) str() string { return string(p.take(uint64(p.uint32()))) }
