package hopagent

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// The part of the agent protocol that is spoken (draft-ietf-sshm-ssh-agent).
const (
	agentFailure     = 5
	requestList      = 11
	answerList       = 12
	requestSign      = 13
	answerSign       = 14
	flagRSASHA256    = 2
	flagRSASHA512    = 4
	maxMessage       = 256 << 10 // bytes, as in OpenSSH's agent
	maxConnections   = 4
	idleTimeout      = 2 * time.Minute
	answerTimeout    = 10 * time.Second
	maxSignatures    = 16 // a login needs one
	certSuffix       = "-cert-v01@openssh.com"
	algorithmRSA     = ssh.KeyAlgoRSA
	algorithmRSACert = ssh.CertAlgoRSAv01
)

// Hop is the server whose login is signed.
type Hop struct {
	User string
	// Keys are the keys that may sign, in the order in which they are offered.
	// It is called once, when somebody asks.
	Keys func() ([]ssh.Signer, error)
	// Accepted is the host key that was accepted for the hop; nil before that.
	Accepted func() ssh.PublicKey
	// Refused is told what was not signed, and why. It may be nil.
	Refused func(error)
}

// Server is an agent that is being served. Close ends it.
type Server struct {
	hop  Hop
	l    *net.UnixListener
	wg   sync.WaitGroup
	keys func() ([]ssh.Signer, error)

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
	signed int
}

// Listen serves the agent on a UNIX socket of mode 0600, in a directory that
// must be closed to others.
func Listen(path string, hop Hop) (*Server, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot serve an agent: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("cannot serve an agent: %w", err)
	}
	s := &Server{hop: hop, l: l, conns: map[net.Conn]bool{}, keys: sync.OnceValues(hop.Keys)}
	s.wg.Go(s.accept) // ends when l closes
	return s, nil
}

// Close ends the agent and all that was asked of it, and removes the socket.
func (s *Server) Close() error {
	err := s.l.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		if !s.admit(c) {
			c.Close()
			continue
		}
		s.wg.Go(func() { // ends with c, which Close closes
			defer func() {
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
				c.Close()
			}()
			s.serve(c)
		})
	}
}

func (s *Server) admit(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxConnections {
		return false
	}
	s.conns[c] = true
	return true
}

// serve answers one message after the other.
func (s *Server) serve(c net.Conn) {
	for {
		_ = c.SetDeadline(time.Now().Add(idleTimeout))
		message, err := readMessage(c)
		if err != nil {
			return
		}
		answer, err := s.answer(message)
		if err != nil {
			answer = []byte{agentFailure}
			if s.hop.Refused != nil {
				s.hop.Refused(err)
			}
		}
		_ = c.SetDeadline(time.Now().Add(answerTimeout))
		if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(answer))), answer...)); err != nil {
			return
		}
	}
}

func readMessage(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxMessage {
		return nil, errors.New("a message of no possible length")
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

func (s *Server) answer(message []byte) ([]byte, error) {
	p := parser{rest: message}
	switch kind := p.byte(); kind {
	case requestList:
		return s.list()
	case requestSign:
		key, data, flags := p.str(), p.str(), p.uint32()
		if p.short || len(p.rest) > 0 {
			return nil, errors.New("a malformed request for a signature")
		}
		sig, err := s.sign(key, []byte(data), flags)
		if err != nil {
			return nil, fmt.Errorf("not signed: %w", err)
		}
		return appendString([]byte{answerSign}, ssh.Marshal(sig)), nil
	default:
		return nil, fmt.Errorf("request %d is none that is served", kind)
	}
}

func (s *Server) list() ([]byte, error) {
	keys, err := s.keys()
	if err != nil {
		return nil, err
	}
	b := binary.BigEndian.AppendUint32([]byte{answerList}, uint32(len(keys)))
	for _, k := range keys {
		b = appendString(appendString(b, k.PublicKey().Marshal()), nil)
	}
	return b, nil
}

func appendString(b, s []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// sign signs a login, and nothing else.
func (s *Server) sign(key string, data []byte, flags uint32) (*ssh.Signature, error) {
	r, err := parseRequest(data)
	if err != nil {
		return nil, err
	}
	accepted := s.hop.Accepted()
	switch {
	case accepted == nil:
		return nil, errors.New("the host's key has not been accepted")
	case r.hostKey != "" && r.hostKey != string(accepted.Marshal()):
		return nil, errors.New("it names another host key than the accepted one")
	case r.user != s.hop.User:
		return nil, fmt.Errorf("it logs in as %q, and this agent is for %q", r.user, s.hop.User)
	case r.key != key:
		return nil, errors.New("it names another key than the one that is to sign")
	}
	keys, err := s.keys()
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if string(k.PublicKey().Marshal()) == key {
			algorithm, err := algorithmOf(k.PublicKey().Type(), r.algorithm, flags)
			if err != nil {
				return nil, err
			}
			if !s.once() {
				return nil, fmt.Errorf("more than %d signatures for one login", maxSignatures)
			}
			return signWith(k, data, algorithm)
		}
	}
	return nil, errors.New("the key is none of those that are offered to this host")
}

func (s *Server) once() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signed++
	return s.signed <= maxSignatures
}

// algorithmOf is the signature algorithm for a key, where the flags and the
// request agree about it.
func algorithmOf(keyType, asked string, flags uint32) (string, error) {
	algorithm, suffix := keyType, ""
	switch keyType {
	case algorithmRSACert:
		suffix = certSuffix
		fallthrough
	case algorithmRSA:
		switch {
		case flags&flagRSASHA512 != 0:
			algorithm = ssh.KeyAlgoRSASHA512
		case flags&flagRSASHA256 != 0:
			algorithm = ssh.KeyAlgoRSASHA256
		default:
			return "", errors.New("RSA signs with SHA-2 alone")
		}
	}
	if asked != algorithm+suffix {
		return "", fmt.Errorf("the request is for %s, and the signature would be %s", asked, algorithm)
	}
	return algorithm, nil
}

func signWith(k ssh.Signer, data []byte, algorithm string) (*ssh.Signature, error) {
	if able, ok := k.(ssh.AlgorithmSigner); ok && strings.HasPrefix(algorithm, "rsa-") {
		return able.SignWithAlgorithm(rand.Reader, data, algorithm)
	}
	return k.Sign(rand.Reader, data)
}
