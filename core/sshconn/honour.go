package sshconn

import (
	"crypto/rsa"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
)

// honour puts the algorithms that a person configured into an SSH client's
// configuration. A list is cut down to what there is here and keeps its order;
// weak algorithms that it asks for by name are used. Where nothing is
// configured, everything is offered that is not weak: servers that allow only
// large groups are as much in use as those that allow only curves.
func honour(conf *ssh.ClientConfig, c *sshconfig.Config) error {
	good, weak := ssh.SupportedAlgorithms(), ssh.InsecureAlgorithms()
	for _, l := range []struct {
		keyword     string
		asked       []string
		good, extra []string
		to          *[]string
	}{
		// The second name of curve25519-sha256 is its older one.
		{"KexAlgorithms", c.KexAlgorithms, good.KeyExchanges, append(weak.KeyExchanges, "curve25519-sha256@libssh.org"), &conf.KeyExchanges},
		{"Ciphers", c.Ciphers, good.Ciphers, weak.Ciphers, &conf.Ciphers},
		{"MACs", c.MACs, good.MACs, weak.MACs, &conf.MACs},
	} {
		if *l.to = l.good; l.asked == nil {
			continue
		}
		var err error
		if *l.to, err = choose(c, l.keyword, l.asked, slices.Concat(l.good, l.extra)); err != nil {
			return err
		}
	}
	conf.RekeyThreshold = c.RekeyLimit
	return nil
}

// choose is the part of a configured list that there is here.
func choose(c *sshconfig.Config, keyword string, asked, here []string) ([]string, error) {
	var out []string
	for _, a := range asked {
		if slices.Contains(here, a) {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Unreachable, "algorithms", "cannot connect to %s: %s is %s, and fleet has none of them", c, keyword, strings.Join(asked, ",")).
			WithHint("fleet has %s", strings.Join(here, ","))
	}
	return out, nil
}

// hostKeyAlgorithms are those to offer. With pins they are what yields a pinned
// key (R2), cut down to what is configured: a certificate over the pinned key
// is as good, where only certificates are configured.
func hostKeyAlgorithms(c *sshconfig.Config, pins []hostkey.Pin, known []hostkey.Line, here []string) ([]string, error) {
	var asked []string
	if c.HostKeyAlgorithms != nil {
		var err error
		if asked, err = choose(c, "HostKeyAlgorithms", c.HostKeyAlgorithms, here); err != nil {
			return nil, err
		}
	}
	if len(pins) == 0 {
		return hostkey.Offer(asked, known), nil
	}
	pinned := hostkey.Algorithms(pins)
	if asked == nil {
		return pinned, nil
	}
	for _, fit := range [][]string{pinned, hostkey.Certified(pinned)} {
		var out []string
		for _, a := range asked {
			if slices.Contains(fit, a) {
				out = append(out, a)
			}
		}
		if out != nil {
			return out, nil
		}
	}
	return nil, fault.New(fault.HostKey, "host_key_type", "cannot connect to %s: a key is pinned for which HostKeyAlgorithms would have to name %s, and it is %s",
		c, strings.Join(pinned, " or "), strings.Join(c.HostKeyAlgorithms, ",")).
		WithHint("fleet trust HOST --fingerprint SHA256:… pins a key of another type")
}

// byKey refuses a configuration that rules out the one way to log in that
// fleet has.
func byKey(c *sshconfig.Config) error {
	why := ""
	switch {
	case c.NoPubkeyAuthentication:
		why = "PubkeyAuthentication is no"
	case c.PreferredAuthentications != nil && !slices.Contains(c.PreferredAuthentications, "publickey"):
		why = "PreferredAuthentications is " + strings.Join(c.PreferredAuthentications, ",")
	default:
		return nil
	}
	return fault.New(fault.Unreachable, "auth_method", "cannot log in to %s: %s, and fleet logs in by public key alone", c, why).
		WithHint("allow publickey for this host, or give -o PubkeyAuthentication=yes -o PreferredAuthentications=publickey")
}

// acceptable cuts a signer down to the signature algorithms that
// PubkeyAcceptedAlgorithms allows, or returns nil and why. RSA signs with
// SHA-2 alone, whatever is allowed.
func acceptable(s ssh.Signer, c *sshconfig.Config) (ssh.Signer, string) {
	key := s.PublicKey()
	if bits := rsaBits(key); bits > 0 && bits < c.RequiredRSASize {
		return nil, fmt.Sprintf("it has %d bits, and RequiredRSASize is %d", bits, c.RequiredRSASize)
	}
	asked, suffix := c.PubkeyAcceptedAlgorithms, ""
	switch key.Type() {
	case ssh.CertAlgoRSAv01:
		suffix = "-cert-v01@openssh.com"
	case ssh.KeyAlgoRSA:
	default:
		if asked != nil && !slices.Contains(asked, key.Type()) {
			return nil, "PubkeyAcceptedAlgorithms does not have " + key.Type()
		}
		return s, ""
	}
	algos := []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	if asked != nil {
		algos = nil
		for _, a := range asked {
			if a == ssh.KeyAlgoRSASHA512+suffix || a == ssh.KeyAlgoRSASHA256+suffix {
				algos = append(algos, strings.TrimSuffix(a, suffix))
			}
		}
	}
	able, ok := s.(ssh.AlgorithmSigner)
	if len(algos) == 0 || !ok {
		return nil, "PubkeyAcceptedAlgorithms has no rsa-sha2"
	}
	cut, err := ssh.NewSignerWithAlgorithms(able, algos)
	if err != nil {
		return nil, err.Error()
	}
	return cut, ""
}

func rsaBits(key ssh.PublicKey) int {
	if k, ok := hostkey.Plain(key).(ssh.CryptoPublicKey); ok {
		if r, ok := k.CryptoPublicKey().(*rsa.PublicKey); ok {
			return r.N.BitLen()
		}
	}
	return 0
}

// checkHostKey holds a host's key against RequiredRSASize.
func checkHostKey(c *sshconfig.Config, key ssh.PublicKey) error {
	if bits := rsaBits(key); bits > 0 && bits < c.RequiredRSASize {
		return fault.New(fault.HostKey, "host_key_size", "cannot connect to %s: its key has %d bits, and RequiredRSASize is %d", c, bits, c.RequiredRSASize)
	}
	return nil
}

// signedAsAllowed reports whether a host certificate is signed by an algorithm
// that CASignatureAlgorithms allows. SHA-1 is not, unless it is configured.
func signedAsAllowed(c *sshconfig.Config, key ssh.PublicKey) bool {
	cert, ok := key.(*ssh.Certificate)
	if !ok || cert.Signature == nil {
		return true
	}
	if c.CASignatureAlgorithms != nil {
		return slices.Contains(c.CASignatureAlgorithms, cert.Signature.Format)
	}
	return cert.Signature.Format != ssh.KeyAlgoRSA
}

// heartbeat says how often to ask for a sign of life, and how long to wait for
// it. A person's ServerAlive settings may make both shorter, never longer: a
// dead connection is always noticed within the time that fleet promises.
func heartbeat(c *sshconfig.Config) (every, patience time.Duration) {
	every, patience = keepaliveEvery, keepaliveTimeout
	if c.ServerAliveInterval > 0 && c.ServerAliveInterval < every {
		every = c.ServerAliveInterval
		if wait := every * time.Duration(min(c.ServerAliveCountMax, 100)); wait > 0 {
			patience = min(patience, wait)
		}
	}
	return every, patience
}
