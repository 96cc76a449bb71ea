package install

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// Connect resolves a destination and dials it.
func (e *Env) Connect(ctx context.Context, host string, flags sshconfig.Flags) (*sshconn.Conn, error) {
	return e.connect(ctx, host, flags, false)
}

// ConnectAnew is Connect as if nothing were pinned for the host yet.
func (e *Env) ConnectAnew(ctx context.Context, host string, flags sshconfig.Flags) (*sshconn.Conn, error) {
	return e.connect(ctx, host, flags, true)
}

func (e *Env) connect(ctx context.Context, host string, flags sshconfig.Flags, anew bool) (*sshconn.Conn, error) {
	chain, err := e.Resolver.Chain(ctx, host, flags)
	if err != nil {
		return nil, err
	}
	for _, line := range chain.Target.Explain() {
		e.Notef("%s", line)
	}
	return e.ConnectChain(ctx, chain, anew)
}

// ConnectChain dials a destination that is resolved.
func (e *Env) ConnectChain(ctx context.Context, chain *sshconfig.Chain, anew bool) (*sshconn.Conn, error) {
	conf := chain.Target
	for keyword, value := range map[string]string{"ProxyJump": conf.ProxyJump, "ProxyCommand": conf.ProxyCommand} {
		if value != "" {
			return nil, fault.New(fault.Failure, "unsupported", "%s is reached through %s %s, which this version of fleet does not support: only direct connections", conf.Alias, keyword, value)
		}
	}
	return sshconn.Dial(ctx, sshconn.Params{Config: conf, Dial: e.Dial, Pins: e.Pins, Anew: anew, Notef: e.Notef})
}

func (r *run) connect(ctx context.Context) (bool, string, error) {
	var err error
	if r.conn, err = r.Connect(ctx, r.o.Host, r.o.SSH); err != nil {
		return false, "", err
	}
	r.conf = r.conn.Config
	r.doc.HostKey = HostKeyDoc(r.conn)
	r.doc.Matched.Account = true
	return false, r.conf.String(), nil
}

// HostKeyDoc shows a connection's host key and the evidence.
func HostKeyDoc(c *sshconn.Conn) *wire.HostKey {
	k := hostkey.Plain(c.Key)
	d := &wire.HostKey{Type: k.Type(), Fingerprint: ssh.FingerprintSHA256(k), Evidence: []wire.KeyEvidence{}}
	for _, e := range c.Evidence {
		d.Evidence = append(d.Evidence, wire.KeyEvidence{Kind: e.Kind, File: e.File, Line: e.Line, Expected: e.Expected})
	}
	return d
}

func (r *run) hostKey(ctx context.Context) (bool, string, error) {
	if r.conn.Pinned {
		r.doc.Matched.HostKey = true
		return true, "pinned", nil
	}
	by, err := r.Decide(ctx, r.conn, r.o.Fingerprints, r.o.Trust)
	if err != nil {
		return false, "", err
	}
	if err := r.conn.Confirm(ctx, by); err != nil {
		return false, "", err
	}
	r.doc.Matched.HostKey = true
	return false, "confirmed by " + by, nil
}

// Decide says what confirms a key that is not pinned yet: a fingerprint that
// was given, evidence that the person named, or the person's answer. Without
// any of them it refuses; nothing is trusted because it is there (R2).
func (e *Env) Decide(ctx context.Context, c *sshconn.Conn, fingerprints []string, trust string) (by string, err error) {
	if len(fingerprints) > 0 {
		for _, f := range fingerprints {
			f = strings.TrimPrefix(f, c.Place.Name+"=")
			if err := hostkey.CheckFingerprint(f); err != nil {
				return "", err
			}
			if hostkey.SameFingerprint(f, c.Key) {
				return hostkey.ByFingerprint, nil
			}
		}
		return "", fault.New(fault.HostKey, "host_key_mismatch", "host key of %s is not the one that was given: expected %s got %s",
			c.Place, strings.Join(fingerprints, " or "), hostkey.Describe(c.Key))
	}
	if trust != "" {
		want := map[string]string{hostkey.ByKnownHosts: hostkey.EvidenceKnown, hostkey.ByCertAuthority: hostkey.EvidenceAuthority}[trust]
		if want == "" {
			return "", fault.Usagef("--trust takes known_hosts or cert-authority, not %q", trust)
		}
		for _, ev := range c.Evidence {
			if ev.Kind == hostkey.EvidenceOther {
				return "", fault.New(fault.HostKey, "host_key_changed", "host key changed: %s: expected %s got %s (%s:%d)",
					c.Place, ev.Expected, hostkey.Describe(c.Key), ev.File, ev.Line)
			}
		}
		for _, ev := range c.Evidence {
			if ev.Kind == want {
				return trust, nil
			}
		}
		return "", fault.New(fault.HostKey, "host_key_unknown", "host key unknown: %s: got %s, and --trust %s finds nothing that speaks for it",
			c.Place, hostkey.Describe(c.Key), trust)
	}
	if e.Ask != nil {
		yes, err := e.Ask(ctx, c)
		if err != nil {
			return "", err
		}
		if yes {
			return hostkey.ByPrompt, nil
		}
		return "", fault.New(fault.HostKey, "host_key_unknown", "host key of %s was not confirmed", c.Place)
	}
	f := fault.Of(sshconn.Unconfirmed(c))
	for _, ev := range c.Evidence {
		f.Hint += fmt.Sprintf("\n%s", ev)
		if ev.Kind == hostkey.EvidenceKnown {
			f.Hint += "\n--trust known_hosts accepts that"
		}
	}
	return "", f
}
