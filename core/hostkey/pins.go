// Package hostkey decides whether a server's host key is the one a person
// confirmed. It keeps the person's pins, and reads OpenSSH's known_hosts files
// as evidence to show, never as a silent reason to trust.
//
// A pin stands for one host, port and jump chain, and holds key type and key:
// the client offers only algorithms that fit a pin, so that a key of another
// type on the server is no alarm, and a changed key of the same type always is
// one. No function here pins anything by itself; Set is called after a person
// said yes.
//
// It knows nothing of connections, nor of how a person is asked.
package hostkey

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/state"
)

// Place is where a key was met: the name under which the host's keys are known
// (HostKeyAlias, host, or [host]:port) and the jump chain that leads there.
type Place struct {
	Name  string
	Chain string // "" when dialled directly
}

func (p Place) String() string {
	if p.Chain == "" {
		return p.Name
	}
	return p.Name + Via + p.Chain
}

// Via stands between the two parts of a place's words.
const Via = " via "

// Ways in which a pin was confirmed.
const (
	ByPrompt        = "prompt"
	ByFingerprint   = "fingerprint"
	ByKnownHosts    = "known_hosts"
	ByCertAuthority = "cert-authority"
)

// Pin is one confirmed key.
type Pin struct {
	Type        string `json:"type"` // as ssh-ed25519
	Key         string `json:"key"`  // base64 of the wire form
	Fingerprint string `json:"fingerprint"`
	By          string `json:"by"`
	At          string `json:"at"`
}

// Entry is everything that is pinned for one place.
type Entry struct {
	Name  string `json:"name"`
	Chain string `json:"chain,omitempty"`
	Keys  []Pin  `json:"keys"`
}

type pinFile struct {
	Entries []Entry `json:"entries"`
}

// Store holds the pins of one person.
type Store struct{ path string }

// OpenStore returns the store in the person's state directory.
func OpenStore(d state.Dirs) (*Store, error) {
	dir, err := d.State()
	if err != nil {
		return nil, err
	}
	return &Store{filepath.Join(dir, "pins.json")}, nil
}

// List returns all entries in order of name and chain.
func (s *Store) List() ([]Entry, error) {
	var f pinFile
	if err := state.ReadJSON(s.path, &f); err != nil {
		return nil, err
	}
	sort.Slice(f.Entries, func(i, j int) bool {
		a, b := f.Entries[i], f.Entries[j]
		return a.Name < b.Name || a.Name == b.Name && a.Chain < b.Chain
	})
	return f.Entries, nil
}

// Stamp tells one state of the pins from another: as long as it is the same,
// nothing was pinned or forgotten. Every change writes another file.
func (s *Store) Stamp() string {
	st, err := os.Stat(s.path)
	if err != nil {
		return "none"
	}
	inode := uint64(0)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		inode = sys.Ino
	}
	return fmt.Sprint(inode, " ", st.Size(), " ", st.ModTime().UnixNano())
}

// Pins returns what is pinned for the place.
func (s *Store) Pins(p Place) ([]Pin, error) {
	var f pinFile
	if err := state.ReadJSON(s.path, &f); err != nil {
		return nil, err
	}
	for _, e := range f.Entries {
		if e.Name == p.Name && e.Chain == p.Chain {
			return e.Keys, nil
		}
	}
	return nil, nil
}

// Set makes key the one pin of the place, in place of whatever was there.
func (s *Store) Set(ctx context.Context, p Place, key ssh.PublicKey, by string) error {
	pin := Pin{Type: key.Type(), Key: base64.StdEncoding.EncodeToString(key.Marshal()),
		Fingerprint: ssh.FingerprintSHA256(key), By: by, At: time.Now().UTC().Format(time.RFC3339)}
	return s.update(ctx, func(f *pinFile) error {
		f.drop(p)
		f.Entries = append(f.Entries, Entry{Name: p.Name, Chain: p.Chain, Keys: []Pin{pin}})
		return nil
	})
}

// Remove forgets the pins of the place and of no other; it fails if there are none.
func (s *Store) Remove(ctx context.Context, p Place) error {
	return s.update(ctx, func(f *pinFile) error {
		if !f.drop(p) {
			return fault.New(fault.NotFound, "not_found", "no key is pinned for %s", p)
		}
		return nil
	})
}

func (f *pinFile) drop(p Place) bool {
	for i, e := range f.Entries {
		if e.Name == p.Name && e.Chain == p.Chain {
			f.Entries = append(f.Entries[:i], f.Entries[i+1:]...)
			return true
		}
	}
	return false
}

func (s *Store) update(ctx context.Context, change func(*pinFile) error) error {
	var f pinFile
	return state.UpdateJSON(ctx, s.path, &f, func() error { return change(&f) })
}

// Check compares a key that a server presented with the pins of its place.
// It returns pinned=true for a pinned key, false if nothing is pinned there,
// and an error if another key is.
func Check(p Place, pins []Pin, key ssh.PublicKey) (pinned bool, err error) {
	if len(pins) == 0 {
		return false, nil
	}
	raw := base64.StdEncoding.EncodeToString(Plain(key).Marshal())
	expected := make([]string, len(pins))
	for i, pin := range pins {
		if pin.Type == Plain(key).Type() && pin.Key == raw {
			return true, nil
		}
		expected[i] = pin.Type + " " + pin.Fingerprint
	}
	return false, Changed(p, strings.Join(expected, " or "), key)
}

// Changed is the error for a key that is not the pinned one.
func Changed(p Place, expected string, got ssh.PublicKey) error {
	return fault.New(fault.HostKey, "host_key_changed", "host key changed: %s: expected %s got %s %s",
		p, expected, Plain(got).Type(), ssh.FingerprintSHA256(Plain(got))).
		WithHint("if the host was really given a new key, compare it there and run:\n"+
			"fleet trust HOST --fingerprint %s", ssh.FingerprintSHA256(Plain(got)))
}

// Plain is the key itself where a host presents a certificate over it.
func Plain(key ssh.PublicKey) ssh.PublicKey {
	if c, ok := key.(*ssh.Certificate); ok {
		return c.Key
	}
	return key
}

// Algorithms are the host key algorithms to offer for the pins: those that
// yield a pinned type. With no pins, it is nil.
func Algorithms(pins []Pin) []string {
	var out []string
	for _, p := range pins {
		out = append(out, algorithmsOf(p.Type)...)
	}
	return out
}

func algorithmsOf(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}

// defaultTypes is OpenSSH's order of preference.
var defaultTypes = []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA}

// Offer are the algorithms for a first meeting: certificates first where the
// person's known_hosts trusts an authority for the host, then the types that
// known_hosts has for it, then the rest in OpenSSH's order. A configured list
// is kept as it is.
func Offer(configured []string, known []Line) []string {
	if len(configured) > 0 {
		return configured
	}
	var out []string
	seen := map[string]bool{}
	add := func(algos ...string) {
		for _, a := range algos {
			if !seen[a] {
				seen[a] = true
				out = append(out, a)
			}
		}
	}
	for _, l := range known {
		if l.Marker == markAuthority && !l.Bare {
			for _, t := range defaultTypes {
				for _, a := range algorithmsOf(t) {
					add(certOf[a])
				}
			}
		}
	}
	for _, l := range known {
		if l.Marker == "" {
			add(algorithmsOf(l.Key.Type())...)
		}
	}
	for _, t := range defaultTypes {
		add(algorithmsOf(t)...)
	}
	return out
}

var certOf = map[string]string{
	ssh.KeyAlgoED25519: ssh.CertAlgoED25519v01, ssh.KeyAlgoECDSA256: ssh.CertAlgoECDSA256v01,
	ssh.KeyAlgoECDSA384: ssh.CertAlgoECDSA384v01, ssh.KeyAlgoECDSA521: ssh.CertAlgoECDSA521v01,
	ssh.KeyAlgoRSASHA512: ssh.CertAlgoRSASHA512v01, ssh.KeyAlgoRSASHA256: ssh.CertAlgoRSASHA256v01,
}

// Certified are the algorithms of certificates over keys of the algorithms given.
func Certified(algorithms []string) []string {
	var out []string
	for _, a := range algorithms {
		if c := certOf[a]; c != "" {
			out = append(out, c)
		}
	}
	return out
}

// CheckFingerprint reports whether want has the form SHA256:… that ssh-keygen
// -l prints.
func CheckFingerprint(want string) error {
	b, ok := strings.CutPrefix(want, "SHA256:")
	if raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(b, "=")); !ok || err != nil || len(raw) != 32 {
		return fault.Usagef("%q is no fingerprint such as SHA256:…, as ssh-keygen -l prints it", want)
	}
	return nil
}

// SameFingerprint compares a fingerprint that was given with a key's.
func SameFingerprint(want string, key ssh.PublicKey) bool {
	return strings.TrimRight(want, "=") == ssh.FingerprintSHA256(Plain(key))
}

// Describe is a key as people compare it: type and fingerprint.
func Describe(key ssh.PublicKey) string {
	return fmt.Sprintf("%s %s", Plain(key).Type(), ssh.FingerprintSHA256(Plain(key)))
}
