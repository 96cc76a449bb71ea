package install

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/route"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
)

// Confirmation is what a person gave to confirm host keys that are not pinned
// yet, of the target and of every jump host alike. Who can be asked is Env.Ask.
type Confirmation struct {
	Fingerprints []string // [HOP=]SHA256:…
	Trust        string   // "" | known_hosts | cert-authority
	// Loose accepts what is confirmed without pinning it.
	Loose bool
}

// Connect resolves a destination and dials it. A jump host whose key is not
// pinned is refused; the target's own key is for the caller to look at.
func (e *Env) Connect(ctx context.Context, host string, flags sshconfig.Flags) (*sshconn.Conn, error) {
	return e.connect(ctx, host, flags, nil, false)
}

// ConnectConfirming is Connect where jump hosts' keys may be confirmed on the
// way, each before anything but the handshake is sent there (R2). With anew,
// what is pinned for the target is left aside.
func (e *Env) ConnectConfirming(ctx context.Context, host string, flags sshconfig.Flags, by Confirmation, anew bool) (*sshconn.Conn, error) {
	return e.connect(ctx, host, flags, &by, anew)
}

func (e *Env) connect(ctx context.Context, host string, flags sshconfig.Flags, by *Confirmation, anew bool) (*sshconn.Conn, error) {
	chain, err := e.Resolver.Chain(ctx, host, flags)
	if err != nil {
		return nil, err
	}
	for _, hop := range chain.Hops() {
		for _, line := range hop.Explain() {
			e.Notef("%s", line)
		}
	}
	return e.dialChain(ctx, chain, by, anew)
}

// ConnectChain dials a destination that is resolved, as Connect does.
func (e *Env) ConnectChain(ctx context.Context, chain *sshconfig.Chain, anew bool) (*sshconn.Conn, error) {
	return e.dialChain(ctx, chain, nil, anew)
}

func (e *Env) dialChain(ctx context.Context, chain *sshconfig.Chain, by *Confirmation, anew bool) (*sshconn.Conn, error) {
	w := &route.Way{Chain: chain, Pins: e.Pins, Launch: e.Transport, Met: e.HopMet, Notef: e.Notef, Output: e.Output}
	if by != nil {
		given, err := by.check(chain)
		if err != nil {
			return nil, err
		}
		// Pinned or not, another key than was given is refused before a login.
		w.Expected = func(m hostkey.Met) error {
			_, err := hostkey.Expect(given, m)
			return err
		}
		w.Loose = by.Loose
		w.Decide = func(ctx context.Context, m hostkey.Met) (string, error) { return e.Decide(ctx, m, *by) }
	}
	places := sshconn.PlacesOf(chain)
	return sshconn.Dial(ctx, sshconn.Params{Config: chain.Target, Pins: e.Pins, Anew: anew, Notef: e.Notef, Expected: w.Expected,
		Chain: places[len(places)-1].Chain, Patience: w.Patience(),
		Dial: func(ctx context.Context, _ *sshconfig.Config) (net.Conn, error) { return w.Dial(ctx) }})
}

// check returns the fingerprints and refuses those for hosts that are not on the
// way, before anything is dialled.
func (c Confirmation) check(chain *sshconfig.Chain) ([]hostkey.Fingerprint, error) {
	given, err := hostkey.ParseFingerprints(c.Fingerprints)
	if err != nil {
		return nil, err
	}
	var hops [][]string
	for _, hop := range chain.Hops() {
		hops = append(hops, sshconn.Names(hop))
	}
	return given, hostkey.CheckHops(given, hops)
}

func (o Options) confirmation() Confirmation {
	return Confirmation{Fingerprints: o.Fingerprints, Trust: o.Trust}
}

func (r *run) connect(ctx context.Context) (bool, string, error) {
	var err error
	if r.conn, err = r.ConnectConfirming(ctx, r.o.Host, r.o.SSH, r.o.confirmation(), false); err != nil {
		return false, "", err
	}
	r.conf = r.conn.Config
	r.doc.HostKey = HostKeyDoc(r.conn)
	r.doc.Matched.Account = true
	return false, r.conf.String(), nil
}

// HostKeyDoc shows a connection's host key and the evidence.
func HostKeyDoc(c *sshconn.Conn) *wire.HostKey { return keyDoc(c.Met()) }

func keyDoc(m hostkey.Met) *wire.HostKey {
	k := hostkey.Plain(m.Key)
	d := &wire.HostKey{Type: k.Type(), Fingerprint: ssh.FingerprintSHA256(k), Evidence: []wire.KeyEvidence{}}
	for _, e := range m.Evidence {
		d.Evidence = append(d.Evidence, wire.KeyEvidence{Kind: e.Kind, File: e.File, Line: e.Line, Expected: e.Expected})
	}
	return d
}

// jumpDoc shows a jump host's key and what became of it.
func jumpDoc(m hostkey.Met, by string, err error) wire.JumpHost {
	d := wire.JumpHost{Host: m.Host, HostKey: keyDoc(m), Confirmed: by}
	switch {
	case err != nil:
		d.Confirmed = ""
	case by == "":
		d.Confirmed = "pinned"
	}
	return d
}

func (r *run) hostKey(ctx context.Context) (bool, string, error) {
	if r.conn.Pinned {
		r.doc.Matched.HostKey = true
		return true, "pinned", nil
	}
	by, err := r.Decide(ctx, r.conn.Met(), r.o.confirmation())
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
func (e *Env) Decide(ctx context.Context, m hostkey.Met, c Confirmation) (by string, err error) {
	given, err := hostkey.ParseFingerprints(c.Fingerprints)
	if err != nil {
		return "", err
	}
	if same, err := hostkey.Expect(given, m); same || err != nil {
		return hostkey.ByFingerprint, err
	}
	if c.Trust != "" {
		return e.byEvidence(m, c.Trust)
	}
	if e.Ask != nil {
		yes, err := e.Ask(ctx, m)
		if err != nil {
			return "", err
		}
		if yes {
			return hostkey.ByPrompt, nil
		}
		return "", fault.New(fault.HostKey, "host_key_unknown", "host key of %s was not confirmed", m.Place)
	}
	f := fault.Of(sshconn.UnconfirmedKey(m))
	for _, ev := range m.Evidence {
		f.Hint += fmt.Sprintf("\n%s", ev)
		if ev.Kind == hostkey.EvidenceKnown {
			f.Hint += "\n--trust known_hosts accepts that"
		}
	}
	return "", f
}

// byEvidence accepts a key that the evidence speaks for that a person named.
func (e *Env) byEvidence(m hostkey.Met, trust string) (string, error) {
	want := map[string]string{hostkey.ByKnownHosts: hostkey.EvidenceKnown, hostkey.ByCertAuthority: hostkey.EvidenceAuthority}[trust]
	if want == "" {
		return "", fault.Usagef("--trust takes known_hosts or cert-authority, not %q", trust)
	}
	for _, ev := range m.Evidence {
		if ev.Kind == hostkey.EvidenceOther {
			return "", fault.New(fault.HostKey, "host_key_changed", "host key changed: %s: expected %s got %s (%s:%d)",
				m.Place, ev.Expected, hostkey.Describe(m.Key), ev.File, ev.Line)
		}
	}
	for _, ev := range m.Evidence {
		if ev.Kind == want {
			return trust, nil
		}
	}
	return "", fault.New(fault.HostKey, "host_key_unknown", "host key unknown: %s: got %s, and --trust %s finds nothing that speaks for it",
		m.Place, hostkey.Describe(m.Key), trust).WithHint("%s confirms it", m.Flag())
}
