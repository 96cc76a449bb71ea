package hostkey

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
)

const (
	markAuthority = "cert-authority"
	markRevoked   = "revoked"
)

// Line is one line of a known_hosts file that speaks of the host asked for.
type Line struct {
	File   string
	Number int // from 1
	Marker string
	Key    ssh.PublicKey
	// Bare says that the line has the host's name without its port. As with ssh,
	// it speaks for the very key that it has, or revokes it, and nothing more.
	Bare bool
}

// maxKnownHosts bounds how much of one known_hosts file is read, in bytes.
const maxKnownHosts = 16 << 20

// Known reads the files and returns the lines for the given host key name and
// for the address that was dialled, if it is not "". Files that are missing
// and lines that are malformed are skipped, as OpenSSH skips them.
func Known(files []string, name, addr string) []Line {
	names := []string{name}
	if addr != "" && addr != name {
		names = append(names, addr)
	}
	var bare []string
	if host, _, err := net.SplitHostPort(name); err == nil {
		bare = []string{host}
	}
	var out []Line
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil || len(b) > maxKnownHosts {
			continue
		}
		number := 0
		for line := range bytes.Lines(b) {
			number++
			line = bytes.TrimSpace(line)
			if len(line) == 0 || line[0] == '#' {
				continue
			}
			marker, hosts, key, _, _, err := ssh.ParseKnownHosts(line)
			if err != nil || marker != "" && marker != markAuthority && marker != markRevoked {
				continue
			}
			l := Line{File: file, Number: number, Marker: marker, Key: key}
			if !speaksOf(hosts, names) {
				if l.Bare = speaksOf(hosts, bare); !l.Bare {
					continue
				}
			}
			out = append(out, l)
		}
	}
	return out
}

// speaksOf reports whether a line's host patterns mean one of the names: a
// pattern fits and no negated one does.
func speaksOf(patterns, names []string) bool {
	for _, name := range names {
		fits := false
		for _, p := range patterns {
			negated := strings.HasPrefix(p, "!")
			if !matchPattern(strings.TrimPrefix(p, "!"), name) {
				continue
			}
			if negated {
				fits = false
				break
			}
			fits = true
		}
		if fits {
			return true
		}
	}
	return false
}

func matchPattern(pattern, name string) bool {
	if hashed, ok := strings.CutPrefix(pattern, "|1|"); ok {
		salt64, sum64, ok := strings.Cut(hashed, "|")
		salt, err1 := base64.StdEncoding.DecodeString(salt64)
		sum, err2 := base64.StdEncoding.DecodeString(sum64)
		if !ok || err1 != nil || err2 != nil {
			return false
		}
		mac := hmac.New(sha1.New, salt)
		mac.Write([]byte(name))
		return subtle.ConstantTimeCompare(mac.Sum(nil), sum) == 1
	}
	return wildcard(strings.ToLower(pattern), strings.ToLower(name))
}

// wildcard matches * and ? over whole names.
func wildcard(p, s string) bool {
	star, mark := -1, 0
	i, j := 0, 0
	for j < len(s) {
		switch {
		case i < len(p) && (p[i] == '?' || p[i] == s[j]) && p[i] != '*':
			i++
			j++
		case i < len(p) && p[i] == '*':
			star, mark = i, j
			i++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}

// Evidence is what known_hosts says for or against a key.
type Evidence struct {
	Kind string `json:"kind"` // known_hosts | cert-authority | known_hosts_other
	File string `json:"file"`
	Line int    `json:"line"`
	// Expected is the fingerprint that the line has, for known_hosts_other.
	Expected string `json:"expected,omitempty"`
}

// Kinds of evidence.
const (
	EvidenceKnown     = "known_hosts"
	EvidenceAuthority = "cert-authority"
	// EvidenceOther is a line for the host with another key of the same type.
	EvidenceOther = "known_hosts_other"
)

func (e Evidence) String() string {
	switch e.Kind {
	case EvidenceKnown:
		return fmt.Sprintf("the same key stands in %s:%d", e.File, e.Line)
	case EvidenceAuthority:
		return fmt.Sprintf("a valid certificate of the authority in %s:%d", e.File, e.Line)
	default:
		return fmt.Sprintf("ANOTHER key stands in %s:%d: %s", e.File, e.Line, e.Expected)
	}
}

// Weigh collects the evidence that lines give about a key that the host at
// name presented. A revoked key, or a certificate over or by one, is an error.
func Weigh(lines []Line, name string, key ssh.PublicKey, now time.Time) ([]Evidence, error) {
	cert, _ := key.(*ssh.Certificate)
	var out []Evidence
	for _, l := range lines {
		same := bytes.Equal(l.Key.Marshal(), Plain(key).Marshal())
		byIt := cert != nil && bytes.Equal(l.Key.Marshal(), cert.SignatureKey.Marshal())
		switch {
		case l.Marker == markRevoked && (same || byIt):
			return nil, fault.New(fault.HostKey, "host_key_revoked", "host key revoked: %s:%d revokes %s %s",
				l.File, l.Number, l.Key.Type(), ssh.FingerprintSHA256(l.Key))
		case l.Marker != "" && l.Bare:
		case l.Marker == markAuthority && byIt && validHostCert(cert, name, now):
			out = append(out, Evidence{Kind: EvidenceAuthority, File: l.File, Line: l.Number})
		case l.Marker == "" && same:
			out = append(out, Evidence{Kind: EvidenceKnown, File: l.File, Line: l.Number})
		case l.Marker == "" && !l.Bare && l.Key.Type() == Plain(key).Type():
			out = append(out, Evidence{Kind: EvidenceOther, File: l.File, Line: l.Number, Expected: ssh.FingerprintSHA256(l.Key)})
		}
	}
	return out, nil
}

func validHostCert(cert *ssh.Certificate, name string, now time.Time) bool {
	host := name
	if h, _, err := net.SplitHostPort(name); err == nil {
		host = h
	}
	checker := &ssh.CertChecker{
		Clock:           func() time.Time { return now },
		IsHostAuthority: func(ssh.PublicKey, string) bool { return true }, // its line was matched already
	}
	if cert.CertType != ssh.HostCert {
		return false
	}
	// An empty list of principals is valid for any host to OpenSSH, but says
	// nothing about this one.
	return len(cert.ValidPrincipals) > 0 && checker.CheckCert(host, cert) == nil
}
