// Package sshlogin is the login of an SSH connection by public key: which key
// is offered after which, what the server takes besides keys, and in which
// words it refused.
//
// It is shared by the connection to a machine, in the host process, and by the
// transport that goes through jump hosts, in a plugin. It must not know where
// keys come from, nor configurations.
package sshlogin

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

const publicKey = "publickey"

// Login is one login under way. Its Next is an ssh.ClientAuthCallback. It
// serves one handshake.
type Login struct {
	// Signers gives the keys in the order in which they are offered. It is called
	// once, if the server takes keys at all.
	Signers func() ([]ssh.Signer, error)

	keys    []ssh.Signer
	loaded  bool
	from    int // the first key that was not offered yet
	partial int // successes so far that were not enough
	signed  int // the last key that signed, or -1
	refused int // the key whose signature failed, or -1
	refusal Refusal
}

// Refusal is how a server refused a login. It is in the chain of the
// handshake's error.
type Refusal struct {
	// Methods are those that the server names, as RFC 4252 names them.
	Methods []string
	// Partial says that a key was taken and that the server wants more.
	Partial bool
	// Keys is how many keys there were to offer.
	Keys int
	// Unsigned are the errors of keys that the server would have taken and that
	// did not sign.
	Unsigned []error
}

func (r *Refusal) Error() string {
	s := "Permission denied (" + strings.Join(r.Methods, ",") + ")"
	switch {
	case r.Partial:
		return s + ": the server took the key and wants more than keys, and fleet logs in by public key alone"
	case !slices.Contains(r.Methods, publicKey):
		return s + ": the server takes no public key, and fleet logs in by public key alone"
	case len(r.Unsigned) > 0:
		return fmt.Sprintf("%s: a key that the server knows did not sign: %s", s, r.Unsigned[0])
	case r.Keys == 0:
		return s + ": there is no key to offer"
	}
	return s
}

// Next chooses what is tried next. A key that does not sign, as one whose touch
// was not given, does not keep those after it from being tried.
func (l *Login) Next(c *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
	l.refusal.Methods = c.AllowedMethods
	if n := len(c.PartialSuccessMethods); n > l.partial {
		l.partial = n
		l.from = l.signed + 1 // a second key must be another one
	} else if l.loaded {
		l.from = len(l.keys)
		if l.refused >= 0 {
			l.from = l.refused + 1
		}
	}
	l.signed, l.refused = -1, -1
	l.refusal.Partial = l.partial > 0
	if !slices.Contains(c.AllowedMethods, publicKey) {
		return nil, &l.refusal
	}
	if !l.loaded {
		keys, err := l.Signers()
		if err != nil {
			return nil, err
		}
		l.keys, l.loaded, l.refusal.Keys = keys, true, len(keys)
	}
	if l.from >= len(l.keys) {
		return nil, &l.refusal
	}
	var rest []ssh.Signer
	for i := l.from; i < len(l.keys); i++ {
		rest = append(rest, &tracked{l.keys[i], l, i})
	}
	return ssh.PublicKeys(rest...), nil
}

// tracked is a key that tells its login what became of it. RSA signs with SHA-2
// alone.
type tracked struct {
	ssh.Signer
	login *Login
	index int
}

func (t *tracked) Algorithms() []string {
	if able, ok := t.Signer.(ssh.MultiAlgorithmSigner); ok {
		return able.Algorithms()
	}
	key := t.PublicKey()
	if c, ok := key.(*ssh.Certificate); ok {
		key = c.Key
	}
	if key.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{key.Type()}
}

func (t *tracked) SignWithAlgorithm(rand io.Reader, data []byte, algorithm string) (sig *ssh.Signature, err error) {
	if able, ok := t.Signer.(ssh.AlgorithmSigner); ok {
		sig, err = able.SignWithAlgorithm(rand, data, algorithm)
	} else {
		sig, err = t.Sign(rand, data)
	}
	t.login.signed = t.index
	if err != nil {
		t.login.refused = t.index
		t.login.refusal.Unsigned = append(t.login.refusal.Unsigned, err)
	}
	return sig, err
}

// TooMany is how OpenSSH's server ends a connection on which too many keys were
// offered.
const TooMany = "Too many authentication failures"

// TooManyKeys reports whether the server hung up because of the number of keys.
func TooManyKeys(err error) bool { return err != nil && strings.Contains(err.Error(), TooMany) }

// Refused is the refusal in an error's chain, or nil.
func Refused(err error) *Refusal {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	return nil
}
