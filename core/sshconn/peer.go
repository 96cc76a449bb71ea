package sshconn

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
)

// Peer is what this process does for the SSH of one server, whoever speaks it:
// which host keys to ask for, what to think of the one that is presented, and
// which keys log in. A connection has one for its target; a transport that goes
// through jump hosts is served by one for each. Its methods may be called from
// several goroutines, each once, Judge before what tells of the key.
type Peer struct {
	Config   *sshconfig.Config
	Place    hostkey.Place
	Jump     bool // a host on the way
	Key      ssh.PublicKey
	Pinned   bool
	Evidence []hostkey.Evidence

	// Expected, where set, refuses a key whatever is pinned.
	Expected func(hostkey.Met) error

	store *hostkey.Store
	pins  []hostkey.Pin
	known []hostkey.Line
	auth  *auth
}

// NewPeer reads what is pinned and known of a server. With anew, its pins are
// left aside.
func NewPeer(c *sshconfig.Config, place hostkey.Place, store *hostkey.Store, anew bool, notef func(string, ...any)) (*Peer, error) {
	p := &Peer{Config: c, Place: place, store: store, auth: &auth{config: c, notef: notef}}
	if err := byKey(c); err != nil {
		return nil, err
	}
	if !anew {
		var err error
		if p.pins, err = store.Pins(place); err != nil {
			return nil, err
		}
	}
	p.known = hostkey.Known(c.KnownHosts(), place.Name, "")
	return p, nil
}

// HostKeyAlgorithms are those to offer: what yields a pinned key, or for a
// first meeting what known_hosts speaks of, cut down to what is configured.
func (p *Peer) HostKeyAlgorithms() ([]string, error) {
	good, weak := ssh.SupportedAlgorithms(), ssh.InsecureAlgorithms()
	return hostKeyAlgorithms(p.Config, p.pins, p.known, slices.Concat(good.HostKeys, weak.HostKeys))
}

// Judge says what there is to think of the key that the server presents. An
// error refuses it: it is revoked, another key is pinned, or it is weaker than
// what is configured. Whether one that is not pinned is confirmed is for others
// to say.
func (p *Peer) Judge(key ssh.PublicKey) error {
	p.Key = key
	if err := checkHostKey(p.Config, key); err != nil {
		return err
	}
	if err := checkRevoked(p.Config, key); err != nil {
		return err
	}
	evidence, err := hostkey.Weigh(p.known, p.Place.Name, key, time.Now())
	if err != nil {
		return err
	}
	if !signedAsAllowed(p.Config, key) {
		evidence = slices.DeleteFunc(evidence, func(e hostkey.Evidence) bool { return e.Kind == hostkey.EvidenceAuthority })
	}
	p.Evidence = evidence
	if p.Expected != nil {
		if err := p.Expected(p.Met()); err != nil {
			return err
		}
	}
	p.Pinned, err = hostkey.Check(p.Place, p.pins, key)
	if f := fault.Of(err); f != nil && p.Jump {
		return f.WithHint("if this jump host was really given a new key, compare it there and run:\n%s", p.trustLine())
	}
	return err
}

// trustLine is the command that pins the key of a jump host.
func (p *Peer) trustLine() string {
	line := "fleet trust " + p.Config.Alias
	if p.Place.Chain != "" {
		line += " -J …"
	}
	return line + " --fingerprint " + ssh.FingerprintSHA256(hostkey.Plain(p.Key))
}

// Keys are the keys that log in, in the order in which they are offered.
func (p *Peer) Keys() ([]ssh.Signer, error) { return p.auth.signers() }

// Close lets go of the agent.
func (p *Peer) Close() { p.auth.close() }

// Met is the key that Judge was given.
func (p *Peer) Met() hostkey.Met {
	return hostkey.Met{Place: p.Place, Key: p.Key, Evidence: p.Evidence, Host: p.Config.String(), Names: Names(p.Config), Jump: p.Jump}
}

// Confirm pins the key, which a person confirmed in the way given.
func (p *Peer) Confirm(ctx context.Context, by string) error {
	return p.store.Set(ctx, p.Place, hostkey.Plain(p.Key), by)
}

// Names are what a host may be called in HOP=SHA256:…: as the person wrote it,
// by its host key's name, by its address; and as a jump is written, with
// brackets, port and user.
func Names(c *sshconfig.Config) []string {
	names := []string{c.Alias, c.HostKeyName(), c.HostName}
	port := strconv.Itoa(c.Port)
	for _, host := range []string{c.Alias, c.HostName} {
		names = append(names, "["+host+"]", "["+host+"]:"+port)
		if !strings.Contains(host, ":") {
			names = append(names, host+":"+port)
		}
	}
	for _, n := range names {
		names = append(names, c.User+"@"+n)
	}
	return names
}

// viaCommand marks, in a chain, that a program is the way: what it leads through
// is not known. A pin made over one program holds for another one, since a key
// that differs should be an alarm then too.
const viaCommand = "ProxyCommand"

// PlacesOf are the places of a chain's host keys, nearest first, the target's
// last: each host's own name, and the names of those before it.
func PlacesOf(c *sshconfig.Chain) []hostkey.Place {
	var places []hostkey.Place
	var before []string
	if c.First().ProxyCommand != "" {
		before = append(before, viaCommand)
	}
	for _, hop := range c.Hops() {
		places = append(places, hostkey.Place{Name: hop.HostKeyName(), Chain: strings.Join(before, ",")})
		before = append(before, hop.HostKeyName())
	}
	return places
}

// Algorithms are the key exchanges, ciphers and MACs to offer to a host: what
// is configured of those that there are here.
func Algorithms(c *sshconfig.Config) (kex, ciphers, macs []string, err error) {
	var conf ssh.ClientConfig
	if err := honour(&conf, c); err != nil {
		return nil, nil, nil, err
	}
	return conf.KeyExchanges, conf.Ciphers, conf.MACs, nil
}
